"""The courier: which calls go together, and what becomes of their replies. Its link is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import pytest

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError, OutcomeUnknownError
from pressure_server.lua.layout import RECOVER, Header
from pressure_server.queues.calls.block import Block
from pressure_server.queues.calls.courier import Courier
from pressure_server.queues.lanes.dispatcher import LaneDispatcher
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation, Owner
from pressure_server.queues.operations.waiters import WaiterCount
from pressure_server.queues.policy import Policy
from tests.model.connections import ModelDurability, ModelTurns, ModelWatch
from tests.support.programs import TIMEOUT

HEADER = (b"me", b"0", b"block")
RECORDS = b"records"


class PlayedLink:
    """Keeps the calls; the test replies to them."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], list[bytes], Callable[[Any], None]]] = []
        self.called: asyncio.Queue[bool] = asyncio.Queue()

    def call_script(
        self, keys: Sequence[bytes], arguments: list[bytes], received: Callable[[Any], None]
    ) -> None:
        self.calls.append((list(keys), arguments, received))
        self.called.put_nowait(True)

    def reply(self, reply: Any) -> None:
        """Reply to the oldest call."""
        self.calls.pop(0)[-1](reply)

    @property
    def keys(self) -> list[list[bytes]]:
        """Those of queues, of the calls under way."""
        return [[key for key in keys if key != RECORDS] for keys, *_ in self.calls]

    def header(self, field: Header) -> bytes:
        """Of the oldest call under way."""
        return self.calls[0][1][field]


class Stage:
    """A courier with a played link, and what was received, by key. It plays the courier's owner."""

    def __init__(self) -> None:
        self.link = PlayedLink()
        self.courier = Courier(cast(Link, self.link), self, HEADER, b"p", RECORDS)
        self.received: list[tuple[bytes, Any]] = []
        self.deliveries: list[Delivery] = []
        self.resolved: list[bool] = []
        self.back: list[bytes] = []
        self.times_without_records = 0

    def call(
        self,
        key: bytes,
        size: int = 1,
        *,
        changes: bool = True,
        goes_first: bool = False,
        waits: bool = False,
    ) -> None:
        """`waits`: what the call brings has not arrived at once."""

        def received(reply: Any, delivery: Delivery | None) -> None:
            self.received.append((key, reply))
            if delivery is not None and waits:
                delivery.hold()
                self.deliveries.append(delivery)

        runs = [b"put unique", b"2", b"", b"m" * size]
        block = Block([key], b"", runs, received, changes, resolved=self.resolved.append)
        self.courier.ready(lambda: block, goes_first=goes_first)

    async def turn(self) -> None:
        """Let the loop go round."""
        for _ in range(3):
            await asyncio.sleep(0)

    def put_back(self, _operation: Operation) -> None:
        raise AssertionError("nothing was taken")

    def when_back(self, follows: Callable[[], None]) -> None:
        follows()

    def messages_are_back(self, bases: Sequence[bytes]) -> None:
        self.back += bases

    def records_are_gone(self) -> None:
        self.times_without_records += 1


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
        ((keys, arguments, _),) = stage.link.calls
        assert keys == [b"a", b"b", RECORDS]
        block = [b"1", b"4", b"", b"put unique", b"2", b"", b"m"]
        assert arguments == [*HEADER, b"", b"1", b"", b"", *block, *block]
        stage.link.reply([1, [0, b"new"], hiredis.ReplyError("OOM no")])

    (a, first), (b, second) = played(play).received
    assert (a, first, b) == (b"a", [0, b"new"], b"b")
    assert isinstance(second, hiredis.ReplyError)


def test_only_three_calls_are_under_way() -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b", b"c", b"d", b"e"):
            stage.call(key)
            await stage.turn()
        assert stage.link.keys == [[b"a"], [b"b"], [b"c"]]
        stage.link.reply([0, 1])
        await stage.turn()
        assert stage.link.keys == [[b"b"], [b"c"], [b"d", b"e"]]

    played(play)


@pytest.mark.parametrize(("ready", "calls"), [(7, [7]), (10, [8, 2]), (30, [10, 10, 10]), (900, [200] * 3)])
def test_what_is_ready_is_divided_among_the_calls_that_may_leave(ready: int, calls: list[int]) -> None:
    async def play(stage: Stage) -> None:
        for number in range(ready):
            stage.call(b"%d" % number)
        await stage.turn()
        assert [len(keys) for keys in stage.link.keys] == calls

    played(play)


def test_an_error_of_the_call_is_that_of_every_block() -> None:
    async def play(stage: Stage) -> None:
        stage.call(b"a")
        stage.call(b"b")
        await stage.turn()
        stage.link.reply(BackendError("it is away"))
        assert not stage.courier.has_records

    assert [(key, str(error)) for key, error in played(play).received] == [
        (b"a", "it is away"), (b"b", "it is away"),
    ]  # fmt: skip


def test_what_a_call_had_no_time_for_goes_first_in_the_next() -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b", b"c"):
            stage.call(key)
        await stage.turn()
        stage.call(b"later")
        stage.link.reply([1, 1])
        await stage.turn()
        assert stage.link.keys == [[b"b", b"c", b"later"]]
        stage.link.reply([1, 2, 3, 4])

    assert played(play).received == [(b"a", 1), (b"b", 2), (b"c", 3), (b"later", 4)]


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
        for key in (b"a", b"b", b"c", b"d"):
            stage.call(key)
            await stage.turn()
        stage.call(b"back", goes_first=True)
        stage.courier.flush()
        assert stage.link.keys[-1] == [b"back", b"d"]

    played(play)


def test_a_source_makes_its_block_when_the_call_is_sent() -> None:
    async def play(stage: Stage) -> None:
        stage.courier.ready(lambda: None)
        await stage.turn()
        assert not stage.link.calls
        blocks: list[Block] = []
        stage.courier.ready(lambda: blocks.pop())
        blocks.append(Block([b"late"], b"", [], lambda _reply, _delivery: None))
        await stage.turn()
        assert stage.link.keys == [[b"late"]]

    played(play)


def test_a_source_that_fails_keeps_nobody_from_being_sent(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Block:
        raise LookupError("a bug")

    async def play(stage: Stage) -> None:
        stage.call(b"before")
        stage.courier.ready(fails)
        stage.call(b"after")
        await stage.turn()
        assert stage.link.keys == [[b"before", b"after"]]

    played(play)
    assert "LookupError: a bug" in caplog.text


def test_a_reply_that_cannot_be_used_keeps_nobody_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_reply: Any, _delivery: Delivery | None) -> None:
        raise LookupError("a bug")

    async def play(stage: Stage) -> None:
        stage.courier.call(Block([b"bad"], b"", [b"length", b"0"], fails))
        stage.call(b"good")
        await stage.turn()
        stage.link.reply([0, 0, 1])

    assert played(play).received == [(b"good", 1)]
    assert "LookupError: a bug" in caplog.text


def test_questions_have_no_record() -> None:
    async def play(stage: Stage) -> None:
        stage.call(b"a", changes=False)
        await stage.turn()
        ((keys, arguments, _),) = stage.link.calls
        assert (keys, arguments[Header.NUMBER]) == ([b"a", RECORDS], b"")
        assert not stage.courier.has_records

    played(play)


def test_a_record_is_dropped_when_all_that_the_call_has_brought_has_arrived() -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b"):
            stage.call(key, waits=True)
        await stage.turn()
        stage.link.reply([1, 1, 2])
        stage.deliveries[0].release()
        stage.call(b"next")
        await stage.turn()
        assert stage.link.header(Header.DONE) == b""
        stage.link.reply([0, 1])
        stage.deliveries[1].release()
        stage.call(b"question", changes=False)
        stage.courier.flush()
        assert stage.link.header(Header.DONE) == b"", "its refusal would be that of the question"
        stage.link.reply([0, 1])
        stage.call(b"next")
        await stage.turn()
        assert stage.link.header(Header.DONE) == b"1"
        assert stage.courier.has_records
        stage.link.reply([0, 1])
        assert not stage.courier.has_records

    assert played(play).times_without_records == 1


def test_an_idle_server_drops_records_by_a_call_of_its_own() -> None:
    async def play(stage: Stage) -> None:
        stage.call(b"a")
        await stage.turn()
        stage.link.reply([1, 1])
        stage.link.called.get_nowait()
        assert await asyncio.wait_for(stage.link.called.get(), TIMEOUT)
        ((keys, arguments, _),) = stage.link.calls
        assert keys == [RECORDS]
        assert len(arguments) == len(Header)
        # It is not known whether that was done: it is asked for again, a while later.
        stage.link.reply(OutcomeUnknownError())
        await stage.turn()
        assert not stage.link.calls
        stage.courier.drop_records()
        assert stage.link.header(Header.DONE) == b"1"

    played(play)


def test_however_many_records_are_done_with_all_are_dropped() -> None:
    async def play(stage: Stage) -> None:
        fields = [b"o1.%d" % number for number in range(2500)]
        for field in fields:
            stage.courier.add_record(field)
            stage.courier.record_done(field)
        stage.courier.drop_records()
        dropped = [arguments[Header.DONE].split() for _, arguments, _ in stage.link.calls]
        assert [len(some) for some in dropped] == [1000, 1000, 500]
        for _ in dropped:
            stage.link.reply([0])
        assert not stage.courier.has_records

    played(play)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_what_a_call_without_an_answer_has_taken_goes_back(done: int) -> None:
    async def play(stage: Stage) -> None:
        for key in (b"a", b"b"):
            stage.call(key)
        await stage.turn()
        stage.link.reply(OutcomeUnknownError())
        assert not stage.resolved
        await stage.turn()
        ((keys, arguments, _),) = stage.link.calls
        assert keys == [RECORDS, RECORDS]
        assert arguments[len(Header) :] == [b"1", b"1", RECOVER, b"1"]
        stage.link.reply([0, [0, done, 0, b"", b"a", 1]])

    stage = played(play)
    assert stage.resolved == [done > 0, done > 1]
    assert stage.back == [b"a"]
    assert not stage.courier.has_records


class _Nobody(Owner):
    def completed(self, _operation: Operation) -> None:
        pass


class PlayedLanesLink(PlayedLink):
    """With what lanes ask of a link, too."""

    number = 0
    pause_after_deaths = 0.0
    is_up = True
    heartbeats = object()
    is_back: Callable[[], None] | None = None


def test_an_operation_that_comes_alone_leaves_at_the_end_of_its_read() -> None:
    async def play() -> None:
        link = PlayedLanesLink()
        lanes = LaneDispatcher(
            cast(Link, link), cast(Watch, ModelWatch()), cast(Turns, ModelTurns()),
            cast(Durability, ModelDurability(is_enabled=False)),
            prefix=b"p", identity=b"me", policy=Policy(), waiters=WaiterCount(1),
        )  # fmt: skip

        def read(*names: bytes) -> int:
            """Add a question on each queue, as one read; return how many calls have left by then."""
            for name in names:
                lanes.add(Operation(verbs.LENGTH, name, [], 1, _Nobody()))
            lanes.flush()
            return len(link.calls)

        async def answer(blocks: int) -> None:
            await link.called.get()
            link.reply([0, *([[0, 1]] * blocks)])

        # After one that came alone, one that comes alone again does not wait for the next turn of the loop.
        assert read(b"a") == 0
        await answer(1)
        assert read(b"b") == 1
        await answer(1)
        assert read(b"c", b"d") == 0
        await answer(2)
        assert read(b"e") == 0
        await answer(1)

    asyncio.run(play())
