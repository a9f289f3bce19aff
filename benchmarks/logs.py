"""Logs beside the streams of Redis; rings, and queues of other orders, beside FIFO queues."""

import re
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from benchmarks.client import Client, packed
from benchmarks.load import Clients, Dialogue, Share, Write, unexpected
from benchmarks.plan import Load, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Subject, ours, redis_server

_QUEUE, _GROUP = b"bench:log", b"g"
_BODY = 64
_AT_ONCE = 1_000
_CONSUMERS = 3
_RING = 1_000
_JOB = re.compile(rb"\*4\r\n:(\d+)\r\n\$%d\r\n\d{%d}\r\n:1\r\n" % (_BODY, _BODY))
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2")

Talk = Callable[[Share], Dialogue]


class _Step(NamedTuple):
    """One row: what is compared, the load, the dialogues of both columns, and what both queues are."""

    name: str
    load: Load
    talks: tuple[Talk, Talk]
    types: tuple[str, str] = ("LOG", "")
    is_filled: bool = False
    least: float = 0.5

    def __str__(self) -> str:
        return f"{self.name}, {self.load}"


def run(plan: Plan) -> list[Table]:
    """Measure logs beside streams, and then other queues beside FIFO queues."""
    loads = [Load(load.clients, load.pipeline, plan.reservations) for load in (plan.plain, plan.pipelined)]
    streams, orders = Samples(), Samples()
    steps = [step for load in loads for step in _stream_steps(load)] + [
        _group_step(Load(_CONSUMERS, size, plan.reservations)) for size in (1, 100)
    ]
    queue_steps = [step for load in loads for step in _order_steps(load)]
    with ours() as server, redis_server() as other:
        for _ in plan.each_round("logs"):
            for step in steps:
                _measure(streams, step, (("a log", server), ("a stream of Redis", other)))
            for step in queue_steps:
                _measure(orders, step, (("the queue", server), ("a FIFO queue", server)))
    return [
        _table("logs, streams", plan, steps, streams, ("a log", "a stream of Redis")),
        _table("logs, orders", plan, queue_steps, orders, ("the queue", "a FIFO queue")),
    ]


def _table(name: str, plan: Plan, steps: list[_Step], samples: Samples, columns: tuple[str, str]) -> Table:
    rows = []
    for step in steps:
        ratio = samples.ratio(str(step), *columns)
        values = (*(samples.median(str(step), column) for column in columns), ratio)
        rows.append(Row(str(step), values, Target("x", ratio, at_least=step.least), samples.of(str(step))))
    return Table(name, f"messages per second, median of {plan.rounds} rounds", (*columns, "ratio"), rows)


def _measure(samples: Samples, step: _Step, subjects: tuple[tuple[str, Subject], ...]) -> None:
    for (column, subject), type_, talk in zip(subjects, step.types, step.talks, strict=True):
        _prepare(subject, type_, step.load.requests if step.is_filled else 0)
        share = Share(step.load.requests, step.load.pipeline)
        with Clients(("127.0.0.1", subject.port), step.load.clients) as clients:
            taken = clients.converse(talk(share) for _ in range(step.load.clients))
        samples.add(str(step), column, step.load.requests / taken.seconds)


def _prepare(subject: Subject, type_: str, messages: int) -> None:
    """Make the queue, or a stream if it has no type, and a group if it is filled."""
    with Client(subject.port) as client:
        client("DEL", _QUEUE)
        if type_:
            client("PRESSURE.CREATE", _QUEUE, *(["TYPE"] if " " not in type_ else []), *type_.split())
        elif messages:
            client("XGROUP", "CREATE", _QUEUE, _GROUP, "0", "MKSTREAM")
        if type_ == "LOG" and messages:
            client("PRESSURE.GROUP", "CREATE", _QUEUE, _GROUP)
        for first in range(0, messages, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, messages))
            if type_:
                client("RPUSH", _QUEUE, *map(_body, numbers))
                continue
            for number in numbers:
                client.send("XADD", _QUEUE, f"{number + 1}-0", "m", _body(number))
            for _ in numbers:
                client.reply()


def _body(number: int) -> bytes:
    return b"%0*d" % (_BODY, number)


def _repeat(command: Callable[[int], bytes], lines: int, begin: bytes) -> Talk:
    """Return dialogues of commands, each with a number of its own; replies begin with `begin`."""
    numbers = count()

    def talk(share: Share) -> Dialogue:
        while size := share.take():
            replies = yield Write(b"".join([command(next(numbers)) for _ in range(size)]), lines * size)
            if not replies.startswith(begin):
                raise unexpected(replies)

    return talk


def _stream_steps(load: Load) -> list[_Step]:
    add = _repeat(lambda number: packed("XADD", _QUEUE, "*", "m", _body(number)), 2, b"$")
    put = _repeat(lambda number: packed("PRESSURE.PUT", _QUEUE, _body(number), "OFFSET"), 1, b":")
    once = _repeat(lambda number: packed("PRESSURE.PUT", _QUEUE, _body(number), "TXN", number), 1, b":1")
    push = _repeat(lambda number: packed("RPUSH", _QUEUE, _body(number)), 1, b":")
    most = load.requests
    at = _repeat(lambda number: packed("PRESSURE.AT", _QUEUE, number * 7919 % most), 2, b"$")
    entry = [b"%d-0" % (number * 7919 % most + 1) for number in range(most)]
    look = _repeat(
        lambda number: packed("XRANGE", _QUEUE, entry[number % most], entry[number % most]), 9, b"*1"
    )
    return [
        _Step("RPUSH beside XADD", load, (push, add)),
        _Step("PRESSURE.PUT beside XADD", load, (put, add)),
        _Step("PRESSURE.PUT with TXN beside XADD", load, (once, add)),
        _Step("PRESSURE.AT beside XRANGE", load, (at, look), is_filled=True),
    ]


def _group_step(load: Load) -> _Step:
    queue, size = _QUEUE + b"+" + _GROUP, load.pipeline

    def read(share: Share) -> Dialogue:
        while share.take():
            replies = yield Write(
                packed("PRESSURE.READ", _QUEUE, "GROUP", _GROUP, "consumer", "COUNT", size), 1 + 6 * size
            )
            jobs = _JOB.findall(replies)
            if len(jobs) != size:
                raise unexpected(replies)
            yield Write(packed("PRESSURE.ACK", queue, *jobs, "TOKEN", "consumer"), 1)

    def read_stream(share: Share) -> Dialogue:
        while share.take():
            replies = yield Write(
                packed("XREADGROUP", "GROUP", _GROUP, "consumer", "COUNT", size, "STREAMS", _QUEUE, ">"),
                5 + 8 * size,
            )
            entries = _ENTRY.findall(replies)
            if len(entries) != size:
                raise unexpected(replies)
            yield Write(packed("XACK", _QUEUE, _GROUP, *entries), 1)

    return _Step("read and acknowledge", load, (read, read_stream), is_filled=True)


def _order_steps(load: Load) -> list[_Step]:
    add = _repeat(lambda number: packed("SADD", _QUEUE, _body(number)), 1, b":1")
    push = _repeat(lambda number: packed("RPUSH", _QUEUE, _body(number)), 1, b":")
    pop = _repeat(lambda _: packed("SPOP", _QUEUE), 2, b"$")
    ring = f"BOUND {_RING} OVERFLOW OVERWRITE"
    return [
        _Step("RPUSH into a ring", load, (push, push), (ring, "FIFO"), least=0.9),
        _Step("SADD, random", load, (add, add), ("RANDOM", "FIFO"), least=0.8),
        _Step("SPOP, random", load, (pop, pop), ("RANDOM", "FIFO"), is_filled=True, least=0.8),
        _Step("SPOP, lifo", load, (pop, pop), ("LIFO", "FIFO"), is_filled=True, least=0.8),
    ]
