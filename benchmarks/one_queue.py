"""SADD and SPOP per second on one queue, for the parts that do not compare numbers of queues."""

from dataclasses import replace

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Load
from benchmarks.redis_benchmark import RANDOM, requests_per_second
from benchmarks.subjects import Subject

COMMANDS = ("SADD", "SPOP")
_QUEUE = "bench:queue"


def add_and_pop(subject: Subject, load: Load) -> tuple[float, float]:
    """Return the SADDs per second into an empty set or queue, then the SPOPs per second of most messages."""
    pops = load.requests * 4 // 5
    with Client(subject.port) as client:
        for requests in (load.requests // 10, load.requests):  # the first is a warm-up
            client("DEL", _QUEUE)
            some = replace(load, requests=requests)
            adds_a_second = requests_per_second(subject, some, "SADD", _QUEUE, f"element:{RANDOM}")
        added = client("SCARD", _QUEUE)
        pops_a_second = requests_per_second(subject, replace(load, requests=pops), "SPOP", _QUEUE)
        popped = added - client("SCARD", _QUEUE)
        client("DEL", _QUEUE)
    # A few of the random messages are equal, so SADD adds them once.
    if added < load.requests * 0.99 or popped < pops:
        raise BenchmarkError(f"{subject.name} added {added} of {load.requests}, popped {popped} of {pops}")
    return adds_a_second, pops_a_second
