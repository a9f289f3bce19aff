"""A bounded queue as a pipe: one connection puts as fast as it can, another takes slowly and then fast.

Runs once, because it takes long. Checks the order of the messages and the bound.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Plan
from benchmarks.results import Row, Table, Target
from benchmarks.subjects import ours

_QUEUE = "pipe"
_BOUND = 5
_SLOWLY = 500  # messages taken one by one, each while the producer waits for room
_AT_ONCE = 100


def run(plan: Plan) -> list[Table]:
    """Measure the rates. Raise BenchmarkError if a message is lost, duplicated or out of order."""
    count = plan.pipe_messages
    with (
        ours() as server,
        Client(server.port) as producer,
        Client(server.port) as consumer,
        Client(server.port) as looking,
        ThreadPoolExecutor(2) as threads,
    ):
        looking("PRESSURE.CREATE", _QUEUE, "BOUND", _BOUND)
        sending = threads.submit(_send, producer, count)
        lengths = threads.submit(_replies, producer, count)
        began = time.perf_counter()
        received = [_take_when_full(consumer, looking) for _ in range(_SLOWLY)]
        between = time.perf_counter()
        while len(received) < count:
            received += consumer("BLMPOP", 0, 1, _QUEUE, "LEFT", "COUNT", _AT_ONCE)[1]
        ended = time.perf_counter()
        sending.result()
        most = max(lengths.result())
        left = looking("LLEN", _QUEUE)
    if received != [b"%d" % number for number in range(count)] or left:
        raise BenchmarkError("messages were lost, duplicated or out of order")
    slow, fast = _SLOWLY / (between - began), (count - _SLOWLY) / (ended - between)
    kept = Target("queued", most, at_most=_BOUND)
    return [
        Table(
            "pipe",
            f"{count:,} messages through a bound of {_BOUND}, in order; the last line is the greatest length",
            ("ours",),
            [
                Row("messages a second, slowly", (slow,), None, {"ours": [slow]}),
                Row("messages a second, fast", (fast,), None, {"ours": [fast]}),
                Row("most queued", (most,), kept, {"ours": [most]}),
            ],
        )
    ]


def _send(producer: Client, count: int) -> None:
    for number in range(count):
        producer.send("LPUSH", _QUEUE, number)


def _replies(producer: Client, count: int) -> list[int]:
    """Return the length of the queue after each put, as counted by Redis."""
    return [producer.reply() for _ in range(count)]


def _take_when_full(consumer: Client, looking: Client) -> bytes:
    while not re.search(rb"blocked_clients:1\r", looking("INFO", "clients")):
        pass
    message: bytes = consumer("BLPOP", _QUEUE, 0)[1]
    return message
