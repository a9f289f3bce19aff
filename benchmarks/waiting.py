"""Many clients, each waiting on its own queue: their memory, and the time until one of them is woken up.

Each round starts a new server, because a process rarely returns memory.
"""

import os
import random
import re
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.client import Client
from benchmarks.crowd import allow_files, connect, resident_kib
from benchmarks.handover import percentile
from benchmarks.native import NativeClient
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, ours

_IDLE_SECONDS = 2.0
_MESSAGE = "element:000000000000"

_CONNECTED = "MiB of the server's memory, all connected"
_WAITING = "MiB of the server's memory, all waiting"
_EACH = "KiB per waiting client, besides its connection"
_WATCHES = "connections to Redis for waiting clients"
_PROCESSOR = "% of a core while all wait"
_OURS = "microseconds from SADD to waiting BLPOP"
_NATIVE = "microseconds from the start of a native put to waiting BLPOP"
_LIMITS = {_WATCHES: 1, _PROCESSOR: 1}


def run(plan: Plan) -> list[Table]:
    """Measure all figures, in each round."""
    allow_files(plan.waiting)
    samples, found = Samples(), dict[str, float]()
    for _ in plan.each_round("waiting"):
        with ours("--max-clients", str(plan.waiting + plan.waiting // 10)) as server, ExitStack() as clients:
            found = _measure(server, plan, clients)
        for figure, value in found.items():
            samples.add(figure, "ours", value)
    return [
        Table(
            "waiting",
            f"{plan.waiting:,} clients wait on {plan.waiting:,} queues, median of {plan.rounds} rounds",
            ("ours",),
            [_row(samples, figure) for figure in found],
        )
    ]


def _measure(server: Server, plan: Plan, clients: ExitStack) -> dict[str, float]:
    control = clients.enter_context(Client(server.port))
    backend = clients.enter_context(Client(server.backend_port))
    crowd = connect(server, range(plan.waiting), clients)
    before, connections = resident_kib(server), _connections(backend)
    for number, client in enumerate(crowd):
        client.send("BLPOP", _queue(number), 0)
    while not re.search(rb"blocked_clients:%d\r" % len(crowd), control("INFO", "clients")):
        pass
    after = resident_kib(server)
    found = {
        _CONNECTED: before / 1024,
        _WAITING: after / 1024,
        _EACH: (after - before) / len(crowd),
        # Connections that receive key notifications, and any opened since the clients began to wait.
        _WATCHES: _connections(backend, rb" flags=\w*t") + _connections(backend) - connections,
        _PROCESSOR: _idle_processor(server),
    }
    chosen = random.sample(range(len(crowd)), plan.woken)
    half = len(chosen) // 2

    def put(number: int) -> None:
        control.send("SADD", _queue(number), _MESSAGE)

    def put_natively(number: int) -> None:
        natives[number].put(_MESSAGE.encode())

    natives = {
        number: clients.enter_context(NativeClient(server.backend_port, _queue(number), "native"))
        for number in chosen[half:]
    }
    for native in natives.values():
        native.create()
    for figure, numbers, do in ((_OURS, chosen[:half], put), (_NATIVE, chosen[half:], put_natively)):
        taken = [_microseconds(partial(do, number), crowd[number]) for number in numbers]
        found |= {f"{figure}, median": statistics.median(taken), f"{figure}, p99": percentile(taken)}
    return found


def _queue(number: int) -> str:
    return f"bench:waiting:{number}"


def _connections(backend: Client, flags: bytes = b"") -> int:
    """Return the number of pressure-server's connections to its Redis whose CLIENT LIST line matches `flags`.

    The flag t means that the connection receives invalidations of client-side caching.
    """
    lines: list[bytes] = backend("CLIENT", "LIST").splitlines()
    return sum(b" name=pressure-server" in line and bool(re.search(flags, line)) for line in lines)


def _idle_processor(server: Server) -> float:
    """Return the server's processor time while idle, in per cent of a core."""
    began, used = time.perf_counter(), _processor_seconds(server)
    time.sleep(_IDLE_SECONDS)
    return 100 * (_processor_seconds(server) - used) / (time.perf_counter() - began)


def _processor_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _microseconds(put: Callable[[], None], waiting: Client) -> float:
    """Return the time from the start of the put until the waiting client has the message."""
    began = time.perf_counter_ns()
    put()
    waiting.reply()
    return (time.perf_counter_ns() - began) / 1_000


def _row(samples: Samples, figure: str) -> Row:
    value = samples.median(figure, "ours")
    limit = _LIMITS.get(figure)
    target = None if limit is None else Target("", value, at_most=limit)
    return Row(figure, (value,), target, samples.of(figure))
