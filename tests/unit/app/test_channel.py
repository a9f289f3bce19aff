"""The channel between a supervisor and a worker, over a socket pair in this process."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pressure_server.app.workers.channel import Answer, Channel, ChannelClosedError


async def echo(question: str, arguments: tuple[Any, ...]) -> Any:
    return question, arguments


@asynccontextmanager
async def two_ends(other: Answer, one: Answer = echo) -> AsyncIterator[tuple[Channel, Channel]]:
    sockets = socket.socketpair()
    ends = await Channel.over(sockets[0], one), await Channel.over(sockets[1], other)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def test_both_ends_ask_and_answer_at_the_same_time() -> None:
    first_may_go = asyncio.Event()

    async def slowly(question: str, arguments: tuple[Any, ...]) -> Any:
        if question == "slow":
            await first_may_go.wait()
        else:
            first_may_go.set()
        return question, arguments

    async with two_ends(slowly) as (one, other):
        large = b"x" * (1 << 20)
        found = await asyncio.gather(one.ask("slow"), one.ask("quick", large), other.ask("back", 1, 2))
        assert list(found) == [("slow", ()), ("quick", (large,)), ("back", (1, 2))]


async def test_what_is_told_arrives_in_order_and_gets_no_answer() -> None:
    told: list[Any] = []

    async def note(question: str, arguments: tuple[Any, ...]) -> Any:
        told.append((question, *arguments))

    async with two_ends(note) as (one, _):
        for number in range(3):
            one.tell("this", number)
        await one.ask("that")
    assert told == [("this", 0), ("this", 1), ("this", 2), ("that",)]


async def test_an_answer_that_fails_is_none_and_one_that_is_late_is_forgotten() -> None:
    may_answer = asyncio.Event()

    async def answer(question: str, _arguments: tuple[Any, ...]) -> Any:
        if question == "fail":
            raise ValueError
        if question == "late":
            await may_answer.wait()
        return question

    async with two_ends(answer) as (one, _):
        assert await one.ask("fail") is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.ask("late"), 0.01)
        may_answer.set()
        assert await one.ask("go on") == "go on"


async def test_what_cannot_be_read_is_logged_and_ends_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    ours, its = socket.socketpair()
    channel = await Channel.over(ours)
    with its:
        its.sendall(struct.pack("!Q", 4) + b"junk")
        await channel.closed
    assert "cannot read what another process of this server has sent" in caplog.text


@pytest.mark.parametrize("when", ["before the question", "before the answer"])
async def test_an_end_learns_that_the_other_has_gone(when: str) -> None:
    async def never(_question: str, _arguments: tuple[Any, ...]) -> Any:
        await asyncio.Event().wait()

    async with two_ends(never) as (one, other):
        asking = asyncio.create_task(one.ask("never")) if when == "before the answer" else None
        await asyncio.sleep(0)
        other.close()
        await one.closed
        with pytest.raises(ChannelClosedError):
            await (asking or one.ask("never"))
        one.tell("nothing")
