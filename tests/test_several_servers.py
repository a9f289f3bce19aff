"""Clients of several servers that wait for messages of one queue: each server's clients get their share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.support.programs import Server, StartServer, StartValkey, Valkey, keys_left, wait_for
from tests.support.waiters import AsyncWaiter, Waiter, create, packed, wait_for_blocked

WAITERS = 10
MESSAGES = 2000
# Of the messages, the part that a server's clients get at least. It is a half if both are equally quick.
SHARE = 0.15


def others_of(server: Server) -> int:
    """How many other servers it has seen."""
    with server.client() as client:
        return int(client.info("backend")["other_servers"])


def start_two(start_server: StartServer, backend: Valkey) -> tuple[Server, Server]:
    """Two servers that know of each other."""
    first, second = [start_server("--backend", backend.url, "--proxy-timeout", "2") for _ in range(2)]
    wait_for(lambda: others_of(first) == others_of(second) == 1, "each to have seen the other")
    return first, second


async def take_until_told(server: Server, number: int, taken: Counter[int], messages: list[bytes]) -> None:
    """Take messages, one after the other, until one says that it is the end."""
    waiter = await AsyncWaiter.connect(server.port)
    while (message := (await waiter("BLPOP", "q", 0))[1]) != b"end":
        taken[number] += 1
        messages.append(message)
    waiter.close()


async def put_one_by_one(port: int) -> None:
    waiter = await AsyncWaiter.connect(port)
    for message in range(MESSAGES):
        await waiter("RPUSH", "q", message)
    waiter.close()


async def put_in_pipelines(port: int) -> None:
    waiter = await AsyncWaiter.connect(port)
    for first in range(0, MESSAGES, 16):
        some = range(first, min(first + 16, MESSAGES))
        await waiter.send(b"".join(packed("RPUSH", "q", message) for message in some))
        for _ in some:
            await waiter.reply()
    waiter.close()


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_one_by_one, put_in_pipelines])
def test_waiting_clients_of_all_servers_get_their_share_of_what_one_puts(
    start_server: StartServer, start_valkey: StartValkey, put: Callable[[int], Coroutine[Any, Any, None]]
) -> None:
    servers = start_two(start_server, start_valkey())
    taken: Counter[int] = Counter()
    messages: list[bytes] = []

    async def main() -> None:
        taking = [
            asyncio.create_task(take_until_told(server, number, taken, messages))
            for number, server in enumerate(servers)
            for _ in range(WAITERS)
        ]
        for server in servers:
            with server.client() as client:
                await asyncio.to_thread(wait_for_blocked, client, WAITERS)
        await put(servers[0].port)
        waiter = await AsyncWaiter.connect(servers[0].port)
        for _ in taking:
            await waiter("RPUSH", "q", "end")
        await asyncio.gather(*taking)
        waiter.close()

    asyncio.run(main())
    print(f"{put.__name__} at the first server: the clients of each took {dict(taken)}")
    assert sorted(messages, key=int) == [b"%d" % number for number in range(MESSAGES)]
    assert min(taken[0], taken[1]) >= SHARE * MESSAGES, taken


def leave(server: Server, waiting: Sequence[AsyncWaiter]) -> None:
    for waiter in waiting:
        waiter.close()
    with server.client() as client:
        wait_for_blocked(client, 0)


def die(server: Server, _waiting: Sequence[AsyncWaiter]) -> None:
    server.process.kill()


@pytest.mark.parametrize("vanish", [leave, die])
def test_what_is_left_for_clients_that_wait_no_longer_is_taken_by_the_others(
    start_server: StartServer,
    start_valkey: StartValkey,
    vanish: Callable[[Server, Sequence[AsyncWaiter]], None],
) -> None:
    backend = start_valkey()
    first, second = start_two(start_server, backend)

    async def main() -> None:
        waiting = [await AsyncWaiter.connect(second.port) for _ in range(2)]
        for waiter in waiting:
            await waiter.send(packed("BLPOP", "q", 0))
        with second.client() as client, backend.client() as direct:
            await asyncio.to_thread(wait_for_blocked, client, 2)
            # On a queue that exists: notes are kept with it.
            client.execute_command("PRESSURE.CREATE", "q")
            wait_for(lambda: direct.exists("__pressure__:q:ext:waiting"), "the note that clients wait")
        vanish(second, waiting)
        consumer, producer = [await AsyncWaiter.connect(first.port) for _ in range(2)]
        for message in range(20):
            await consumer.send(packed("BLPOP", "q", 0))
            assert await producer("RPUSH", "q", message) in (1, 0)
            assert await consumer.reply() == [b"q", b"%d" % message]
        consumer.close()
        producer.close()

    asyncio.run(main())


def test_the_notes_of_a_queue_go_with_it(start_server: StartServer, start_valkey: StartValkey) -> None:
    backend = start_valkey()
    first, _ = start_two(start_server, backend)
    with first.client() as client, backend.client() as direct:
        client.execute_command("PRESSURE.CREATE", "q")
        assert client.blpop("q", 0.05) is None
        assert direct.exists("__pressure__:q:ext:waiting")
        client.delete("q")
        assert keys_left(direct) == []


def test_beside_a_put_that_waits_for_room_what_is_left_is_taken(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    """Each call of the first server puts: the rest of a command waits for room, and is tried in each."""
    backend = start_valkey()
    first, second = start_two(start_server, backend)
    for _ in range(5):
        with first.client() as client, Waiter(first.port) as consumer, Waiter(first.port) as producer:
            client.delete("q")
            create(client, "q", "BOUND", 1)
            with Waiter(second.port) as leaving, second.client() as there:
                leaving.send("BLMOVE", "q", "other", "LEFT", "LEFT", 0)
                wait_for_blocked(there, 1)
            with second.client() as there:
                wait_for_blocked(there, 0)
            producer.send("SADD", "q", "1", "2", "3", "4")
            # Whichever of them the note of the client that has left kept for its server.
            for message in (b"1", b"2", b"3", b"4"):
                assert consumer("BLPOP", "q", 0) == [b"q", message]
            assert producer.reply() == 4


def test_a_move_that_waits_does_not_overtake_a_get_that_has_left_a_message_for_others(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    backend = start_valkey()
    first, second = start_two(start_server, backend)
    with first.client() as client, Waiter(first.port) as getting, Waiter(first.port) as moving:
        create(client, "q")
        with Waiter(second.port) as leaving, second.client() as there:
            leaving.send("BLPOP", "q", 0)
            wait_for_blocked(there, 1)
        # Its note stays for a while, and every other message is left for it.
        for message in (b"1", b"2", b"3", b"4"):
            getting.send("BLPOP", "q", 0)
            wait_for_blocked(client, 1)
            moving.send("BLMOVE", "q", "d", "RIGHT", "LEFT", 0)
            wait_for_blocked(client, 2)
            client.rpush("q", message)
            assert getting.reply() == [b"q", message]
            client.rpush("q", "moved")
            assert moving.reply() == b"moved"
            # So that the next one is left for the other server, if this was not.
            client.rpush("q", "odd")
            assert client.lpop("q") == b"odd"
