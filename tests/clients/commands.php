<?php
// Print the lines of tests/clients/commands.txt, by phpredis.

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value), "\n";
}

/** Return null for nil, which phpredis returns as false. */
function nullable($value)
{
    return $value === false ? null : $value;
}

function sorted(array $values): array
{
    sort($values);
    return $values;
}

/** Return the error of a command, without its code. */
function refusal(Redis $r, string ...$command): string
{
    $r->clearLastError();
    try {
        $r->rawCommand(...$command);
    } catch (RedisException $error) {
        return preg_replace("/^ERR /", "", $error->getMessage());
    }
    return preg_replace("/^ERR /", "", (string) $r->getLastError());
}

$r = new Redis();
$r->connect("127.0.0.1", (int) $argv[1]);

say("ping", $r->ping());
say("sadd", $r->sAdd("letters", "a"));
say("sadd-several", $r->sAdd("letters", "a", "b", "c", "d"));
say("scard", $r->sCard("letters"));
say("sismember", [(int) $r->sIsMember("letters", "b"), (int) $r->sIsMember("letters", "x")]);
say("smembers", sorted($r->sMembers("letters")));
say("srem", $r->sRem("letters", "b", "x"));
say("exists", $r->exists("letters"));
say("keys", $r->keys("*"));
$names = [];
$cursor = null;
$r->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
while (($found = $r->scan($cursor)) !== false) {
    $names = array_merge($names, $found);
}
say("scan", $names);
say("spop", $r->sPop("letters"));
say("spop-count", sorted($r->sPop("letters", 5)));
say("spop-empty", nullable($r->sPop("letters")));
say("spop-count-empty", $r->sPop("letters", 5));
say("lpush", $r->lPush("numbers", "1", "2", "2"));
say("rpop", array_map(fn() => nullable($r->rPop("numbers")), range(1, 4)));
say("del", $r->del(["letters", "numbers", "nothing"]));

$members = array_map(fn($i) => "member-$i", range(0, 249));
$r->sAdd("many", ...$members);
$found = [];
$cursor = null;
while (($slice = $r->sScan("many", $cursor, "*", 20)) !== false) {
    $found = array_merge($found, $slice);
}
say("sscan", [count($found), sorted($found) === sorted($members)]);
$found = [];
$cursor = null;
while (($slice = $r->sScan("many", $cursor, "*-249", 20)) !== false) {
    $found = array_merge($found, $slice);
}
say("sscan-match", $found);
$r->del("many");

$binary = implode("", array_map("chr", range(0, 255))) . "\r\n$3\r\n*1\r\n\0\r\n";
$r->sAdd("bin\r\nary\0", $binary);
$there = (int) $r->sIsMember("bin\r\nary\0", $binary);
say("binary", [strlen($binary), $r->sPop("bin\r\nary\0") === $binary, $there]);
$large = random_bytes(1 << 20);
$r->sAdd("large", $large);
say("large", [strlen($large), $r->sPop("large") === $large, nullable($r->sPop("large"))]);

$replies = $r->pipeline()
    ->sAdd("pipe", "x")->sAdd("pipe", "y")->sAdd("pipe", "x")->lPush("pipe", "z")
    ->sPop("pipe")->sPop("pipe")->sPop("pipe")->sPop("pipe")
    ->exec();
say("pipeline", array_map("nullable", $replies));

$r->sAdd("here", "message");
$r->select(1);
$before = $r->exists("here");
$r->sAdd("there", "message");
$put = $r->sCard("there");
$deleted = $r->del("there");
$r->select(0);
say("select", [$before, $put, $deleted, $r->exists("there")]);

say("auth", refusal($r, "AUTH", "secret"));
say("wrong-arity", refusal($r, "SADD", "letters"));
