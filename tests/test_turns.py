"""The note of turns, by which a server finds what one that died has left parked."""

from __future__ import annotations

import asyncio

import pytest

from pressure_server.backend.address import Address
from pressure_server.backend.turns import Turns
from tests.support.programs import TIMEOUT, Client, Valkey, keys_left, wait_for
from tests.support.waiters import Waiter, create, is_refused

TOKEN, PARKED, NOTE = b"token", b"parked", b"note"


@pytest.mark.parametrize("given_back_first", [True, False])
def test_who_stands_in_line_again_is_noted(backend: Valkey, direct: Client, given_back_first: bool) -> None:
    """The last turn's note is removed on another connection, maybe later than the next is made."""

    def is_in_line() -> bool:
        return bool(direct.info("clients")["blocked_clients"])

    async def main() -> None:
        turns, came = Turns(Address(backend.url), NOTE), asyncio.Event()
        if given_back_first:
            turns.forget_note(0, PARKED)
        turns.wait_in_line(0, TOKEN, PARKED, lambda _has_come: came.set())
        if not given_back_first:
            turns.forget_note(0, PARKED)
        await asyncio.to_thread(wait_for, is_in_line, "it to stand in line")
        assert await turns.noted_keys(0) == [PARKED]
        direct.lpush(TOKEN, 1)
        await asyncio.wait_for(came.wait(), TIMEOUT)
        assert await turns.noted_keys(0) == [PARKED]
        turns.forget_note(0, PARKED)
        await asyncio.to_thread(wait_for, lambda: not direct.exists(NOTE), "the note to be gone")
        await turns.close()
        await turns.disconnect()

    asyncio.run(main())


def test_a_turn_withdrawn_before_the_server_blocks_takes_no_token(backend: Valkey, direct: Client) -> None:
    """Otherwise the token would be parked for a moment, though nothing needs the role."""

    async def main() -> bool:
        direct.lpush(TOKEN, 1)
        turns = Turns(Address(backend.url), NOTE)
        has_come: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        turns.wait_in_line(0, TOKEN, PARKED, has_come.set_result)
        turns.withdraw(0, PARKED)
        try:
            return await asyncio.wait_for(has_come, TIMEOUT)
        finally:
            await turns.close()
            await turns.disconnect()

    assert asyncio.run(main()) is False
    assert direct.llen(TOKEN) == 1
    assert not direct.exists(NOTE)


def test_a_turn_that_nobody_waits_for_is_withdrawn(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q")
    token = direct.rpop("__pressure__:q:producer_free")
    assert token
    waiter.send("SADD", "q", "m")
    wait_for(lambda: direct.info("clients")["blocked_clients"] == 1, "it to stand in line")
    assert direct.exists("__pressure__!turns")
    direct.delete(*direct.keys("__pressure__:q*"))
    assert is_refused(waiter.reply(), "NOQUEUE")
    wait_for(lambda: keys_left(direct) == [], "no note to be left", timeout=5)
    assert direct.info("clients")["blocked_clients"] == 0
