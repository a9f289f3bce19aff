"""Waiting operations on a backend without key notifications, with broken connections, or that is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from tests.support.brokers import default_broker
from tests.support.measures import connections
from tests.support.native import NativeClient
from tests.support.programs import Client, StartServer, StartValkey, Valkey, wait_for, wait_until_settled
from tests.support.waiters import Waiter, create, is_refused, wait_for_blocked, wait_for_waiting, waiters


@pytest.fixture
def without_tracking(start_valkey: StartValkey) -> Iterator[tuple[Valkey, Client]]:
    """A backend that refuses to send key notifications, and a client of it."""
    backend = start_valkey()
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-client|tracking")
        yield backend, direct


def test_waiting_clients_are_served_without_key_notifications(
    without_tracking: tuple[Valkey, Client], start_server: StartServer
) -> None:
    backend, direct = without_tracking
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
def waiting_three(start_valkey: StartValkey, start_server: StartServer) -> Iterator[WaitingThree]:
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
        wait_for(lambda: connections(direct, tracking=True), "the connection with key notifications")
        yield WaitingThree(direct, waiting)


@dataclass
class WaitingThree:
    """Three waiting clients: for a message in q, for room in full, and for a queue that does not exist."""

    direct: Client
    waiting: list[Waiter]

    def kill(self, *, tracking: bool) -> None:
        """Break the server's connections to the backend with key notifications, or the others."""
        for connection in connections(self.direct, tracking=tracking):
            self.direct.execute_command("CLIENT", "KILL", "ID", connection["id"])

    def change_natively(self) -> None:
        """Let native clients do the changes that the three clients wait for."""
        NativeClient(self.direct, "q").put(b"m")
        assert NativeClient(self.direct, "full").get() == b"a"
        NativeClient(self.direct, "later").create()
        NativeClient(self.direct, "later").put(b"l")


SERVED = [[b"q", b"m"], 1, [b"later", b"l"]]


@pytest.mark.parametrize("tracking", [True, False])
def test_waiting_clients_are_served_after_one_connection_to_the_backend_breaks(
    waiting_three: WaitingThree, tracking: bool
) -> None:
    waiting_three.kill(tracking=tracking)
    if not tracking:
        wait_for(lambda: connections(waiting_three.direct, tracking=False), "the server to reconnect")
    waiting_three.change_natively()
    assert [waiter.reply() for waiter in waiting_three.waiting] == SERVED


def test_waiting_clients_lose_nothing_when_all_connections_to_the_backend_break(
    waiting_three: WaitingThree,
) -> None:
    waiting_three.kill(tracking=True)
    waiting_three.kill(tracking=False)
    waiting_three.change_natively()
    replies = [waiter.reply() for waiter in waiting_three.waiting]
    # If it is unknown whether a put was done that was being tried, it fails.
    assert replies == SERVED or (replies[::2] == SERVED[::2] and is_refused(replies[1], "BACKEND"))
    queued = [waiting_three.direct.lrange(f"__pressure__:{name}", 0, -1) for name in ("q", "full", "later")]
    assert queued == [[], [b"b"] * (replies[1] == 1), []]


def test_a_waiting_get_fails_when_the_backend_is_flushed(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=1)
    direct.flushall()
    assert is_refused(waiter.reply(), "NOQUEUE")


def test_moves_that_waited_for_room_leave_no_key_watched_without_key_notifications(
    without_tracking: tuple[Valkey, Client],
) -> None:
    backend, direct = without_tracking

    def waits(database: Database, source: bytes) -> bool:
        return source in database.waiting()

    async def main() -> int:
        broker = default_broker(backend.url)
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
            assert NativeClient(direct, destination.decode()).get() == b"x"
            assert await moving == b"y"
        left = len(database.shards[0].notifications)
        await broker.close()
        return left

    assert asyncio.run(main()) == 0


# Queues on which a client waits until its timeout, and the most keys that the backend may watch at a time.
WAITED_ON = 6_000
MOST_WATCHED = 14_000


@pytest.mark.slow
def test_the_backend_stops_watching_keys_that_no_client_waits_on(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    """The backend has a table of the watched keys: three for each queue on which a client waits."""
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
        print(f"{WAITED_ON} waits timed out: at most {most} keys were watched, {watched()} at the end")
        assert most <= MOST_WATCHED
        # The server touches keys so that they are no longer watched; their values stay.
        assert set(direct.keys("*")) == before
        assert client.smembers("queue") == {b"m"}
        # A client that waits later is still woken.
        with Waiter(server.port) as waiter:
            waiter.send("BLPOP", "q1", 0)
            wait_for_blocked(client, 1)
            NativeClient(direct, "q1").create()
            NativeClient(direct, "q1").put(b"m")
            assert waiter.reply() == [b"q1", b"m"]
