<?php
// The worker of pop_worker.py, with clients of PHP.
[, $client, $port, $queue, $pop, $timeout] = $argv;
const WAIT = 60;  // seconds

// Each client is an array of functions, by the names of the steps.
function phpredis(int $port, string $queue, string $pop, ?float $timeout): array
{
    $redis = new Redis();
    $connect = function () use ($redis, $port, $timeout) {
        if (!$redis->isConnected()) {
            $redis->connect('127.0.0.1', $port);
            if ($timeout !== null) $redis->setOption(Redis::OPT_READ_TIMEOUT, $timeout);
        }
        return $redis;
    };
    return [
        'pop' => fn () => $pop === 'poll' ? $connect()->sPop($queue) : ($connect()->blPop([$queue], WAIT)[1] ?? false),
        'work' => fn ($message) => $redis->ping() && $redis->rPush("$queue:done", $message),
        'ack' => fn () => $redis->rawCommand('PRESSURE.ACK', $queue),
        'close' => fn () => $redis->close(),
    ];
}

function predis(int $port, string $queue, string $pop, ?float $timeout): array
{
    require '/usr/share/php/Predis/Autoloader.php';
    Predis\Autoloader::register();
    $redis = new Predis\Client(['port' => $port] + ($timeout === null ? [] : ['read_write_timeout' => $timeout]));
    return [
        'pop' => fn () => $pop === 'poll' ? $redis->spop($queue) : ($redis->blpop($queue, WAIT)[1] ?? null),
        'work' => fn ($message) => $redis->ping() && $redis->rpush("$queue:done", $message),
        'ack' => fn () => $redis->executeRaw(['PRESSURE.ACK', $queue]),
        'quit' => fn () => $redis->quit(),
        'close' => fn () => $redis->disconnect(),
    ];
}

function memcached(int $port, string $queue, string $pop, ?float $timeout): array
{
    $memcached = new Memcached();
    if ($timeout !== null) $memcached->setOption(Memcached::OPT_POLL_TIMEOUT, (int) (1000 * $timeout));
    $memcached->setOption(Memcached::OPT_RETRY_TIMEOUT, 0);
    $keys = ['poll' => $queue, 'wait' => "$queue/t=" . WAIT . '000', 'open' => "$queue/close/open"];
    $memcached->addServer('127.0.0.1', $port);
    return [
        'pop' => function () use ($memcached, $keys, $pop) {
            $message = $memcached->get($keys[$pop]);
            if ($message === false && $memcached->getResultCode() !== Memcached::RES_NOTFOUND) {
                throw new Exception($memcached->getResultMessage());
            }
            return $message;
        },
        'work' => fn ($message) => $memcached->set("$queue:done", $message),
        'quit' => fn () => $memcached->quit(),
    ];
}

$clients = ['phpredis' => 'phpredis', 'Predis' => 'predis', 'php-memcached' => 'memcached'];
$steps = $clients[$client]((int) $port, $queue, $pop, $timeout === 'default' ? null : (float) $timeout);
$message = null;
while (($line = fgets(STDIN)) !== false) {
    $step = trim($line);
    if ($step === 'fail') throw new Exception('the work has failed');
    try {
        $answer = $step === 'work' ? $steps['work']($message) : $steps[$step]();
    } catch (Exception $error) {
        echo 'error ', get_class($error), ' ', $error->getMessage(), "\n";
        continue;
    }
    if ($step === 'pop') {
        $message = $answer;
        echo is_string($message) ? "got $message\n" : "none\n";
    } else {
        echo "$step\n";
    }
}
