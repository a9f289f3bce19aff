"""Random programs on queues of all types, until the server is stopped or killed: no message comes again.

Each client sends reads, takes and puts, alone or in pipelines, so that all kinds of commands share calls.
`PRESSURE_DELIVERED_SEEDS=200` tries more programs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from tests.support.programs import Client, Server, StartServer, Valkey, join, wait_for, wait_until_settled
from tests.support.waiters import Waiter, Words, create, packed

_SEEDS = int(os.environ.get("PRESSURE_DELIVERED_SEEDS", "3"))
TYPES = {"list": "FIFO", "jobs": "JOBS", "lifo": "LIFO", "random": "RANDOM", "log": "LOG"}
TAKEN_FROM = ("list", "lifo", "random", "jobs")
# Seconds until the record of a call is dropped, at the latest. Until then, a kill brings its messages back.
_IN_DOUBT = 1.0


class _Client(threading.Thread):
    """A client that sends random commands until its connection ends."""

    def __init__(self, server: Server, seed: str, number: int) -> None:
        super().__init__()
        self._chance = random.Random(f"{seed} {number}")
        self._number = number
        self._puts = 0
        self._waiter = Waiter(server.port)
        self.acknowledged: set[bytes] = set()
        # Each message that was read from a reply, and when.
        self.delivered: dict[bytes, float] = {}

    def run(self) -> None:
        with self._waiter, contextlib.suppress(OSError):
            while True:
                commands = [self._command() for _ in range(self._chance.choice((1, 1, 5, 30)))]
                self._waiter.socket.sendall(b"".join(packed(*words) for words in commands))
                for words in commands:
                    self._note(words, self._waiter.reply())

    def _command(self) -> Words:
        chance = self._chance
        queue, any_queue = chance.choice(TAKEN_FROM), chance.choice(tuple(TYPES))
        self._puts += 1
        message = f"{self._number}-{self._puts}"
        forms: list[Words] = [
            ("RPUSH", queue, message), ("SADD", queue, message), ("RPUSH", "log", message),
            ("SPOP", queue), ("SPOP", queue, 3), ("LPOP", queue), ("BLPOP", queue, 0.01),
            ("BLPOP", *chance.sample(TAKEN_FROM, 2), 0.01), ("LMPOP", 2, "list", "lifo", "LEFT", "COUNT", 2),
            ("LRANGE", any_queue, 0, 5), ("LINDEX", any_queue, 0), ("SMEMBERS", any_queue),
            ("SINTER", any_queue, queue), ("SRANDMEMBER", any_queue, 2), ("LLEN", any_queue),
            ("PRESSURE.PEEK", "jobs"), ("PRESSURE.INFO", any_queue),
        ]  # fmt: skip
        return chance.choice(forms)

    def _note(self, words: Words, reply: Any) -> None:
        name = str(words[0])
        if name in ("RPUSH", "SADD") and isinstance(reply, int) and words[1] != "log":
            self.acknowledged.add(str(words[2]).encode())
        if name in ("SPOP", "LPOP", "BLPOP", "LMPOP") and isinstance(reply, bytes | list):
            found: Any = reply[1] if name in ("BLPOP", "LMPOP") else reply
            for message in [found] if isinstance(found, bytes) else found:
                assert message not in self.delivered
                self.delivered[message] = time.monotonic()


@pytest.fixture
def prepared(start_server: StartServer, backend: Valkey) -> Server:
    server = start_server("--backend", backend.url, "--proxy-timeout", "1")
    with server.client() as client:
        for queue, kind in TYPES.items():
            create(client, queue, "TYPE", kind)
            client.rpush(queue, *(f"{queue}-{number}" for number in range(20)))
    return server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(_SEEDS))
def test_what_was_delivered_does_not_come_back(
    prepared: Server, start_server: StartServer, backend: Valkey, direct: Client, seed: int, number: int
) -> None:
    clients = [_Client(prepared, f"{seed} {number}", place) for place in range(8)]
    for client in clients:
        client.start()
    enough = random.Random(seed).randrange(50, 600)
    wait_for(lambda: sum(len(one.delivered) for one in clients) > enough, "deliveries")
    prepared.process.send_signal(number)
    ended = time.monotonic()
    for client in clients:
        join(client)
    prepared.process.wait()
    other = start_server("--backend", backend.url, "--proxy-timeout", "1")
    wait_until_settled(direct)
    with other.client() as client:
        left = {message for queue in TAKEN_FROM for message in client.lrange(queue, 0, -1)}
    delivered = {message: when for one in clients for message, when in one.delivered.items()}
    acknowledged = set().union(*(one.acknowledged for one in clients))
    assert sum(len(one.delivered) for one in clients) == len(delivered), "delivered twice"
    assert not acknowledged - left - delivered.keys(), "lost"
    limit = ended - _IN_DOUBT if number == signal.SIGKILL else ended + _IN_DOUBT
    assert not [message for message, when in delivered.items() if message in left and when < limit]
