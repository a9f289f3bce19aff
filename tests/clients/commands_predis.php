<?php
// Print the lines of tests/clients/commands.txt, by Predis.

require "/usr/share/php/Predis/Autoloader.php";
Predis\Autoloader::register();

use Predis\Collection\Iterator\Keyspace;
use Predis\Collection\Iterator\SetKey;

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value), "\n";
}

function sorted(array $values): array
{
    sort($values);
    return $values;
}

/** Return the error of a command, without its code. */
function refusal(callable $command): string
{
    try {
        $command();
    } catch (Predis\Response\ServerException $error) {
        return preg_replace("/^ERR /", "", $error->getMessage());
    }
    return "";
}

$r = new Predis\Client(["host" => "127.0.0.1", "port" => (int) $argv[1]]);

say("ping", $r->ping()->getPayload() === "PONG");
say("sadd", $r->sadd("letters", ["a"]));
say("sadd-several", $r->sadd("letters", ["a", "b", "c", "d"]));
say("scard", $r->scard("letters"));
say("sismember", [$r->sismember("letters", "b"), $r->sismember("letters", "x")]);
say("smembers", sorted($r->smembers("letters")));
say("srem", $r->srem("letters", ["b", "x"]));
say("exists", $r->exists("letters"));
say("keys", $r->keys("*"));
say("scan", iterator_to_array(new Keyspace($r), false));
say("spop", $r->spop("letters"));
say("spop-count", sorted($r->spop("letters", 5)));
say("spop-empty", $r->spop("letters"));
say("spop-count-empty", $r->spop("letters", 5));
say("lpush", $r->lpush("numbers", ["1", "2", "2"]));
say("rpop", array_map(fn() => $r->rpop("numbers"), range(1, 4)));
say("del", $r->del(["letters", "numbers", "nothing"]));

$members = array_map(fn($i) => "member-$i", range(0, 249));
$r->sadd("many", $members);
$found = iterator_to_array(new SetKey($r, "many", null, 20), false);
say("sscan", [count($found), sorted($found) === sorted($members)]);
say("sscan-match", iterator_to_array(new SetKey($r, "many", "*-249", 20), false));
$r->del("many");

$binary = implode("", array_map("chr", range(0, 255))) . "\r\n$3\r\n*1\r\n\0\r\n";
$r->sadd("bin\r\nary\0", [$binary]);
$there = $r->sismember("bin\r\nary\0", $binary);
say("binary", [strlen($binary), $r->spop("bin\r\nary\0") === $binary, $there]);
$large = random_bytes(1 << 20);
$r->sadd("large", [$large]);
say("large", [strlen($large), $r->spop("large") === $large, $r->spop("large")]);

$pipe = $r->pipeline();
$pipe->sadd("pipe", ["x"])->sadd("pipe", ["y"])->sadd("pipe", ["x"])->lpush("pipe", ["z"]);
$pipe->spop("pipe")->spop("pipe")->spop("pipe")->spop("pipe");
say("pipeline", $pipe->execute());

$r->sadd("here", ["message"]);
$r->select(1);
$before = $r->exists("here");
$r->sadd("there", ["message"]);
$put = $r->scard("there");
$deleted = $r->del(["there"]);
$r->select(0);
say("select", [$before, $put, $deleted, $r->exists("there")]);

say("auth", refusal(fn() => $r->auth("secret")));
say("wrong-arity", refusal(fn() => $r->sadd("letters", [])));
