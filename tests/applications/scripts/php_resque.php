<?php
// The commands that php-resque 1.3 sends, in the order of its source (lib/Resque.php, Resque/Job.php,
// Resque/Job/Status.php, Resque/Worker.php): Debian does not have it.
// Usage: php_resque.php PORT enqueue | enqueue-tracked | work
[, $port, $action] = $argv;
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $port);
try {
    if ($action === 'work') {
        // Worker::startup(): pruneDeadWorkers(), registerWorker()
        $redis->sMembers('resque:workers');
        $redis->sAdd('resque:workers', 'web-1:17:default');
        $redis->set('resque:worker:web-1:17:default:started', date('c'));
        $job = $redis->lPop('resque:queue:default');
        echo "working $job\n";
        exit(0);
    }
    $redis->sAdd('resque:queues', 'default');
    $redis->rPush('resque:queue:default', '{"class":"Mail","args":[],"id":"17"}');
    if ($action === 'enqueue-tracked') {
        $redis->set('resque:job:17:status', '{"status":1}');
    }
    echo "enqueued 17\n";
} catch (RedisException $error) {
    echo get_class($error), ': ', $error->getMessage(), "\n";
    exit(1);
}
