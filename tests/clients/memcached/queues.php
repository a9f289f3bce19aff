<?php
// Print the lines of queues.txt, by PHP's Memcached, which uses libmemcached.

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value), "\n";
}

/** Return the oldest message, or null; Memcached returns false if there is none. */
function take(Memcached $m, string $queue)
{
    $value = $m->get($queue);
    return $value === false ? null : $value;
}

/** Return whether a queue returns the value unchanged. */
function survives(Memcached $m, $value): bool
{
    return $m->set("own", $value) && $m->get("own") === $value;
}

/** Return the server's last error. */
function refusal(Memcached $m): string
{
    preg_match("/SERVER ERROR, (.*),  host: /", (string) $m->getLastErrorMessage(), $found);
    return $found[1] ?? "";
}

$m = new Memcached();
$m->addServer("127.0.0.1", (int) $argv[1]);

$versions = $m->getVersion();
say("version", preg_match('/^\d+\.\d+\.\d+$/', (string) reset($versions)) === 1);
say("set", array_map(fn($message) => $m->set("letters", $message), ["a", "b", "a"]));
say("get", array_map(fn() => take($m, "letters"), range(1, 4)));
say("add", [$m->add("letters", "x"), $m->add("letters", "x")]);
$m->set("numbers", "y");
say("get-many", $m->getMulti(["letters", "nothing", "numbers"]));
$m->set("letters", "m");
say("gets", $m->get("letters", null, Memcached::GET_EXTENDED)["value"]);
$m->setOption(Memcached::OPT_NOREPLY, true);
$m->set("letters", "quiet");
$m->setOption(Memcached::OPT_NOREPLY, false);
say("noreply", [take($m, "letters")]);

// The flags tell a number, an array, and compressed data.
$values = [42, 1.5, true, ["a" => [1, 2], "b" => null], "", str_repeat("long ", 10000)];
say("own-values", array_map(fn($value) => survives($m, $value), $values));
$binary = implode("", array_map("chr", range(0, 255))) . "\r\nEND\r\nset q 0 0 1\r\nx\r\n\0 STORED\r\n";
$m->set("binary", $binary);
say("binary", [strlen($binary), $m->get("binary") === $binary]);
$large = random_bytes(500000);
$m->set("large", $large);
say("large", [strlen($large), $m->get("large") === $large]);
say("delete", [$m->delete("large"), $m->delete("large")]);
$m->setOption(Memcached::OPT_COMPRESSION, false);
say("refused", [$m->increment("q"), $m->append("q", "x"), $m->replace("q", "x"), $m->touch("q", 10)]);

$m->set("expiry", "soon", 1);
$m->set("expiry", "lasting", 100);
while ($m->get("expiry/peek") === "soon") {
    usleep(10000); // between checks
}
say("expiry", [take($m, "expiry"), take($m, "expiry")]);
$began = microtime(true);
say("timeout", [take($m, "nothing/t=200"), microtime(true) - $began > 0.19]);

$m->set("work", "one");
$m->set("work", "two");
say("open", [take($m, "work/open"), take($m, "work/abort"), take($m, "work/open"), take($m, "work/open")]);
$m->get("work/abort");
say("peek", [take($m, "work/peek"), take($m, "work/peek")]);
say("close-open", array_map(fn($key) => take($m, $key), ["work/open", "work/close/open", "work/close", "work"]));

$m->setMulti(["counted" => "x"]);
$m->set("counted", "y");
$m->set("counted", "z");
$m->get("counted");
$stats = $m->getStats();
$stats = reset($stats);
say("stats", [$stats["queue_counted_items"], $stats["queue_counted_total_items"]]);

say("full", [$m->set("full", "m"), refusal($m)]);
say("closed", [$m->set("closed", "m"), refusal($m)]);
say("ended", take($m, "closed/t=100000"));
say("after", [$m->set("letters", "m"), take($m, "letters")]);
