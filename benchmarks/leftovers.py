"""The memory that remains after queues, connections and waits have ended."""

import time
from contextlib import ExitStack

from benchmarks.client import Client
from benchmarks.crowd import resident_kib
from benchmarks.plan import Plan
from benchmarks.results import Row, Table
from benchmarks.subjects import Server, ours

_AT_ONCE = 1_000
# Connections per source address: the ports of closed connections stay in use for a while.
_FROM_ONE_ADDRESS = 10_000
# Seconds in which the server deletes records, and the backend frees memory, on their timers.
_SETTLES = 3.0


def run(plan: Plan) -> list[Table]:
    """Do a third of each to reach a steady level, and then all of it."""
    rows: list[Row] = []
    with ours() as server:
        for what, count, do in (
            ("queues", plan.gone_queues, _queues),
            ("connections", plan.gone_connections, _connections),
            ("waits that timed out", plan.gone_waits, _waits),
        ):
            do(server, count // 3)
            before = _memory(server)
            do(server, count)
            after = _memory(server)
            rows.append(Row(f"{count:,} {what}", (*before, *after), None, {}))
    return [
        Table(
            "leftovers",
            "KiB, after a third of that number, and after all of it",
            ("ours", "backend", "ours, after", "backend, after"),
            rows,
        )
    ]


def _memory(server: Server) -> tuple[float, float]:
    time.sleep(_SETTLES)
    with Client(server.backend_port) as backend:
        found = backend("INFO", "memory").decode()
    used = next(line for line in found.splitlines() if line.startswith("used_memory:"))
    return resident_kib(server), int(used.partition(":")[2]) / 1024


def _queues(server: Server, count: int) -> None:
    with Client(server.port) as client:
        for first in range(0, count, _AT_ONCE):
            names = [f"gone:{number}" for number in range(first, first + _AT_ONCE)]
            _pipeline(client, [("SADD", name, "x") for name in names])
            _pipeline(client, [("SPOP", name) for name in names])
            client("DEL", *names)


def _pipeline(client: Client, commands: list[tuple[str, ...]]) -> None:
    for words in commands:
        client.send(*words)
    for _ in commands:
        client.reply()


def _connections(server: Server, count: int) -> None:
    for number in range(count):
        with Client(server.port, f"127.0.1.{1 + number // _FROM_ONE_ADDRESS}") as client:
            client("PING")


def _waits(server: Server, count: int) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port)) for _ in range(_AT_ONCE)]
        for first in range(0, count, _AT_ONCE):
            for number, client in enumerate(clients):
                client.send("BLPOP", f"none:{first + number}", "0.05")
            for client in clients:
                client.reply()
