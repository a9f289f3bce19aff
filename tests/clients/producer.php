<?php
// Puts numbered messages on the server whose address is in a file, until the file says `stop`.
[, $file] = $argv;
$address = '';
for ($number = 0; ($now = trim(file_get_contents($file))) !== 'stop'; $number++) {
    if ($now !== $address) {
        [$host, $port] = explode(':', $address = $now);
        $redis = new Redis();
        $redis->connect($host, (int) $port);
    }
    if ($redis->sAdd('work', "message $number") !== 1) {
        fwrite(STDERR, "message $number: " . $redis->getLastError() . "\n");
    }
    usleep(1000);
}
echo $number, "\n";
