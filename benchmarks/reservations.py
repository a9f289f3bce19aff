"""Jobs of Redis clients: PRESSURE.RESERVE and PRESSURE.ACK, compared with SPOP; and the memory of a job."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.beanstalk_load import BODY, TUBE, producers, workers
from benchmarks.client import Client, packed
from benchmarks.crowd import resident_kib
from benchmarks.load import Clients, Dialogue, Share, Write, unexpected
from benchmarks.plan import Case, Load, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, Subject, beanstalk_address, beanstalkd, ours

_QUEUE = TUBE % 0
_LISTEN = ("--listen", "beanstalk://127.0.0.1:0")
_AT_ONCE = 1_000
_LEAST_RATIO = 0.4
_MAX_BYTES = 350
_WAITING, _RESERVED = _STATES = ("waiting", "reserved")
# Seconds in which the server deletes its records, and the backend frees memory, on their timers.
_SETTLES = 3.0
_MESSAGE = rb"\$%d\r\n\d{%d}\r\n" % (BODY, BODY)
_POPPED = re.compile(_MESSAGE)
_JOB = re.compile(rb"\*4\r\n\$%d\r\n%b\r\n:(\d+)\r\n%b:1\r\n" % (len(_QUEUE), _QUEUE, _MESSAGE))


def run(plan: Plan) -> list[Table]:
    """Measure reservations, and then the memory of jobs."""
    return [_reservations(plan), _memory(plan)]


def _reservations(plan: Plan) -> Table:
    loads = [replace(load, requests=plan.reservations) for load in (plan.plain, plan.pipelined)]
    samples = Samples()
    with ours(*_LISTEN) as server:
        for _ in plan.each_round("reservations"):
            for kind, fill in _FILLS.items():
                for load in loads:
                    for column, dialogue in _DIALOGUES.items():
                        fill(server, load.requests)
                        samples.add((kind, load), column, _rate(server, load, dialogue))
                with Client(server.port) as client:
                    client("DEL", _QUEUE)
    return Table(
        "beanstalk, reservations",
        f"messages per second over RESP, median of {plan.rounds} rounds",
        (*_DIALOGUES, "ratio"),
        [_reservations_row(samples, kind, load) for kind in _FILLS for load in loads],
    )


def _reservations_row(samples: Samples, kind: str, load: Load) -> Row:
    of = (kind, load)
    ratio = samples.ratio(of, *_DIALOGUES)
    rates = [samples.median(of, column) for column in _DIALOGUES]
    target = Target("x SPOP", ratio, at_least=_LEAST_RATIO)
    return Row(f"{kind}, {load}", (*rates, ratio), target, samples.of(of))


def _rate(server: Server, load: Load, dialogue: Callable[[Share], Dialogue]) -> float:
    share = Share(load.requests, load.pipeline)
    with Clients(("127.0.0.1", server.port), load.clients) as clients:
        return load.requests / clients.converse(dialogue(share) for _ in range(load.clients)).seconds


def _reserve_and_acknowledge(share: Share) -> Dialogue:
    reserve = packed("PRESSURE.RESERVE", _QUEUE)
    while count := share.take():
        replies = yield Write(reserve * count, 7 * count)
        ids = _JOB.findall(replies)
        if len(ids) != count:
            raise unexpected(replies)
        replies = yield Write(b"".join([packed("PRESSURE.ACK", _QUEUE, job) for job in ids]), count)
        if replies != b":1\r\n" * count:
            raise unexpected(replies)


def _pop(share: Share) -> Dialogue:
    pop = packed("SPOP", _QUEUE)
    while count := share.take():
        replies = yield Write(pop * count, 2 * count)
        if len(_POPPED.findall(replies)) != count:
            raise unexpected(replies)


_DIALOGUES = {"RESERVE + ACK": _reserve_and_acknowledge, "SPOP": _pop}


def _add(server: Server, count: int) -> None:
    with Client(server.port) as client:
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            client("SADD", _QUEUE, *(f"{number:0{BODY}}" for number in numbers))


def _put(subject: Subject, count: int) -> None:
    with producers(beanstalk_address(subject), _case(count)) as put:
        put()


_FILLS: dict[str, Callable[[Server, int], None]] = {"messages of a set": _add, "jobs of a tube": _put}


def _case(jobs: int) -> Case:
    return Case(1, Load(clients=50, pipeline=16, requests=jobs))


def _memory(plan: Plan) -> Table:
    """Measure new programs in each round, because a process rarely returns memory."""
    samples = Samples()
    for _ in plan.each_round("memory of jobs"):
        with ours(*_LISTEN) as server:
            _measure_memory(samples, server, lambda: _used_bytes(server), plan.jobs_in_memory)
        with beanstalkd() as other:
            _measure_memory(samples, other, lambda: resident_kib(other) * 1024, plan.jobs_in_memory)
    return Table(
        "beanstalk, memory",
        f"bytes beyond the body of {BODY}, of {plan.jobs_in_memory:,} jobs, median of {plan.rounds} rounds",
        ("our backend", "beanstalkd"),
        [_memory_row(samples, state) for state in _STATES],
    )


def _measure_memory(samples: Samples, subject: Subject, used: Callable[[], float], jobs: int) -> None:
    column = "our backend" if isinstance(subject, Server) else subject.name
    _put(subject, 100)  # not counted: memory for the first jobs only
    before = used()
    _put(subject, jobs)
    samples.add(_WAITING, column, (used() - before) / jobs - BODY)
    with workers(beanstalk_address(subject), _case(jobs), delete=False) as reserve:
        reserve()
        samples.add(_RESERVED, column, (used() - before) / jobs - BODY)


def _used_bytes(server: Server) -> int:
    """Return the memory that the backend uses, after a pause in which it settles."""
    time.sleep(_SETTLES)
    with Client(server.backend_port) as backend:
        found = backend("INFO", "memory").decode()
    used = next(line for line in found.splitlines() if line.startswith("used_memory:"))
    return int(used.partition(":")[2])


def _memory_row(samples: Samples, state: str) -> Row:
    values = tuple(samples.median(state, column) for column in ("our backend", "beanstalkd"))
    return Row(f"a {state} job", values, Target("bytes", values[0], at_most=_MAX_BYTES), samples.of(state))
