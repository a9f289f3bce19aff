<?php
// What `php artisan` of a Laravel application does with its queue, for the components of Laravel 8 in Debian:
// queue:work, and the application's own commands. Started in the folder of the application.
require 'Illuminate/Queue/autoload.php';
require 'Illuminate/Bus/autoload.php';
require 'Illuminate/Console/autoload.php';
require 'Illuminate/Events/autoload.php';
require 'Pheanstalk/autoload.php';

use Illuminate\Bus\Dispatcher;
use Illuminate\Console\Application as Artisan;
use Illuminate\Console\Command;
use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Connectors\BeanstalkdConnector;
use Illuminate\Queue\Console\WorkCommand;
use Illuminate\Queue\QueueManager;
use Illuminate\Queue\Worker;
use Illuminate\Support\Facades\Facade;
use Illuminate\Support\Fluent;
use Symfony\Component\Console\Output\ConsoleOutput;

spl_autoload_register(function ($class) {
    if (str_starts_with($class, 'App\\')) {
        include str_replace(['App\\', '\\'], ['app/', '/'], $class) . '.php';
    }
});

class Application extends Container
{
    public function isDownForMaintenance()
    {
        return false;
    }
}

// The component that keeps a cache is not in Debian.
class WorkWithoutCache extends WorkCommand
{
    public function __construct(Worker $worker)
    {
        Command::__construct();
        $this->worker = $worker;
    }

    protected function runWorker($connection, $queue)
    {
        return $this->worker->daemon($connection, $queue, $this->gatherWorkerOptions());
    }
}

class LogErrors implements ExceptionHandler
{
    public function report(Throwable $error)
    {
        error_log(get_class($error) . ": {$error->getMessage()}\n", 3, 'laravel.log');
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

$application = new Application();
Container::setInstance($application);
Facade::setFacadeApplication($application);
$events = new Illuminate\Events\Dispatcher($application);
$application->instance('events', $events);
$application->alias('events', Illuminate\Contracts\Events\Dispatcher::class);
$application->instance(Container::class, $application);
$application->alias(Container::class, Illuminate\Contracts\Container\Container::class);
$application->bind(Illuminate\Contracts\Bus\Dispatcher::class, Dispatcher::class);
$connections = eval('return [' . file_get_contents('config/queue.php') . '];');
$settings = ['queue.default' => 'beanstalkd'];
foreach ($connections as $name => $connection) {
    $settings["queue.connections.$name"] = $connection;
    $settings["queue.connections.$name.queue"] = $connection['queue'];
}
$application->instance('config', new Fluent($settings));
$manager = new QueueManager($application);
$manager->addConnector('beanstalkd', fn () => new BeanstalkdConnector());
$application->instance('queue', $manager);
$errors = new LogErrors();
$application->instance(ExceptionHandler::class, $errors);

$artisan = new Artisan($application, $events, '8');
$artisan->add(new WorkWithoutCache(new Worker($manager, $events, $errors, fn () => false)));
foreach (glob('app/Console/Commands/*.php') as $file) {
    $artisan->resolve('App\\Console\\Commands\\' . basename($file, '.php'));
}
exit($artisan->run(null, new ConsoleOutput()));
