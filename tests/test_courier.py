"""The courier: which calls go together, and what becomes of their replies. Its link is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import pytest

from pressure_server.backend.link import Link
from pressure_server.broker.courier import ACKNOWLEDGE, Block, Courier
from pressure_server.errors import BackendError

HEADER = (b"me", b"0", b"block")


class PlayedLink:
    """Keeps the calls; the test replies to them."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], list[bytes], list[int], Callable[[Any], None]]] = []

    def call_script(
        self,
        keys: Sequence[bytes],
        arguments: list[bytes],
        hows: Sequence[int],
        received: Callable[[Any], None],
    ) -> None:
        self.calls.append((list(keys), arguments, list(hows), received))

    def reply(self, reply: Any, *, sent_again: bool = False) -> None:
        """Reply to the oldest call, which was sent again before."""
        _, arguments, hows, received = self.calls.pop(0)
        for position in hows if sent_again else ():
            arguments[position] = b"again"
        received(reply)

    @property
    def keys(self) -> list[list[bytes]]:
        """Those of the calls under way."""
        return [keys for keys, *_ in self.calls]


class Stage:
    """A courier with a played link, and what was received, by key."""

    def __init__(self) -> None:
        self.link = PlayedLink()
        self.courier = Courier(cast(Link, self.link), HEADER)
        self.received: list[tuple[bytes, Any]] = []

    def call(self, key: bytes, size: int = 1, how: bytes = b"", *, goes_first: bool = False) -> None:
        def received(reply: Any) -> None:
            self.received.append((key, reply))

        block = Block([key], b"1", 7, how, [b"add", b"2", b"", b"m" * size], received)
        self.courier.ready(lambda: block, goes_first=goes_first)

    async def turn(self) -> None:
        """Let the loop go round."""
        for _ in range(3):
            await asyncio.sleep(0)


def played(play: Callable[[Stage], Any]) -> Stage:
    """Play on a stage, in a loop."""

    async def played_here() -> Stage:
        stage = Stage()
        await play(stage)
        return stage

    return asyncio.run(played_here())


def test_what_comes_in_one_turn_goes_in_one_call() -> None:
    async def play(stage: Stage) -> None:
        stage.call(b"a")
        stage.call(b"b")
        await stage.turn()
        ((keys, arguments, hows, _),) = stage.link.calls
        assert keys == [b"a", b"b"]
        block = [b"1", b"4", b"1", b"7", b"", b"add", b"2", b"", b"m"]
        assert arguments == [*HEADER, *block, *block]
        assert [arguments[position] for position in hows] == [b"", b""]
        assert hows == [7, 16]
        stage.link.reply([[0, b"new"], hiredis.ReplyError("OOM no")])

    (a, first), (b, second) = played(play).received
    assert (a, first, b) == (b"a", [0, b"new"], b"b")
    assert isinstance(second, hiredis.ReplyError)


def test_only_two_calls_are_under_way() -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b", b"c", b"d"):
            stage.call(key)
            await stage.turn()
        assert stage.link.keys == [[b"a"], [b"b"]]
        stage.link.reply([1])
        await stage.turn()
        assert stage.link.keys == [[b"b"], [b"c", b"d"]]

    played(play)


def test_an_error_of_the_call_is_that_of_every_block() -> None:
    async def play(stage: Stage) -> None:
        stage.call(b"a")
        stage.call(b"b")
        await stage.turn()
        stage.link.reply(BackendError("it is away"))

    assert [(key, str(error)) for key, error in played(play).received] == [
        (b"a", "it is away"), (b"b", "it is away"),
    ]  # fmt: skip


@pytest.mark.parametrize("sent_again", [False, True])
def test_what_a_call_had_no_time_for_goes_first_in_the_next(sent_again: bool) -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b", b"c"):
            stage.call(key, how=b"note")
        stage.call(b"done", how=ACKNOWLEDGE)
        await stage.turn()
        stage.call(b"later")
        stage.link.reply([1], sent_again=sent_again)
        await stage.turn()
        assert stage.link.keys == [[b"b", b"c", b"done", b"later"]]
        _, arguments, hows, _ = stage.link.calls[0]
        # It may have been done when it was sent for the first time.
        how = b"again" if sent_again else b"note"
        assert [arguments[position] for position in hows] == [how, how, b""]
        assert arguments.count(ACKNOWLEDGE) == 1
        stage.link.reply([2, 3, 4, 5])

    assert played(play).received == [(b"a", 1), (b"b", 2), (b"c", 3), (b"done", 4), (b"later", 5)]


def test_a_call_is_bounded() -> None:
    async def play(stage: Stage) -> None:
        for number in range(450):
            stage.call(b"%d" % number)
        stage.call(b"large", size=2 << 20)
        stage.call(b"small")
        stage.courier.flush()
        assert [len(keys) for keys in stage.link.keys] == [200, 200, 51, 1]

    played(play)


def test_what_goes_first_does_not_queue() -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b", b"c"):
            stage.call(key)
            await stage.turn()
        stage.call(b"back", goes_first=True)
        stage.courier.flush()
        assert stage.link.keys[-1] == [b"back", b"c"]

    played(play)


def test_a_source_makes_its_block_when_the_call_is_sent() -> None:
    async def play(stage: Stage) -> None:
        stage.courier.ready(lambda: None)
        await stage.turn()
        assert not stage.link.calls
        blocks: list[Block] = []
        stage.courier.ready(lambda: blocks.pop())
        blocks.append(Block([b"late"], b"", 0, b"", [], print))
        await stage.turn()
        assert stage.link.keys == [[b"late"]]

    played(play)


def test_a_reply_that_cannot_be_used_keeps_nobody_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_reply: Any) -> None:
        raise LookupError("a bug")

    async def play(stage: Stage) -> None:
        stage.courier.call(Block([b"bad"], b"", 0, b"", [b"length", b"0"], fails))
        stage.call(b"good")
        await stage.turn()
        stage.link.reply([0, 1])

    assert played(play).received == [(b"good", 1)]
    assert "LookupError: a bug" in caplog.text
