<?php
// A connection that outlives its object, as under PHP-FPM, by Predis.

require "/usr/share/php/Predis/Autoloader.php";
Predis\Autoloader::register();

function connect(int $port): Predis\Client
{
    return new Predis\Client(["host" => "127.0.0.1", "port" => $port, "persistent" => true]);
}

$r = connect((int) $argv[1]);
$first = $r->executeRaw(["CLIENT", "ID"]);
echo "sadd ", $r->sadd("persistent", ["message"]), "\n";
unset($r);

$r = connect((int) $argv[1]);
echo "same connection ", json_encode($r->executeRaw(["CLIENT", "ID"]) === $first), "\n";
echo "spop ", $r->spop("persistent"), "\n";
