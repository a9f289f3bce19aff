<?php
// What tests/clients/transactions.txt lists, by phpredis.

function say(string $what, $value): void
{
    echo $what, " ", json_encode($value), "\n";
}

/** phpredis says false for nil, and an empty list where nothing came in time. */
function nullable($value)
{
    return $value === false || $value === [] ? null : $value;
}

/** An error without its ERR or EXECABORT. */
function plain(string $error): string
{
    return preg_replace("/^(ERR|EXECABORT) /", "", $error);
}

/** The error that the last command gave. */
function refusal(Redis $r): string
{
    $error = (string) $r->getLastError();
    $r->clearLastError();
    return plain($error);
}

/** What a command replies, or its error. */
function said(Redis $r, string ...$command)
{
    try {
        $reply = $r->rawCommand(...$command);
    } catch (RedisException $error) {
        $r->clearLastError();
        return plain($error->getMessage());
    }
    return $reply === false && $r->getLastError() !== null ? refusal($r) : $reply;
}

function connected(int $port): Redis
{
    $r = new Redis();
    $r->connect("127.0.0.1", $port);
    return $r;
}

$r = connected((int) $argv[1]);
$other = connected((int) $argv[1]);

say("multi", $r->multi()->sAdd("q", "a", "b")->sCard("q")->sPop("q")->rPush("q", "c")->rPop("q")->exec());
say("multi-across", $r->multi()->sAdd("s", "x")->sAdd("d", "y")->rPopLPush("s", "d")
    ->del("s")->lLen("d")->exec());
$r->del("q", "d");

$r->multi()->sAdd("q", "a");
$r->discard();
say("discard", $r->exists("q"));

$r->watch("q");
say("watch-unchanged", $r->multi()->sAdd("q", "ours")->sCard("q")->exec());
$r->del("q");
$r->watch("q");
$other->sAdd("q", "theirs");
say("watch-changed", nullable($r->multi()->sAdd("q", "ours")->exec()));
say("watch-changed-left", $r->sMembers("q"));
$r->watch("q");
$other->sAdd("q", "more");
$r->unwatch();
say("unwatch", $r->multi()->sAdd("q", "ours")->exec());
$r->del("q");

// In its own transaction phpredis waits for more than EXECABORT, from Redis too.
$r->rawCommand("MULTI");
$r->rawCommand("SADD", "q", "a");
said($r, "SADD", "q");
say("refused-when-queued", said($r, "EXEC"));
say("refused-when-queued-left", $r->exists("q"));

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
// Its own blPop takes whole seconds only.
say("blpop-in-vain", nullable($r->rawCommand("BLPOP", "first", "second", "0.05")));
$replies = $r->multi()->blPop(["q"], 0)->sAdd("q", "x")->brPop(["q"], 0)->exec();
say("blpop-in-multi", array_map("nullable", $replies));
$r->sAdd("q", "x");
say("move", [$r->bRPopLPush("q", "d", 1), $r->lLen("d")]);
$r->del("q", "d", "first", "second");

$r->setOption(Redis::OPT_REPLY_LITERAL, true);
say("create", said($r, "PRESSURE.CREATE", "pipe", "BOUND", "2", "OVERFLOW", "error"));
say("create-again", said($r, "PRESSURE.CREATE", "pipe"));
say("put", said($r, "PRESSURE.PUT", "pipe", "a"));
say("put-again", said($r, "PRESSURE.PUT", "pipe", "a", "NX"));
said($r, "PRESSURE.PUT", "pipe", "b");
say("put-full", said($r, "PRESSURE.PUT", "pipe", "c"));
$r->multi();
$r->rawCommand("PRESSURE.EXISTS", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
$r->rawCommand("PRESSURE.GET", "pipe");
say("multi-pressure", array_map("nullable", $r->exec()));
say("close", said($r, "PRESSURE.CLOSE", "pipe"));
say("get-closed", said($r, "PRESSURE.GET", "pipe"));
say("list", said($r, "PRESSURE.LIST"));
say("delete", said($r, "PRESSURE.DELETE", "pipe"));
say("get-deleted", said($r, "PRESSURE.GET", "pipe"));
