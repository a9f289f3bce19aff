<?php
// Print the lines of values.txt, by PHP's Memcached, which uses libmemcached.

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value), "\n";
}

/** Return the value of a key, or null; Memcached returns false if there is none. */
function value(Memcached $m, string $key)
{
    $value = $m->get($key);
    return $m->getResultCode() === Memcached::RES_NOTFOUND ? null : $value;
}

/** Return the result of an increment or decrement, or null if the key does not exist. */
function counted(Memcached $m, $number)
{
    return $m->getResultCode() === Memcached::RES_NOTFOUND ? null : $number;
}

/** Return whether a key returns the value unchanged. */
function survives(Memcached $m, $value): bool
{
    return $m->set("own", $value) && $m->get("own") === $value;
}

/** Return the cas unique of a key. */
function unique(Memcached $m, string $key)
{
    return $m->get($key, null, Memcached::GET_EXTENDED)["cas"];
}

function connect(int $port): Memcached
{
    $m = new Memcached();
    $m->addServer("127.0.0.1", $port);
    return $m;
}

$m = connect((int) $argv[1]);
$other = connect((int) $argv[1]);

$versions = $m->getVersion();
say("version", preg_match('/^\d+\.\d+\.\d+$/', (string) reset($versions)) === 1);
say("set", [$m->set("letters", "a"), $m->set("letters", "b")]);
say("get", [value($other, "letters"), value($other, "nothing")]);
say("add", [$m->add("word", "x"), $m->add("word", "y")]);
say("replace", [$m->replace("word", "bc"), $m->replace("nothing", "x")]);
$m->set("word", "ab");
$m->setOption(Memcached::OPT_COMPRESSION, false); // append and prepend need uncompressed values
say("append", [$m->append("word", "cd"), value($other, "word")]);
say("prepend", [$m->prepend("word", ".."), value($other, "word")]);
say("append-to-nothing", [$m->append("nothing", "x"), value($m, "nothing")]);
$m->setOption(Memcached::OPT_COMPRESSION, true);
say("get-many", $m->getMulti(["letters", "nothing", "word"]));

// The flags tell a number, an array, and compressed data.
$values = [42, 1.5, true, ["a" => [1, 2], "b" => null], "", str_repeat("long ", 10000)];
say("own-values", array_map(fn($value) => survives($m, $value), $values));
$binary = implode("", array_map("chr", range(0, 255))) . "\r\nEND\r\nset q 0 0 1\r\nx\r\n\0 STORED\r\n";
$m->set("binary", $binary);
say("binary", [strlen($binary), $m->get("binary") === $binary]);
$large = random_bytes(500000);
$m->set("large", $large);
say("large", [strlen($large), $m->get("large") === $large]);

$m->set("number", 10);
say("incr", [$m->increment("number"), $m->increment("number")]);
say("decr", [$m->decrement("number", 2), $m->decrement("number", 100)]);
say("incr-nothing", [counted($m, $m->increment("nothing")), counted($m, $m->decrement("nothing"))]);
say("incr-text", $m->increment("letters") === false);

$m->set("cas", "first");
$changed = $m->cas(unique($m, "cas"), "cas", "second");
$unique = unique($m, "cas");
$other->set("cas", "second");
say("cas", [$changed, $m->cas($unique, "cas", "third"), $m->get("cas")]);
$m->set("touched", "touched", 2);
say("touch", [$m->touch("touched", 100), $m->touch("nothing", 100)]);
$m->set("soon", "soon", 1);
$m->set("later", "later", 2);
$m->set("lasting", "lasting", 100);
while ($m->get("soon") !== false || $m->get("later") !== false) {
    usleep(10000); // between checks
}
say("expiry", [value($m, "soon"), value($m, "lasting"), value($m, "touched")]);
say("delete", [$m->delete("letters"), $m->delete("letters"), value($m, "letters")]);
$m->setOption(Memcached::OPT_NOREPLY, true);
$m->set("quiet", "quiet");
$m->setOption(Memcached::OPT_NOREPLY, false);
say("noreply", value($m, "quiet"));
say("long-key", [$m->set(str_repeat("k", 250), "v"), value($m, str_repeat("k", 250))]);
$stats = $m->getStats();
$stats = reset($stats);
say("stats", $stats["cmd_set"] > 0 && $stats["get_misses"] > 0 && $stats["uptime"] >= 0);
say("flush", [$m->flush(), value($m, "word")]);
