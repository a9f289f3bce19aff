"""Native clients beside ours on one queue: behaved, stopped, and killed.

`PRESSURE_NEIGHBOUR_MESSAGES=100000 .venv/bin/pytest -s tests/test_neighbours.py -k none_is_lost` is the run
in full, and prints what has happened; without the variable it is a small part of that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import uvloop

from tests.native import NativeClient
from tests.neighbours import Neighbourhood, Plan, doctor
from tests.programs import Client, Server, Valkey

StartServer = Callable[..., Server]
StartValkey = Callable[..., Valkey]

MESSAGES = int(os.environ.get("PRESSURE_NEIGHBOUR_MESSAGES", "1200"))
FATES = max(6, MESSAGES // 500)


# Put and taken: once, in order, whoever dies.

PLANS = {
    "native producers, our consumers": Plan(3, 0, 0, 3, MESSAGES, FATES, bound=100),
    "our producers, native consumers": Plan(0, 3, 3, 0, MESSAGES, FATES, bound=0),
    "several of each": Plan(3, 3, 3, 3, MESSAGES, FATES, bound=10, auto_repair=True),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_none_is_lost_or_doubled_or_stuck_when_native_clients_are_stopped_and_killed(
    start_valkey: StartValkey, start_server: StartServer, tmp_path: Path, plan: Plan
) -> None:
    backend = start_valkey()
    options = ["--auto-repair-after", "1"] if plan.auto_repair else []
    server = start_server("--backend", backend.url, *options)
    outcome = uvloop.run(Neighbourhood(plan, backend, server, tmp_path).live())
    print(outcome)
    assert outcome.deaths.total() > 0
    assert outcome.stopped > 0
    expected = {f"{name}-{number}".encode() for name, count in outcome.put.items() for number in range(count)}
    assert len(expected) >= plan.messages - plan.producers
    taken = outcome.messages
    assert not expected - taken.keys(), "lost"
    assert not taken.keys() - expected, "made up"
    assert [message for message, count in taken.items() if count > 1] == [], "doubled"
    assert all(map(keeps_order, outcome.taken))
    assert "Traceback" not in server.log
    with backend.client() as direct:
        assert_settled(backend, direct)
        NativeClient(direct, "q").delete()
        assert server.stop() == 0
        assert direct.keys("*") == []


def keeps_order(messages: Iterable[bytes]) -> bool:
    """Whether one client got what each other client has put in that one's order."""
    last: dict[bytes, int] = {}
    for message in messages:
        producer, _, number = message.partition(b"-")
        if int(number) <= last.get(producer, -1):
            return False
        last[producer] = int(number)
    return True


def assert_settled(backend: Valkey, direct: Client) -> None:
    """The doctor mends all there is; then the closed, empty queue is as specified."""
    status, said = asyncio.run(doctor(backend))
    assert status == 0, said
    assert asyncio.run(doctor(backend)) == (0, "1 queue looked at: all is well\n")
    suffixes = ("", ":producer_free", ":consumer_free", ":not_full")
    assert [direct.llen(f"__pressure__:q{suffix}") for suffix in suffixes] == [0, 1, 1, 1]
    # A consumer that was blocked when the queue was closed has popped one of two.
    assert direct.llen("__pressure__:q:closed") in (1, 2)
    produced, consumed = direct.mget(
        *[f"__pressure__:q:stats:{v}_messages" for v in ("produced", "consumed")]
    )
    assert produced == consumed
