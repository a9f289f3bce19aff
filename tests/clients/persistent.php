<?php
// A connection that outlives its object, as under PHP-FPM, by phpredis.

function connect(int $port): Redis
{
    $r = new Redis();
    $r->pconnect("127.0.0.1", $port, 1.0, "queue");
    return $r;
}

$r = connect((int) $argv[1]);
$first = $r->rawCommand("CLIENT", "ID");
echo "sadd ", $r->sAdd("persistent", "message"), "\n";
unset($r);

$r = connect((int) $argv[1]);
echo "same connection ", json_encode($r->rawCommand("CLIENT", "ID") === $first), "\n";
echo "spop ", $r->sPop("persistent"), "\n";
