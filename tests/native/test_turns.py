"""Turns and the note of turns, by which servers find the parked tokens of a dead server."""

import asyncio

import pytest

from pressure_server.backend.address import Address
from pressure_server.backend.route import Route
from pressure_server.backend.turns import Turns
from tests.support.native import NativeClient
from tests.support.programs import TIMEOUT, Client, StartValkey, Valkey, keys_left, wait_for
from tests.support.waiters import Waiter, blocked, create, is_refused, wait_for_blocked

TOKEN, PARKED, NOTE = b"token", b"parked", b"note"


@pytest.mark.parametrize("forgotten_first", [True, False])
def test_a_second_turn_is_noted_until_it_ends(backend: Valkey, direct: Client, forgotten_first: bool) -> None:
    """The first turn's note is removed on another connection, possibly after the second has been noted."""

    async def main() -> None:
        turns, granted = Turns(Route(Address(backend.url)), NOTE), asyncio.Event()
        if forgotten_first:
            turns.forget_note(0, PARKED)
        turns.wait_in_line(0, TOKEN, PARKED, lambda _is_granted: granted.set())
        if not forgotten_first:
            turns.forget_note(0, PARKED)
        await asyncio.to_thread(wait_for_blocked, direct, 1)
        assert await turns.noted_keys(0) == [PARKED]
        direct.lpush(TOKEN, 1)
        await asyncio.wait_for(granted.wait(), TIMEOUT)
        assert await turns.noted_keys(0) == [PARKED]
        turns.forget_note(0, PARKED)
        await asyncio.to_thread(wait_for, lambda: not direct.exists(NOTE), "the note to be deleted")
        await turns.close()
        await turns.disconnect()

    asyncio.run(main())


def test_connections_to_a_node_that_no_longer_has_the_keys_are_closed(
    backend: Valkey, direct: Client, start_valkey: StartValkey
) -> None:
    other = Address(start_valkey().url)

    async def main() -> None:
        before, route = len(direct.client_list()), Route(Address(backend.url))
        turns = Turns(route, NOTE)
        assert await turns.noted_keys(0) == []
        assert len(direct.client_list()) == before + 1
        route.move(other)
        await asyncio.to_thread(
            wait_for, lambda: len(direct.client_list()) == before, "the connection to be closed"
        )
        assert turns.are_used
        assert await turns.noted_keys(0) == []
        await turns.disconnect()

    asyncio.run(main())


@pytest.mark.parametrize("move", ["LMOVE q other LEFT RIGHT", "RPOPLPUSH q other", "SMOVE q other a"])
def test_a_move_in_a_turn_leaves_room_for_native_producers(client: Client, direct: Client, move: str) -> None:
    """The server's own turn is no native consumer, which would push the :not_full token itself."""
    queue = NativeClient(direct, "q")
    queue.create(1)
    queue.put(b"a")
    base = "__pressure__:q:"
    assert direct.lmove(f"{base}consumer_free", f"{base}ext:consumer_turn") == b"1"
    client.execute_command(*move.split())
    assert client.smembers("other") == {b"a"}
    tokens = ("consumer_free", "not_full", "ext:consumer_turn")
    assert [direct.llen(base + token) for token in tokens] == [1, 1, 0]
    queue.put_non_blocking(b"b")


def test_a_turn_withdrawn_before_the_server_blocks_takes_no_token(backend: Valkey, direct: Client) -> None:
    """Otherwise the token would be parked for a moment, although no operation needs the role."""

    async def main() -> bool:
        direct.lpush(TOKEN, 1)
        turns = Turns(Route(Address(backend.url)), NOTE)
        is_granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        turns.wait_in_line(0, TOKEN, PARKED, is_granted.set_result)
        turns.withdraw(0, PARKED)
        try:
            return await asyncio.wait_for(is_granted, TIMEOUT)
        finally:
            await turns.close()
            await turns.disconnect()

    assert asyncio.run(main()) is False
    assert direct.llen(TOKEN) == 1
    assert not direct.exists(NOTE)


@pytest.mark.parametrize("asks_again", ["before the withdrawal ends", "after it"])
def test_a_turn_that_is_asked_for_again_is_granted(backend: Valkey, direct: Client, asks_again: str) -> None:
    """A withdrawal must not end a turn that was asked for later."""

    async def main() -> list[bool]:
        direct.lpush(TOKEN, 1)
        turns = Turns(Route(Address(backend.url)), NOTE)
        ended: asyncio.Queue[bool] = asyncio.Queue()
        turns.wait_in_line(0, TOKEN, PARKED, ended.put_nowait)
        turns.withdraw(0, PARKED)
        found: list[bool] = []
        if asks_again == "after it":
            found.append(await asyncio.wait_for(ended.get(), TIMEOUT))
        turns.wait_in_line(0, TOKEN, PARKED, ended.put_nowait)
        found.append(await asyncio.wait_for(ended.get(), TIMEOUT))
        await turns.close()
        await turns.disconnect()
        return found

    assert asyncio.run(main()) == ([False, True] if asks_again == "after it" else [True])
    assert direct.llen(PARKED) == 1


def test_a_turn_is_withdrawn_when_its_last_operation_fails(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    assert direct.rpop("__pressure__:q:producer_free")
    waiter.send("SADD", "q", "m")
    wait_for_blocked(direct, 1)
    assert direct.exists("__pressure__!turns")
    direct.delete(*direct.keys("__pressure__:q*"))
    assert is_refused(waiter.reply(), "NOQUEUE")
    wait_for(lambda: keys_left(direct) == [], "the note to be deleted", timeout=5)
    assert blocked(direct) == 0
