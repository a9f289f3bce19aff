<?php
// Pushes and works jobs with Laravel's queue component, as `artisan queue:work` does.
// Usage: laravel.php CONNECTION PORT push MAIL...
//        laravel.php CONNECTION PORT work [OPTION=VALUE...]: options of queue:work, in its spelling
require __DIR__ . '/work.php';
require 'Illuminate/Queue/autoload.php';
require 'Illuminate/Bus/autoload.php';
require 'Illuminate/Events/autoload.php';
require 'Illuminate/Redis/autoload.php';
require 'Pheanstalk/autoload.php';
require '/usr/share/php/Predis/Autoloader.php';
Predis\Autoloader::register();

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Redis\RedisManager;

class SendMail implements ShouldQueue
{
    use InteractsWithQueue, Queueable;

    private string $mail;

    public function __construct(string $mail)
    {
        $this->mail = $mail;
    }

    public function handle(): void
    {
        echo "begin $this->mail, attempt {$this->attempts()}\n";
        if ($this->mail === 'hang once' && $this->attempts() === 1) {
            sleep(600);
        }
        if ($this->mail === 'raise once' && $this->attempts() === 1) {
            throw new RuntimeException('no route to host');
        }
        if ($this->mail === 'raise') {
            throw new RuntimeException('no route to host');
        }
        finish_work($this->mail);
    }

    public function failed(Throwable $error): void
    {
        echo "failed $this->mail: {$error->getMessage()}\n";
    }
}

class PrintErrors implements ExceptionHandler
{
    public function report(Throwable $error)
    {
        echo get_class($error), ': ', $error->getMessage(), "\n";
    }

    public function shouldReport(Throwable $error)
    {
        return true;
    }

    public function render($request, Throwable $error)
    {
        throw $error;
    }

    public function renderForConsole($output, Throwable $error)
    {
        throw $error;
    }
}

[, $connection, $port, $action] = $argv;
$arguments = array_slice($argv, 4);

$capsule = new Manager();
$container = $capsule->getContainer();
Illuminate\Container\Container::setInstance($container);
$container->instance('events', new Illuminate\Events\Dispatcher($container));
$container->alias('events', Illuminate\Contracts\Events\Dispatcher::class);
$container->instance(ExceptionHandler::class, new PrintErrors());
$container->bind(Illuminate\Contracts\Bus\Dispatcher::class, Illuminate\Bus\Dispatcher::class);
$container->bind(Illuminate\Contracts\Container\Container::class, fn () => $container);
$server = ['host' => '127.0.0.1', 'port' => (int) $port, 'database' => 0];
$container->bind('redis', fn () => new RedisManager($container, $connection, ['default' => $server]));
$connector = $connection === 'beanstalkd' ? $server : ['connection' => 'default'];
$capsule->addConnection($connector + [
    'driver' => $connection === 'beanstalkd' ? 'beanstalkd' : 'redis',
    'queue' => 'default',
    'retry_after' => (int) (getenv('RETRY_AFTER') ?: 90),
    'block_for' => (int) (getenv('BLOCK_FOR') ?: 0),
]);
if ($connection !== 'beanstalkd') {
    $capsule->getQueueManager()->addConnector(
        'redis',
        fn () => new Illuminate\Queue\Connectors\RedisConnector($container['redis'])
    );
}

try {
    if ($action === 'bulk') {
        $capsule->getConnection()->bulk(array_map(fn ($mail) => new SendMail($mail), $arguments));
        echo "pushed all\n";
    } elseif ($action === 'later') {
        $capsule->getConnection()->later(1, new SendMail($arguments[0]));
        echo "pushed $arguments[0]\n";
    } elseif ($action === 'push') {
        foreach ($arguments as $mail) {
            $capsule->getConnection()->push(new SendMail($mail));
            echo "pushed $mail\n";
        }
    } else {
        $options = new WorkerOptions();
        $options->sleep = 0.1;
        foreach ($arguments as $argument) {
            [$name, $value] = explode('=', $argument);
            $options->$name = (int) $value;
        }
        $worker = new Worker(
            $capsule->getQueueManager(),
            $container['events'],
            $container[ExceptionHandler::class],
            fn () => false
        );
        exit($worker->daemon('default', 'default', $options));
    }
} catch (Throwable $error) {
    echo get_class($error), ': ', $error->getMessage(), "\n";
    exit(1);
}
