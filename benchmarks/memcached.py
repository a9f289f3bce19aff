"""Puts and gets per second over memcached's protocol, compared with RESP and with memcached itself.

memcached does less: it sets and gets the value of one key. load.py measures all three, for their ratios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.client import Client, packed
from benchmarks.load import Work, requests_per_second
from benchmarks.plan import BenchmarkError, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, memcached, ours

_QUEUE = "bench:queue"
# By size of the value in bytes: the divisor of a load's number of requests.
_SIZES = {64: 4, 4096: 16}
_OURS, _RESP, _ITSELF = _SUBJECTS = ("ours, memcached", "ours, RESP", "memcached")
_LEAST = 0.8


class _Pair(NamedTuple):
    """Commands with the same effect: a put in memcached's protocol, and a put and a get in RESP."""

    put: str
    resp_put: str
    resp_get: str

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the two comparisons: puts and gets."""
        return f"{self.put} / {self.resp_put}", f"get / {self.resp_get}"


# The first pair allows equal messages; the second checks whether the message is queued already.
_PAIRS = (_Pair("set", "RPUSH", "RPOP"), _Pair("add", "SADD", "SPOP"))


class _Case(NamedTuple):
    """A number of clients and of writes of `pipeline` requests each. Values have `size` bytes."""

    clients: int
    pipeline: int
    writes: int
    size: int
    pair: _Pair

    def __str__(self) -> str:
        return f"{self.size} bytes, pipeline {self.pipeline}"


@dataclass(frozen=True)
class _Protocol:
    """Requests, and regular expressions for their replies: see load.Work."""

    put: Callable[[bytes], bytes]
    was_put: bytes
    get: bytes
    was_got: bytes


def run(plan: Plan) -> list[Table]:
    """Measure every case with both protocols and on memcached, one after the other in each round."""
    samples = Samples()
    cases = [
        _Case(load.clients, load.pipeline, load.requests // part // load.pipeline, size, pair)
        for size, part in _SIZES.items()
        for load in (plan.plain, plan.pipelined)
        for pair in _PAIRS
    ]
    with ours("--listen", "memcached://127.0.0.1:0") as server, memcached() as itself:
        for _ in plan.each_round("memcached"):
            for case in cases:
                as_memcached = _memcached_protocol(case.pair.put, case.size)
                as_set = _memcached_protocol("set", case.size)
                measured = {
                    _OURS: _on_queue(server, server.memcached_port, case, as_memcached),
                    _RESP: _on_queue(server, server.port, case, _resp_protocol(case.pair, case.size)),
                    _ITSELF: (_puts(itself.port, case, as_set), _gets(itself.port, case, as_set)),
                }
                for subject, rates in measured.items():
                    for label, rate in zip(case.pair.labels, rates, strict=True):
                        samples.add((label, case), subject, rate)
    return [
        Table(
            "memcached",
            f"requests per second of {plan.plain.clients} clients, median of {plan.rounds} rounds; "
            "memcached itself sets and gets one key",
            (*_SUBJECTS, "memcached/RESP", "ours/memcached"),
            [_row(samples, label, case) for case in cases for label in case.pair.labels],
        )
    ]


def _memcached_protocol(put: str, size: int) -> _Protocol:
    line = f"{put} {_QUEUE} 0 0 {size}\r\n".encode()
    return _Protocol(
        lambda value: b"%b%b\r\n" % (line, value),
        rb"STORED\r\n",
        f"get {_QUEUE}\r\n".encode(),
        rb"VALUE %b 0 %d\r\n.{%d}\r\nEND\r\n" % (_QUEUE.encode(), size, size),
    )


def _resp_protocol(pair: _Pair, size: int) -> _Protocol:
    return _Protocol(
        lambda value: packed(pair.resp_put, _QUEUE, value),
        rb":\d+\r\n" if pair.resp_put == "RPUSH" else rb":1\r\n",
        packed(pair.resp_get, _QUEUE),
        rb"\$%d\r\n.{%d}\r\n" % (size, size),
    )


def _on_queue(server: Server, port: int, case: _Case, protocol: _Protocol) -> tuple[float, float]:
    """Return the puts per second into an empty queue, and then the gets per second of most messages."""
    with Client(server.port) as client:
        for some in (case._replace(writes=case.writes // 10), case):  # the first is a warm-up
            client("DEL", _QUEUE)
            puts_a_second = _puts(port, some, protocol)
        put = client("LLEN", _QUEUE)
        gets_a_second = _gets(port, case, protocol)
        got = put - client("LLEN", _QUEUE)
        client("DEL", _QUEUE)
    # Compare the totals, because only some replies were checked.
    if (put, got) != (case.writes * case.pipeline, _gets_of(case) * case.pipeline):
        raise BenchmarkError(f"{case.pair}, {case}: {put} messages were put and {got} taken")
    return puts_a_second, gets_a_second


def _puts(port: int, case: _Case, protocol: _Protocol) -> float:
    """Return the puts per second of values that are all different numbers."""
    writes = [
        b"".join([protocol.put(b"%0*d" % (case.size, first + at)) for at in range(case.pipeline)])
        for first in range(0, case.writes * case.pipeline, case.pipeline)
    ]
    return requests_per_second(port, case.clients, Work(writes, case.pipeline, protocol.was_put))


def _gets(port: int, case: _Case, protocol: _Protocol) -> float:
    writes = [protocol.get * case.pipeline] * _gets_of(case)
    return requests_per_second(port, case.clients, Work(writes, case.pipeline, protocol.was_got))


def _gets_of(case: _Case) -> int:
    """Return the number of writes for gets: they take fewer messages than are queued."""
    return case.writes * 4 // 5


def _row(samples: Samples, label: str, case: _Case) -> Row:
    of = (label, case)
    to_resp, to_memcached = (samples.ratio(of, _OURS, other) for other in (_RESP, _ITSELF))
    rates = [samples.median(of, subject) for subject in _SUBJECTS]
    target = Target("x RESP", to_resp, at_least=_LEAST)
    return Row(f"{label}, {case}", (*rates, to_resp, to_memcached), target, samples.of(of))
