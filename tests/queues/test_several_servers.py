"""Clients of two servers wait on one queue: the clients of each server get their share of the messages."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, keys_left, wait_for
from tests.support.waiters import AsyncWaiter, Waiter, create, packed, wait_for_blocked, waiters

WAITERS = 10
MESSAGES = 800
# The clients of each server get at least this share of the messages; a half if both servers are equally fast.
SHARE = 0.15


@pytest.fixture
def backend(start_valkey: StartValkey) -> Valkey:
    """A backend of the test's own."""
    return start_valkey()


@pytest.fixture
def servers(backend: Valkey, start_server: StartServer) -> tuple[Server, Server]:
    """Two servers, each of which has seen the other."""

    def peers_of(server: Server) -> int:
        with server.client() as client:
            return int(client.info("backend")["other_servers"])

    first, second = [start_server("--backend", backend.url, "--proxy-timeout", "2") for _ in range(2)]
    wait_for(lambda: peers_of(first) == peers_of(second) == 1, "each to have seen the other")
    return first, second


async def take_until_end(
    server: Server, number: int, queues: tuple[str, ...], taken: Counter[int], messages: list[bytes]
) -> None:
    """Take messages one by one until the message `end` comes."""
    waiter = await AsyncWaiter.connect(server.port)
    while (message := (await waiter("BLPOP", *queues, 0))[1]) != b"end":
        taken[number] += 1
        messages.append(message)
    waiter.close()


async def put_all(port: int, batch: int) -> None:
    """Put all messages in pipelines of this many."""
    waiter = await AsyncWaiter.connect(port)
    for first in range(0, MESSAGES, batch):
        await waiter.send(b"".join(packed("RPUSH", "q", number) for number in range(first, first + batch)))
        for _ in range(batch):
            await waiter.reply()
    waiter.close()


@pytest.mark.slow
@pytest.mark.parametrize("queues", [("q",), ("q", "r")], ids=len)
@pytest.mark.parametrize("batch", [1, 16])
def test_waiting_clients_of_both_servers_get_their_share_of_the_messages(
    servers: tuple[Server, Server], batch: int, queues: tuple[str, ...]
) -> None:
    taken: Counter[int] = Counter()
    messages: list[bytes] = []

    async def main() -> None:
        taking = [
            asyncio.create_task(take_until_end(server, number, queues, taken, messages))
            for number, server in enumerate(servers)
            for _ in range(WAITERS)
        ]
        for server in servers:
            with server.client() as client:
                await asyncio.to_thread(wait_for_blocked, client, WAITERS)
        await put_all(servers[0].port, batch)
        waiter = await AsyncWaiter.connect(servers[0].port)
        for _ in taking:
            await waiter("RPUSH", "q", "end")
        await asyncio.gather(*taking)
        waiter.close()

    asyncio.run(main())
    assert sorted(messages, key=int) == [b"%d" % number for number in range(MESSAGES)]
    assert min(taken[0], taken[1]) >= SHARE * MESSAGES, taken


def disconnect(server: Server, waiting: list[Waiter]) -> None:
    for waiter in waiting:
        waiter.close()
    with server.client() as client:
        wait_for_blocked(client, 0)


def kill(server: Server, _waiting: list[Waiter]) -> None:
    server.process.kill()


@pytest.mark.parametrize("vanish", [disconnect, kill])
def test_messages_left_for_departed_clients_go_to_those_of_the_peer(
    servers: tuple[Server, Server], direct: Client, vanish: Callable[[Server, list[Waiter]], None]
) -> None:
    first, second = servers
    with waiters(second, 2) as waiting, Waiter(first.port) as consumer, Waiter(first.port) as producer:
        for waiter in waiting:
            waiter.send("BLPOP", "q", 0)
        with second.client() as client:
            wait_for_blocked(client, 2)
            # The note that clients wait is kept with the queue, so the queue must exist.
            create(client, "q")
        wait_for(lambda: direct.exists("__pressure__:q:ext:waiting"), "the note that clients wait")
        vanish(second, waiting)
        for message in range(20):
            consumer.send("BLPOP", "q", 0)
            assert producer("RPUSH", "q", message) in (1, 0)
            assert consumer.reply() == [b"q", b"%d" % message]


def test_deleting_a_queue_deletes_its_notes_of_waiting_clients(
    servers: tuple[Server, Server], direct: Client
) -> None:
    with servers[0].client() as client:
        create(client, "q")
        assert client.blpop("q", 0.05) is None
        assert direct.exists("__pressure__:q:ext:waiting")
        client.delete("q")
        assert keys_left(direct) == []


def wait_and_leave(server: Server, *words: str | int) -> None:
    """Let a client wait on the server, and then disconnect."""
    with server.client() as client:
        with Waiter(server.port) as leaving:
            leaving.send(*words)
            wait_for_blocked(client, 1)
        wait_for_blocked(client, 0)


def test_messages_left_for_a_peer_are_taken_during_a_waiting_put(servers: tuple[Server, Server]) -> None:
    first, second = servers
    for _ in range(5):
        with first.client() as client, Waiter(first.port) as consumer, Waiter(first.port) as producer:
            client.delete("q")
            create(client, "q", "BOUND", 1)
            wait_and_leave(second, "BLMOVE", "q", "other", "LEFT", "LEFT", 0)
            # The first server tries the rest of this put in each of its calls.
            producer.send("SADD", "q", "1", "2", "3", "4")
            # No message stays reserved by the note of the client that has left the second server.
            for message in (b"1", b"2", b"3", b"4"):
                assert consumer("BLPOP", "q", 0) == [b"q", message]
            assert producer.reply() == 4


def test_a_waiting_move_does_not_overtake_a_get_that_left_a_message(servers: tuple[Server, Server]) -> None:
    first, second = servers
    with first.client() as client, Waiter(first.port) as getting, Waiter(first.port) as moving:
        create(client, "q")
        wait_and_leave(second, "BLPOP", "q", 0)
        # The note of that client stays for a while, and every other message is left for its server.
        for message in (b"1", b"2", b"3", b"4"):
            getting.send("BLPOP", "q", 0)
            wait_for_blocked(client, 1)
            moving.send("BLMOVE", "q", "d", "RIGHT", "LEFT", 0)
            wait_for_blocked(client, 2)
            client.rpush("q", message)
            assert getting.reply() == [b"q", message]
            client.rpush("q", "moved")
            assert moving.reply() == b"moved"
            # With this message, the next one is left for the other server if the last was not.
            client.rpush("q", "odd")
            assert client.lpop("q") == b"odd"


def test_a_take_that_does_not_wait_is_not_limited_to_a_share(servers: tuple[Server, Server]) -> None:
    """The clients of the other server may no longer wait, although it has noted them for a minute."""
    first, second = servers
    with first.client() as client, second.client() as other, Waiter(first.port) as connection:
        client.execute_command("PRESSURE.CREATE", "q")
        assert other.blpop("q", timeout=0.01) is None
        for _ in range(10):
            connection.socket.sendall(packed("RPUSH", "q", "m") + packed("LPOP", "q"))
            assert [connection.reply(), connection.reply()] == [1, b"m"]
