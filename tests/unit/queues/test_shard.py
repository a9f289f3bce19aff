"""Idle lanes: which are kept, what they know, and when that is forgotten."""

import asyncio
from collections.abc import Iterator
from typing import cast
from unittest.mock import Mock

import pytest

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import OutcomeUnknownError
from pressure_server.queues import shard
from pressure_server.queues.housekeeping import Housekeeping
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import given_up
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from tests.interleavings.connections import ModelDurability, ModelWatch
from tests.unit.queues.fake_link import FakeLink

NO_BOUND, BOUND = 0, -1


class Ended(Owner):
    """An owner that is not interested."""

    def completed(self, _operation: Operation) -> None:
        pass


class Gone(Owner):
    """A client that has gone when its operation ends."""

    def completed(self, operation: Operation) -> None:
        operation.put_back()


class Harness:
    """Lanes with a fake link."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.watch = ModelWatch()
        self.lanes = Shard(
            cast(Link, self.link), cast(Watch, self.watch), Mock(spec=Turns),
            cast(Durability, ModelDurability(is_enabled=False)),
            prefix=b"p", identity=b"me", policy=Policy(), waiters=WaiterCount(1), answers=Answers(),
        )  # fmt: skip
        self.lanes.housekeeping = Mock(spec=Housekeeping)

    def use(self, name: bytes, bound_state: int = NO_BOUND) -> object:
        """Do an operation on a queue; return its lane."""
        lane = self.lanes.add(Operation(verbs.LENGTH, name, [], 1, Ended()))
        self.lanes.courier.flush()
        self.link.reply([0, [bound_state, 1]])
        return lane

    def may_be_bounded(self, name: bytes) -> bool:
        return self.lanes._lanes[name].may_be_bounded

    @property
    def idle(self) -> list[bytes]:
        """The queues whose lanes are idle."""
        return [name for name, lane in self.lanes._lanes.items() if not lane.is_in_use]


@pytest.fixture
def harness() -> Iterator[Harness]:
    async def make() -> Harness:
        return Harness()

    with asyncio.Runner() as runner:
        yield runner.run(make())


def test_an_idle_lane_is_used_again(harness: Harness) -> None:
    assert harness.use(b"q") is harness.use(b"q")


@pytest.mark.interpreted
def test_the_lanes_that_were_used_last_are_kept(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_MOST_IDLE", 3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        harness.use(name)
    assert harness.idle == [b"c", b"d", b"a"]


def test_a_million_queues_leave_a_bounded_number_of_lanes(harness: Harness) -> None:
    for number in range(2 * shard._MOST_IDLE):
        harness.use(b"%d" % number)
    assert len(harness.idle) == shard._MOST_IDLE
    assert not harness.lanes._in_use


def test_a_lane_with_a_long_name_is_not_kept(harness: Harness) -> None:
    harness.use(b"n" * 300)
    assert not harness.idle


def test_a_lane_that_knows_nothing_is_not_kept(harness: Harness) -> None:
    harness.lanes.add(Operation(verbs.LENGTH, b"q", [], 1, Ended()))
    harness.lanes.courier.flush()
    harness.link.reply(OutcomeUnknownError())
    assert not harness.idle


def test_a_lane_knows_whether_its_queue_has_a_bound(harness: Harness) -> None:
    harness.use(b"q", BOUND)
    assert harness.may_be_bounded(b"q")
    harness.use(b"q", NO_BOUND)
    assert not harness.may_be_bounded(b"q")


def test_what_is_known_of_a_queue_is_forgotten_when_its_bound_changes(harness: Harness) -> None:
    harness.use(b"q")
    harness.lanes.changed(b"p:q:bound")
    assert harness.may_be_bounded(b"q")
    harness.use(b"q")
    assert not harness.may_be_bounded(b"q")


def test_idle_lanes_are_forgotten_when_the_watch_is_lost(harness: Harness) -> None:
    harness.use(b"q")
    harness.lanes.watch_lost()
    assert not harness.idle


def test_a_command_finds_the_jobs_given_up_that_were_reserved_by_a_client_that_left_before_it(
    harness: Harness,
) -> None:
    harness.lanes.reservations.give_up(b"q", [(1, 3), (2, 1)], b"+7")
    for _ in range(2):
        harness.lanes.add(Operation(verbs.GET, b"q", [], 1, Ended()))
    harness.lanes.courier.flush()
    (call,) = harness.link.calls
    jobs = [given_up(2, 1, b"+7"), given_up(1, 3, b"+7")]
    assert call.arguments.unpacked()[-4:] == [verbs.GIVE_UP.name, b"2", *jobs]
    harness.link.reply([0, [NO_BOUND, [1, 1]]])
    harness.lanes.courier.flush()
    assert verbs.GET.name in harness.link.calls[0].arguments.unpacked()


def test_messages_of_a_block_that_also_puts_are_in_flight_until_they_are_delivered(harness: Harness) -> None:
    put = Operation(verbs.PUT, b"q", [b"m"], 1, Ended())
    get = Operation(verbs.GET, b"q", [], 1, Ended())
    for operation in (put, get):
        harness.lanes.add(operation)
    harness.lanes.courier.flush()
    harness.link.reply([1, [NO_BOUND, 0, [b"m"]]])
    assert (put.results, get.results) == ([1], [b"m"])
    assert get.deliveries is not None
    assert len(harness.lanes.courier.records)


def test_a_lane_stays_while_messages_for_a_client_that_has_gone_are_on_their_way_back(
    harness: Harness,
) -> None:
    harness.lanes.add(Operation(verbs.GET, b"q", [], 1, Gone()))
    harness.lanes.courier.flush()
    harness.link.reply([1, [NO_BOUND, [b"m"]]])
    lane = harness.lanes._lanes[b"q"]
    assert lane.has_put_backs
    harness.lanes.flush_put_backs([b"q"])
    assert verbs.PUT_BACK.name in harness.link.calls[0].arguments.unpacked()
