<?php
// Print the lines of jobs.txt, by Pheanstalk.

use Pheanstalk\Exception;
use Pheanstalk\Job;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

require "Pheanstalk/autoload.php";

function say(string $name, $value): void
{
    echo $name, " ", json_encode($value, JSON_UNESCAPED_SLASHES), "\n";
}

/** Return the message of a job, or null if there is no job. */
function message(?Job $job): ?string
{
    return $job === null ? null : $job->getData();
}

/** Return the reply for which the call throws an exception. */
function refusal(callable $call): string
{
    try {
        $call();
    } catch (Exception $exception) {
        return ["JOB_TOO_BIG" => "JobTooBig", "NOT_FOUND" => "NotFound"][explode(":", $exception->getMessage())[0]]
            ?? ($exception instanceof Exception\JobNotFoundException ? "NotFound" : "JobTooBig");
    }
    return "";
}

$p = Pheanstalk::create("127.0.0.1", (int) $argv[1]);

$jobs = array_map(fn($job) => $p->put($job[0], $job[1])->getId(), [["c", 9], ["a", 1], ["d", 9], ["b", 4]]);
say("put", $jobs);
$jobs = array_map(fn() => $p->reserve(), range(1, 4));
say("reserve", array_map(fn($job) => [$job->getId(), $job->getData()], $jobs));
array_map(fn($job) => $p->delete($job), $jobs);
say("nothing", $p->reserveWithTimeout(0));
$texts = ["", "\r\n", "delete 1\r\n", "é", str_repeat("x", 65535)];
array_map(fn($text) => $p->put($text, 0), $texts);
$jobs = array_map(fn() => $p->reserve(), $texts);
say("messages", array_map(fn($job, $text) => $job->getData() === $text, $jobs, $texts));
array_map(fn($job) => $p->delete($job), $jobs);
say("too-big", refusal(fn() => $p->put(str_repeat("x", 65536), 0)));

$p->useTube("work")->watch("work")->ignore("default");
[$first, $second] = [$p->put("one", 5), $p->put("two", 5)];
$job = $p->reserve();
$p->touch($job);
$p->release($job, 9);
say("release", [message($p->peekReady()), (int) $p->statsJob($first)["pri"]]);
$p->bury($p->reserve(), 3);
say("bury", [message($p->peekBuried()), $p->statsJob($second)["state"]]);
say("kick", [$p->kick(10), $p->kick(10), message($p->peekReady())]);
$job = $p->reserve();
$p->bury($job, 3);
$p->kickJob($job);
$job = $p->reserve();
$p->release($job, 0, 100);
say("delay", [message($p->peekDelayed()), (int) $p->statsJob($job)["delay"]]);
$stats = $p->statsJob($job);
$names = ["reserves", "releases", "buries", "kicks", "timeouts"];
say("counts", array_map(fn($name) => (int) $stats[$name], $names));
$p->delete($first);
$p->delete($second);
$p->put("soon", 0, 1);
$job = $p->reserveWithTimeout(10);
say("wait", message($job));
$p->delete($job);
say("unknown", refusal(fn() => $p->delete(new JobId(123456789))));

$p->watch("other")->useTube("other")->put("later", 2000);
$p->useTube("work")->put("first", 1);
say("watched", array_map(fn() => message($p->reserveWithTimeout(5)), [1, 2]));
$tubes = $p->listTubes();
sort($tubes);
say("tubes", $tubes);
$stats = $p->statsTube("work");
$names = ["current-jobs-urgent", "current-jobs-reserved", "total-jobs"];
say("stats-tube", [$stats["name"], ...array_map(fn($name) => (int) $stats[$name], $names)]);
$p->pauseTube("work", 1);
$p->put("after the pause", 1);
say("paused", $p->reserveWithTimeout(0));
say("resumed", message($p->reserveWithTimeout(10)));
$stats = $p->stats();
$names = ["current-jobs-reserved", "current-jobs-ready", "max-job-size"];
say("stats", array_map(fn($name) => (int) $stats[$name], $names));
