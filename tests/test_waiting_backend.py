"""Waiting on a backend that does not tell of changes, whose connections break, or that is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from pressure_server.backend.address import Address
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from tests.support.measures import connections
from tests.support.native import NativeClient
from tests.support.programs import Client, StartServer, StartValkey, wait_for, wait_until_settled
from tests.support.waiters import Waiter, create, is_refused, wait_for_blocked, wait_for_waiting, waiters


def test_where_the_backend_does_not_tell_of_changes_waiting_still_works(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-client|tracking")
        server = start_server("--backend", backend.url)
        wait_for(lambda: "WARNING" in server.log, "a warning")
        assert "refuses" in server.log
        with server.client() as client, waiters(server, 4) as waiting:
            create(client, "q")
            create(client, "full", "BOUND", 1)
            client.sadd("full", "a")
            waiting[0].send("BLPOP", "q", 0)
            waiting[1].send("BLPOP", "missing", "q", 0)
            waiting[2].send("SADD", "full", "b")
            waiting[3].send("BLPOP", "later", 0)
            wait_for_blocked(client, 4)
            NativeClient(direct, "q").put(b"1")
            NativeClient(direct, "q").put(b"2")
            assert {waiting[0].reply()[1], waiting[1].reply()[1]} == {b"1", b"2"}
            assert NativeClient(direct, "full").get() == b"a"
            assert waiting[2].reply() == 1
            NativeClient(direct, "later").create()
            NativeClient(direct, "later").put(b"3")
            assert waiting[3].reply() == [b"later", b"3"]


@pytest.fixture
def broken(start_valkey: StartValkey, start_server: StartServer) -> Iterator[Broken]:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with backend.client() as direct, server.client() as client, waiters(server, 3) as waiting:
        create(client, "q")
        create(client, "full", "BOUND", 1)
        client.sadd("full", "a")
        waiting[0].send("BLPOP", "q", 0)
        waiting[1].send("SADD", "full", "b")
        waiting[2].send("BLPOP", "missing", "later", 0)
        wait_for_blocked(client, 3)
        wait_for(lambda: connections(direct, tracking=True), "the watch")
        yield Broken(direct, client, waiting)


@dataclass
class Broken:
    """Three clients wait: for a message on q, for room in full, and for a queue that does not exist."""

    direct: Client
    client: Client
    waiting: list[Waiter]

    def kill(self, *, tracking: bool) -> None:
        """Break the server's connections of that sort to the backend."""
        for connection in connections(self.direct, tracking=tracking):
            self.direct.execute_command("CLIENT", "KILL", "ID", connection["id"])

    def change_natively(self) -> None:
        """Bring what each waits for."""
        NativeClient(self.direct, "q").put(b"m")
        assert NativeClient(self.direct, "full").get() == b"a"
        NativeClient(self.direct, "later").create()
        NativeClient(self.direct, "later").put(b"l")


SERVED = [[b"q", b"m"], 1, [b"later", b"l"]]


def test_when_the_connection_that_tells_of_changes_breaks_who_waits_is_still_served(broken: Broken) -> None:
    broken.kill(tracking=True)
    broken.change_natively()
    assert [waiter.reply() for waiter in broken.waiting] == SERVED


def test_when_the_connection_that_does_not_breaks_who_waits_is_still_served(broken: Broken) -> None:
    broken.kill(tracking=False)
    wait_for(lambda: connections(broken.direct, tracking=False), "the server to connect again")
    broken.change_natively()
    assert [waiter.reply() for waiter in broken.waiting] == SERVED


def test_when_both_break_who_waits_is_served_or_told_and_nothing_is_lost(broken: Broken) -> None:
    broken.kill(tracking=True)
    broken.kill(tracking=False)
    broken.change_natively()
    replies = [waiter.reply() for waiter in broken.waiting]
    # Who is tried while the backend is away is told so.
    told = [is_refused(reply, "BACKEND") for reply in replies]
    assert [reply for reply, is_told in zip(replies, told, strict=True) if not is_told] == [
        served for served, is_told in zip(SERVED, told, strict=True) if not is_told
    ]
    queued = [broken.direct.lrange(f"__pressure__:{name}", 0, -1) for name in ("q", "full", "later")]
    assert queued == [[b"m"] * told[0], [b"b"] * (not told[1]), [b"l"] * told[2]]


def test_who_waits_when_the_backend_is_flushed_is_told(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=1)
    direct.flushall()
    assert is_refused(waiter.reply(), "NOQUEUE")


def test_moves_that_waited_for_room_leave_nothing_behind_where_the_backend_does_not_tell(
    start_valkey: StartValkey,
) -> None:
    backend = start_valkey()
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-client|tracking")

    def waits(database: Database, source: bytes) -> bool:
        return database.waiting_on(source)[Line.CONSUMERS] > 0

    async def main() -> int:
        broker = Broker(
            Address(backend.url), prefix="__pressure__", peer_detection=PeerDetection(), policy=Policy()
        )
        await broker.start()
        database = broker.default_database
        for number in range(3):
            source, destination = b"s%d" % number, b"d%d" % number
            await database.run(verbs.CREATE, destination, [b"1"])
            await database.run(verbs.PUT, destination, [b"x"])
            await database.run(verbs.PUT, source, [b"y"])
            moving = asyncio.create_task(database.move(source, destination, timeout=None))
            await asyncio.to_thread(
                wait_for, partial(waits, database, source), "the message to wait for room"
            )
            with backend.client() as natively:
                assert NativeClient(natively, destination.decode()).get() == b"x"
            assert await moving == b"y"
        left = len(database.notifications)
        await broker.close()
        return left

    assert asyncio.run(main()) == 0


# Queues on which a client waits in vain, and how many of their keys the backend may still watch at the end.
WAITED_ON = 8_000
STILL_WATCHED = 14_000


@pytest.mark.slow
def test_keys_that_nobody_waits_for_any_longer_are_not_watched_for_ever(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    """The backend keeps a table of all keys that it is to tell of; three of each queue that is waited on."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with backend.client() as direct, server.client() as client:
        direct.set("untouched", "x")
        client.sadd("queue", "m")
        wait_until_settled(direct)
        before = set(direct.keys("*"))

        def watched() -> int:
            return int(direct.info("stats")["tracking_total_keys"])

        most = 0
        for first in range(0, WAITED_ON, 500):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + 500):
                pipeline.blpop(f"q{number}", 0.001)
            assert set(pipeline.execute()) == {None}
            most = max(most, watched())
        print(f"{WAITED_ON} waits in vain: at most {most} keys were watched, {watched()} at the end")
        assert most <= STILL_WATCHED
        # What was changed so that it is not watched any longer is as it was.
        assert set(direct.keys("*")) == before
        assert client.smembers("queue") == {b"m"}
        # Whoever waits still is told.
        with Waiter(server.port) as waiter:
            waiter.send("BLPOP", "q1", 0)
            wait_for_blocked(client, 1)
            NativeClient(direct, "q1").create()
            NativeClient(direct, "q1").put(b"m")
            assert waiter.reply() == [b"q1", b"m"]
