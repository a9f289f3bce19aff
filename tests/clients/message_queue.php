<?php
// The PHP example of MessageQueue's README, by phpredis.

$r = new Redis();

$r->connect("localhost", (int) $argv[1]);

for ($i = 0; $i < 10; $i++)
	$r->sadd("niki", "Item $i");

echo "Size: " . $r->scard("niki") . "\n";

while($x = $r->spop("niki"))
	echo "$x\n";
