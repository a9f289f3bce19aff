<?php
// Sends and consumes messages with Symfony Messenger, as `bin/console messenger:consume` does.
// Usage: messenger.php DSN send MAIL...
//        messenger.php DSN consume COUNT: ends after that many messages
require __DIR__ . '/work.php';
require 'Symfony/Component/Messenger/autoload.php';
require 'Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';
require 'Symfony/Component/EventDispatcher/autoload.php';
require 'Pheanstalk/autoload.php';

use Psr\Container\ContainerInterface;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Beanstalkd\Transport\BeanstalkdTransportFactory;
use Symfony\Component\Messenger\Bridge\Redis\Transport\RedisTransportFactory;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\EventListener\StopWorkerOnMessageLimitListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;

class Mail
{
    public string $to;

    public function __construct(string $to)
    {
        $this->to = $to;
    }
}

class Named implements ContainerInterface
{
    private object $service;

    public function __construct(object $service)
    {
        $this->service = $service;
    }

    public function get(string $id)
    {
        return $this->service;
    }

    public function has(string $id): bool
    {
        return $id === 'async';
    }
}

$attempts = [];
$handler = function (Mail $mail) use (&$attempts): void {
    $attempt = $attempts[$mail->to] = ($attempts[$mail->to] ?? 0) + 1;
    echo "begin $mail->to\n";
    if ($mail->to === 'hang' && getenv('HANG')) {
        sleep(600);
    }
    if ($mail->to === 'raise once' && $attempt === 1) {
        throw new RuntimeException('no route to host');
    }
    finish_work($mail->to);
};

[, $dsn, $action] = $argv;
try {
    $factory = strpos($dsn, 'redis:') === 0 ? new RedisTransportFactory() : new BeanstalkdTransportFactory();
    $transport = $factory->createTransport($dsn, [], new PhpSerializer());
    if ($action === 'send') {
        foreach (array_slice($argv, 3) as $to) {
            $transport->send(new Envelope(new Mail($to)));
            echo "queued $to\n";
        }
        exit(0);
    }
    $bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([Mail::class => [$handler]]))]);
    $events = new EventDispatcher();
    $events->addSubscriber(new StopWorkerOnMessageLimitListener((int) $argv[3]));
    $retries = new MultiplierRetryStrategy(3, 1000);
    $events->addSubscriber(new SendFailedMessageForRetryListener(new Named($transport), new Named($retries)));
    (new Worker(['async' => $transport], $bus, $events))->run(['sleep' => 100000]);
} catch (Throwable $error) {
    echo get_class($error), ': ', $error->getMessage(), "\n";
    exit(1);
}
