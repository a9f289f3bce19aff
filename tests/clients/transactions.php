<?php
// Print the lines of tests/clients/transactions.txt, by phpredis.

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value), "\n";
}

/** Return null for nil, which phpredis returns as false, or as an empty list after a timeout. */
function nullable($value)
{
    return $value === false || $value === [] ? null : $value;
}

/** Return an error without ERR or EXECABORT. */
function plain(string $error): string
{
    return preg_replace("/^(ERR|EXECABORT) /", "", $error);
}

/** Return the error of the last command. */
function refusal(Redis $r): string
{
    $error = (string) $r->getLastError();
    $r->clearLastError();
    return plain($error);
}

/** Return the reply of a command, or its error. */
function reply(Redis $r, string ...$command)
{
    try {
        $reply = $r->rawCommand(...$command);
    } catch (RedisException $error) {
        $r->clearLastError();
        return plain($error->getMessage());
    }
    return $reply === false && $r->getLastError() !== null ? refusal($r) : $reply;
}

function connect(int $port): Redis
{
    $r = new Redis();
    $r->connect("127.0.0.1", $port);
    return $r;
}

$r = connect((int) $argv[1]);
$other = connect((int) $argv[1]);

say("multi", $r->multi()->sAdd("q", "a", "b")->sCard("q")->sPop("q")->rPush("q", "c")->rPop("q")->exec());
$r->del("q", "d");

$r->multi()->sAdd("q", "a");
$r->discard();
say("discard", $r->exists("q"));

$r->watch("q");
say("watch-unchanged", $r->multi()->sAdd("q", "own")->sCard("q")->exec());
$r->del("q");
$r->watch("q");
$other->sAdd("q", "other");
say("watch-changed", nullable($r->multi()->sAdd("q", "own")->exec()));
$r->watch("q");
$other->sAdd("q", "more");
$r->unwatch();
say("unwatch", $r->multi()->sAdd("q", "own")->exec());
$r->del("q");

// phpredis's own transaction waits for replies after EXECABORT, with Redis too.
$r->rawCommand("MULTI");
$r->rawCommand("SADD", "q", "a");
reply($r, "SADD", "q");
say("refused-when-queued", reply($r, "EXEC"));

$r->rawCommand("MULTI");
$r->rawCommand("SADD", "q", "a");
$r->rawCommand("SPOP", "q", "-1");
$r->rawCommand("SADD", "q", "b");
$replies = $r->rawCommand("EXEC");
$replies[1] = $replies[1] === false ? refusal($r) : $replies[1];
say("refused-when-done", $replies);
$r->del("q");

$other->rPush("second", "message");
say("blpop", $r->blPop(["first", "second"], 5));
// phpredis's own blPop takes whole seconds only.
say("blpop-timeout", nullable($r->rawCommand("BLPOP", "first", "second", "0.05")));
$replies = $r->multi()->blPop(["q"], 0)->sAdd("q", "x")->brPop(["q"], 0)->exec();
say("blpop-in-multi", array_map("nullable", $replies));
$r->sAdd("q", "x");
say("move", [$r->bRPopLPush("q", "d", 1), $r->lLen("d")]);
$r->del("q", "d", "first", "second");

$r->setOption(Redis::OPT_REPLY_LITERAL, true);
reply($r, "PRESSURE.CREATE", "pipe");
reply($r, "PRESSURE.PUT", "pipe", "a");
reply($r, "PRESSURE.PUT", "pipe", "b");
$r->multi();
$r->rawCommand("PRESSURE.EXISTS", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
say("multi-pressure", array_map("nullable", $r->exec()));
reply($r, "PRESSURE.CLOSE", "pipe");
say("get-closed", reply($r, "PRESSURE.GET", "pipe"));
