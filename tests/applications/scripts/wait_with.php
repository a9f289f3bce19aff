<?php
// Waits for a message with a library of PHP: wait_with.php LIBRARY PORT. Prints how the wait ends.
[, $library, $port] = $argv;
$port = (int) $port;

function got($message): void
{
    echo 'got ', json_encode($message), "\n";
}

try {
    switch ($library) {
        case 'phpredis':
            $client = new Redis();
            $client->connect('127.0.0.1', $port);
            $client->setOption(Redis::OPT_READ_TIMEOUT, -1);
            got($client->blPop('mails', 0));
            break;
        case 'Predis':
            require '/usr/share/php/Predis/Autoloader.php';
            Predis\Autoloader::register();
            $client = new Predis\Client(['port' => $port, 'read_write_timeout' => -1]);
            got($client->blpop('mails', 0));
            break;
        case 'Pheanstalk':
            require 'Pheanstalk/autoload.php';
            $client = Pheanstalk\Pheanstalk::create('127.0.0.1', $port);
            got($client->watch('default')->reserve()->getData());
            break;
        case 'php-memcached':
            $client = new Memcached();
            $client->setOption(Memcached::OPT_POLL_TIMEOUT, 60000);
            $client->addServer('127.0.0.1', $port);
            got($client->get('mails/t=50000'));
            echo $client->getResultMessage(), "\n";
    }
} catch (Throwable $error) {
    // Pheanstalk connects again at once. Either error may come of a server that is just ending.
    echo str_replace('SocketException', 'ConnectionException', get_class($error)), "\n";
}
