"""The courier: which blocks go together in a call, and how replies and records are handled. No backend."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import pytest

from pressure_server.backend.requests import Caller, Channel
from pressure_server.backend.resp import Received
from pressure_server.errors import BackendError, OutcomeUnknownError
from pressure_server.lua.layout import HEADER_SIZE, RECOVER
from pressure_server.lua.scripts import library
from pressure_server.queues.calls.call import Block, Call, Part
from pressure_server.queues.calls.courier import MOST_IN_FLIGHT, Courier
from pressure_server.queues.lanes.revived import Revived
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import Answers, WithoutClient
from pressure_server.queues.shard import Shard
from tests.support.programs import TIMEOUT
from tests.support.scripts import header_of
from tests.unit.net.fake_server import Server
from tests.unit.queues.fake_link import FakeLink
from tests.unit.queues.operations_of import Recorder

HEADER = (b"me", b"0", b"block", b"0 0")
RECORDS = b"records"


class FakeRevived(Revived):
    """A search that is counted."""

    def __init__(self) -> None:
        self.searches = 0

    def search(self) -> None:
        self.searches += 1


class FakeShard(Shard):
    """A shard that notes what its courier tells."""

    def __init__(self) -> None:
        self.prefix = b"p"
        self.answers = Answers()
        self.back: list[bytes] = []
        self.revived = self.reservations_searched = FakeRevived()

    def put_back(self, _operation: Operation) -> None:
        raise AssertionError("nothing was taken")

    def when_back(self, follows: Callable[[], None]) -> None:
        follows()

    def messages_are_back(self, bases: Sequence[bytes]) -> None:
        self.back += bases


class Harness:
    """A courier with a fake link and shard. Keeps the replies to blocks, with their keys."""

    def __init__(self, runner: asyncio.Runner, most_in_flight: int = MOST_IN_FLIGHT) -> None:
        self._runner = runner
        self.link = FakeLink()
        self.shard = FakeShard()
        self.courier = runner.run(self._make_courier(most_in_flight))
        self.received: list[tuple[bytes, Any]] = []
        self.got: list[Operation] = []
        self.resolved: list[bool] = []

    async def _make_courier(self, most_in_flight: int) -> Courier:
        return Courier(self.link, self.shard, Caller(HEADER, RECORDS), most_in_flight)

    @property
    def keys(self) -> list[list[bytes]]:
        """The queues' keys in each call in flight."""
        return [call.keys for call in self.link.calls]

    @property
    def dropped(self) -> bytes:
        """The records that the oldest call in flight drops."""
        return self.link.calls[0].dropped

    def block(self, key: bytes, size: int = 1, *, changes: bool = True, gets: bool = False) -> Block:
        """Return a block. With `gets`, it gets a message, which the test has to acknowledge."""

        def received(reply: Any, delivery: Delivery | None) -> None:
            self.received.append((key, reply))
            if delivery is not None and gets:
                operation = Operation(verbs.GET, key, [], 1, WithoutClient())
                operation.results = [b"m"]
                delivery.add([operation])
                self.got.append(operation)

        runs = [b"put unique", b"2", b"", b"m" * size]
        return Block([key], b"", runs, received, changes, resolved=self.resolved.append)

    def add(self, *keys: bytes, size: int = 1, changes: bool = True, gets: bool = False) -> None:
        """Make a block ready for each key."""
        for key in keys:
            self.courier.ready(self.block(key, size, changes=changes, gets=gets))

    def send(self, *keys: bytes, changes: bool = True, gets: bool = False) -> None:
        """Make a block ready for each key, and let the courier send them."""
        self.add(*keys, changes=changes, gets=gets)
        self.run_loop()

    def run_loop(self) -> None:
        """Run a few iterations of the event loop."""

        async def iterate() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self._runner.run(iterate())

    def wait_for_call(self) -> None:
        self._runner.run(asyncio.wait_for(self.link.called.get(), TIMEOUT))


@pytest.fixture
def harness(runner: asyncio.Runner) -> Harness:
    return Harness(runner)


class NewMaster(Channel):
    """A channel to a node that has some records, and lacks the calls after the one with the number `last`."""

    def __init__(self, *records: bytes, last: int = 10) -> None:
        self.epoch = 2
        self.guard = b""
        self.library = library()
        self.records = records
        self.last = b"1 %d" % last
        self.calls: list[list[bytes]] = []

    async def command(self, *words: bytes) -> Any:
        return [b"epoch", b"last", *self.records] if words[0] == b"HKEYS" else self.last

    def send_packed(self, received: Received | None, pieces: Sequence[bytes]) -> None:
        """Let each block put a message back, or refuse the call."""
        assert received is not None
        reader = hiredis.Reader()
        reader.feed(b"".join(pieces))
        words = reader.gets()
        blocks = int(words[2]) - 1  # each has the key of the records
        self.calls.append(words[3 + blocks + 1 + HEADER_SIZE :])
        received([0, *([0, 1, 0, b"", b"p:q%d" % number, 1] for number in range(blocks))])


def test_records_that_a_new_master_still_has_go_back_again_or_are_dropped_again(
    harness: Harness, runner: asyncio.Runner
) -> None:
    """A record whose messages went back is recovered, the latest first. Any other had been delivered."""
    harness.send(b"a")
    harness.link.reply([1, 5])
    for number in (3, 10, 11):
        harness.courier.records.note_put_back(number)
    master = NewMaster(b"2", b"10", b"3", last=0)
    runner.run(harness.courier.records.count_lost(cast(Channel, master)))
    assert master.calls == [[b"1", b"1", RECOVER, b"10", b"1", b"1", RECOVER, b"3"]]
    assert harness.shard.back == [b"p:q0", b"p:q1"]
    assert harness.shard.reservations_searched.searches == 1
    harness.courier.records.drop()
    (call,) = harness.link.calls
    assert (call.parts, call.dropped) == ([], b"1 2")


def test_a_backend_that_lacks_no_call_has_put_back_what_went_back(
    harness: Harness, runner: asyncio.Runner
) -> None:
    """The rest of such a record has been delivered, or is being delivered."""
    harness.send(b"a")
    harness.link.reply([1, 5])
    harness.courier.records.note_put_back(1)
    harness.courier.records.note_put_back(3)
    master = NewMaster(b"1", b"3", last=1)
    runner.run(harness.courier.records.count_lost(cast(Channel, master)))
    assert master.calls == []
    assert harness.shard.reservations_searched.searches == 0
    harness.courier.records.drop()
    (call,) = harness.link.calls
    assert call.dropped == b"1 3"


def test_a_record_of_a_call_in_flight_is_left_to_that_call(harness: Harness, runner: asyncio.Runner) -> None:
    harness.add(b"a")
    harness.courier.flush()
    runner.run(harness.courier.records.count_lost(cast(Channel, master := NewMaster(b"1"))))
    assert not master.calls
    harness.link.reply([1, 5])
    harness.courier.records.drop()
    assert harness.dropped == b"1"


def test_blocks_that_are_ready_together_go_in_one_call(harness: Harness) -> None:
    harness.send(b"a", b"b")
    (call,) = harness.link.calls
    assert (call.keys, call.caller.records) == ([b"a", b"b"], RECORDS)
    block = [b"1", b"4", b"", b"put unique", b"2", b"", b"m"]
    assert (header_of(call), call.arguments()) == ([*HEADER, b"0", b"1", b"", b""], block + block)
    harness.link.reply([1, [0, b"new"], hiredis.ReplyError("OOM no")])
    (a, first), (b, second) = harness.received
    assert (a, first, b) == (b"a", [0, b"new"], b"b")
    assert isinstance(second, hiredis.ReplyError)


@pytest.mark.parametrize("most", [1, 3])
def test_calls_in_flight_are_limited(runner: asyncio.Runner, most: int) -> None:
    harness, keys = Harness(runner, most), [b"a", b"b", b"c", b"d", b"e"]
    for key in keys:
        harness.send(key)
    assert harness.keys == [[key] for key in keys[:most]]
    harness.link.reply([0, 1])
    harness.run_loop()
    assert harness.keys == [*([key] for key in keys[1:most]), keys[most:]]


@pytest.mark.parametrize(("ready", "calls"), [(7, [7]), (10, [8, 2]), (30, [10, 10, 10]), (900, [200] * 3)])
def test_ready_blocks_are_divided_among_the_calls_that_may_leave(
    harness: Harness, ready: int, calls: list[int]
) -> None:
    harness.send(*(b"%d" % number for number in range(ready)))
    assert [len(keys) for keys in harness.keys] == calls


def test_an_error_of_a_call_is_the_reply_to_each_block(harness: Harness) -> None:
    harness.send(b"a", b"b")
    harness.link.reply(BackendError("it is away"))
    assert not len(harness.courier.records)
    assert [(key, str(error)) for key, error in harness.received] == [
        (b"a", "it is away"), (b"b", "it is away"),
    ]  # fmt: skip


def test_blocks_that_a_call_leaves_undone_go_first_in_the_next(harness: Harness) -> None:
    harness.send(b"a", b"b", b"c")
    harness.add(b"later")
    harness.link.reply([1, 1])
    harness.run_loop()
    assert harness.keys == [[b"b", b"c", b"later"]]
    harness.link.reply([1, 2, 3, 4])
    assert harness.received == [(b"a", 1), (b"b", 2), (b"c", 3), (b"later", 4)]


def test_the_blocks_and_bytes_of_a_call_are_limited(harness: Harness) -> None:
    harness.add(*(b"%d" % number for number in range(450)))
    harness.add(b"large", size=2 << 20)
    harness.add(b"small")
    harness.courier.flush()
    assert [len(keys) for keys in harness.keys] == [200, 200, 51, 1]


def test_a_block_that_goes_first_precedes_all_ready_blocks(harness: Harness) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        harness.send(key)
    harness.courier.ready(harness.block(b"back"), goes_first=True)
    harness.courier.flush()
    assert harness.keys[-1] == [b"back", b"d"]


class LatePart(Part):
    """A part that makes its block when the call is packed: none, if `make` returns none."""

    def __init__(self, make: Callable[[], Block | None]) -> None:
        self._make = make

    def pack_into(self, call: Call) -> None:
        if block := self._make():
            block.pack_into(call)

    def received(self, reply: Any, delivery: Delivery | None) -> None:
        raise AssertionError


def test_a_part_makes_its_block_when_the_call_is_sent(harness: Harness) -> None:
    blocks: list[Block | None] = [harness.block(b"late"), None]
    harness.courier.ready(LatePart(blocks.pop))
    harness.run_loop()
    assert not harness.link.calls
    harness.courier.ready(LatePart(blocks.pop))
    harness.run_loop()
    assert harness.keys == [[b"late"]]


def fail(*_arguments: Any) -> Any:
    raise LookupError("a bug")


@pytest.mark.parametrize(
    ("part", "replies"),
    [(LatePart(fail), [0, 1]), (Block([b"bad"], b"", [b"length", b"0"], fail), [0, 0, 1])],
    ids=["when it is packed", "when it is replied to"],
)
def test_a_part_that_fails_does_not_stop_others(
    harness: Harness, caplog: pytest.LogCaptureFixture, part: Part, replies: list[int]
) -> None:
    harness.courier.ready(part)
    harness.send(b"good")
    harness.link.reply(replies)
    assert harness.received == [(b"good", 1)]
    assert "LookupError: a bug" in caplog.text


def test_a_call_that_only_reads_has_no_record(harness: Harness) -> None:
    harness.send(b"a", changes=False)
    (call,) = harness.link.calls
    assert (call.keys, call.record) == ([b"a"], b"")
    assert not len(harness.courier.records)


def test_a_record_is_dropped_after_all_its_messages_have_arrived(harness: Harness) -> None:
    link = harness.link
    harness.send(b"a", b"b", gets=True)
    link.reply([1, 1, 2])
    harness.got[0].acknowledge()
    harness.send(b"next")
    assert harness.dropped == b""
    link.reply([0, 1])
    harness.got[1].acknowledge()
    harness.add(b"read", changes=False)
    harness.courier.flush()
    assert harness.dropped == b"", "if the backend refused the drop, the read would fail"
    link.reply([0, 1])
    harness.send(b"next")
    assert harness.dropped == b"1"
    assert len(harness.courier.records)
    link.reply([0, 1])
    assert not len(harness.courier.records)


def test_an_idle_server_drops_records_with_an_extra_call(harness: Harness) -> None:
    harness.send(b"a")
    harness.link.reply([1, 1])
    harness.link.called.get_nowait()
    harness.wait_for_call()
    (call,) = harness.link.calls
    assert (call.keys, call.word_count) == ([], 0)
    # The record may not have been dropped, so a later call drops it again.
    harness.link.reply(OutcomeUnknownError())
    harness.run_loop()
    assert not harness.link.calls
    harness.courier.records.drop()
    assert harness.dropped == b"1"


def test_each_call_drops_at_most_1000_records(harness: Harness) -> None:
    for number in range(2500):
        harness.add(b"q%d" % number, gets=True)
        harness.courier.flush()
        harness.link.reply([1, 0])
    for operation in harness.got:
        operation.acknowledge()
    harness.courier.records.drop()
    dropped = [call.dropped.split() for call in harness.link.calls]
    assert [len(fields) for fields in dropped] == [1000, 1000, 500]
    for _ in dropped:
        harness.link.reply([0])
    assert not len(harness.courier.records)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_messages_of_an_unanswered_call_are_put_back(harness: Harness, done: int) -> None:
    harness.send(b"a", b"b")
    harness.link.reply(OutcomeUnknownError())
    assert not harness.resolved
    harness.run_loop()
    (call,) = harness.link.calls
    assert call.keys == [RECORDS]
    assert call.arguments() == [b"1", b"1", RECOVER, b"1"]
    harness.link.reply([0, [0, done, 0, b"", b"a", 1]])
    assert harness.resolved == [done > 0, done > 1]
    assert harness.shard.back == [b"a"]
    assert not len(harness.courier.records)


def test_operations_that_come_one_at_a_time_are_sent_at_the_end_of_the_read(
    runner: asyncio.Runner, server: Server
) -> None:
    shard, link = server.shard, server.link
    # After one single operation, the next one does not wait for the event loop.
    for names, is_sent in (([b"a"], False), ([b"b"], True), ([b"c", b"d"], False), ([b"e"], False)):
        for name in names:
            shard.add(Operation(verbs.LENGTH, name, [], 1, Recorder()))
        shard.end_of_read()
        assert len(link.calls) == is_sent
        runner.run(link.called.get())
        link.reply([0, *([[0, 1]] * len(names))])
