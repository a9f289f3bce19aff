"""Print the lines of jobs.txt: `jobs.py PORT greenstalk|pystalk|beanstalkc`."""

import json
import sys
from typing import Any

from tests.clients.beanstalk.python_clients import CLIENTS, AnyClient, Job


def say(name: str, value: Any) -> None:
    print(name, json.dumps(value, separators=(",", ":")))


def taken(client: AnyClient, timeout: int = 5) -> Job:
    job = client.reserve(timeout)
    assert job is not None
    return job


def puts(client: AnyClient) -> None:
    say("put", [client.put(*job) for job in (("c", 9), ("a", 1), ("d", 9), ("b", 4))])
    jobs = [taken(client) for _ in range(4)]
    say("reserve", jobs)
    for job in jobs:
        client.delete(job[0])
    say("nothing", client.reserve(0))
    texts = ["", "\r\n", "delete 1\r\n", "é", "x" * 65535]
    for text in texts:
        client.put(text, 0)
    jobs = [taken(client) for _ in texts]
    say("messages", [job[1] == text for job, text in zip(jobs, texts, strict=True)])
    for job in jobs:
        client.delete(job[0])
    say("too-big", client.refusal(lambda: client.put("x" * 65536, 0)))


def lives(client: AnyClient) -> None:
    client.use("work")
    client.watch("work")
    client.ignore("default")
    first, second = client.put("one", 5), client.put("two", 5)
    job = taken(client)
    client.touch(job)
    client.release(job, 9)
    say("release", [client.peek("ready")[1], client.stats_job(first)["pri"]])
    job = taken(client)
    client.bury(job, 3)
    say("bury", [client.peek("buried")[1], client.stats_job(second)["state"]])
    say("kick", [client.kick(10), client.kick(10), client.peek("ready")[1]])
    job = taken(client)
    client.bury(job, 3)
    client.kick_job(job[0])
    job = taken(client)
    client.release(job, 0, delay=100)
    say("delay", [client.peek("delayed")[1], client.stats_job(job[0])["delay"]])
    stats = client.stats_job(job[0])
    say("counts", [stats[name] for name in ("reserves", "releases", "buries", "kicks", "timeouts")])
    for number in (first, second):
        client.delete(number)
    client.put("soon", 0, delay=1)
    job = taken(client, 10)
    say("wait", job[1])
    client.delete(job[0])
    say("unknown", client.refusal(lambda: client.delete(123456789)))


def tubes(client: AnyClient) -> None:
    client.watch("other")
    client.use("other")
    client.put("later", 2000)
    client.use("work")
    client.put("first", 1)
    say("watched", [taken(client)[1] for _ in range(2)])
    say("tubes", sorted(client.tubes()))
    stats = client.stats_tube("work")
    names = ("name", "current-jobs-urgent", "current-jobs-reserved", "total-jobs")
    say("stats-tube", [stats[name] for name in names])
    client.pause_tube("work", 1)
    client.put("after the pause", 1)
    say("paused", client.reserve(0))
    say("resumed", taken(client, 10)[1])
    stats = client.stats()
    say("stats", [stats[name] for name in ("current-jobs-reserved", "current-jobs-ready", "max-job-size")])


def main(port: int, name: str) -> None:
    client = CLIENTS[name](port)
    puts(client)
    lives(client)
    tubes(client)
    client.close()


main(int(sys.argv[1]), sys.argv[2])
