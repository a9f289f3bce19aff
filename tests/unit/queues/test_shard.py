"""Idle lanes: which are kept, what they know, and when that is forgotten."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pressure_server.errors import OutcomeUnknownError
from pressure_server.queues import shard
from pressure_server.queues.housekeeping import Housekeeping
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import reserved_as
from pressure_server.queues.operations.operation import Operation, Owner, Verb
from tests.unit.net.fake_server import Server
from tests.unit.queues.operations_of import Recorder

NO_BOUND, BOUND = 0, -1


class Gone(Recorder):
    """A client that has gone when its operation ends."""

    def completed(self, operation: Operation) -> None:
        operation.put_back()


class Harness:
    """The lanes of a server with a fake link."""

    def __init__(self, server: Server) -> None:
        self.link, self.lanes = server.link, server.shard
        self.lanes.housekeeping = cast(Housekeeping, SimpleNamespace(clean=lambda _name: None))

    def add(self, verb: Verb, name: bytes = b"q", *messages: bytes, owner: Owner | None = None) -> Operation:
        operation = Operation(verb, name, [*messages], 1, owner or Recorder())
        self.lanes.add(operation)
        return operation

    def reply(self, reply: Any) -> None:
        self.lanes.courier.flush()
        self.link.reply(reply)

    def use(self, name: bytes, bound_state: int = NO_BOUND) -> object:
        """Do an operation on a queue; return its lane."""
        self.add(verbs.LENGTH, name)
        lane = self.lanes._lanes[name]
        self.reply([0, [bound_state, 1]])
        return lane

    def may_be_bounded(self, name: bytes) -> bool:
        return self.lanes._lanes[name].may_be_bounded

    @property
    def idle(self) -> list[bytes]:
        """The queues whose lanes are idle."""
        return [name for name, lane in self.lanes._lanes.items() if not lane.is_in_use]


@pytest.fixture
def harness(server: Server) -> Harness:
    return Harness(server)


def test_an_idle_lane_is_used_again_and_forgets_its_bound_when_that_changes(harness: Harness) -> None:
    lane = harness.use(b"q")
    assert not harness.may_be_bounded(b"q")
    harness.lanes.changed(b"p:q:bound")
    assert harness.may_be_bounded(b"q")
    assert harness.use(b"q") is lane
    assert not harness.may_be_bounded(b"q")


@pytest.mark.interpreted
def test_the_lanes_that_were_used_last_are_kept(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_MOST_KEPT", 3)
    for name in (b"a", b"b", b"c", b"d", b"a", b"e"):
        harness.use(name)
    assert harness.idle == [b"a", b"d", b"e"]


def test_a_million_queues_leave_a_bounded_number_of_lanes(harness: Harness) -> None:
    for number in range(2 * shard._MOST_KEPT):
        harness.use(b"%d" % number)
    assert len(harness.idle) <= shard._MOST_KEPT + 4
    assert not harness.lanes._in_use


def test_lanes_that_know_nothing_or_have_a_long_name_or_no_watch_are_not_kept(harness: Harness) -> None:
    harness.use(b"n" * 300)
    assert not harness.idle
    harness.add(verbs.LENGTH)
    harness.reply(OutcomeUnknownError())
    assert not harness.idle
    harness.use(b"q")
    assert harness.idle
    harness.lanes.watch_lost()
    assert not harness.idle


def test_a_command_finds_the_jobs_given_up_that_were_reserved_by_a_client_that_left_before_it(
    harness: Harness,
) -> None:
    harness.lanes.reservations.give_up(b"q", [(1, 3), (2, 1)], b"+7")
    for _ in range(2):
        harness.add(verbs.GET)
    harness.lanes.courier.flush()
    (call,) = harness.link.calls
    jobs = [reserved_as(2, 1, b"+7"), reserved_as(1, 3, b"+7")]
    assert call.arguments()[-4:] == [verbs.GIVE_UP.name, b"2", *jobs]
    harness.link.reply([0, [NO_BOUND, [1, 1]]])
    harness.lanes.courier.flush()
    assert verbs.GET.name in harness.link.calls[0].arguments()


def test_messages_of_a_block_that_also_puts_are_in_flight_until_they_are_delivered(harness: Harness) -> None:
    put, get = harness.add(verbs.PUT, b"q", b"m"), harness.add(verbs.GET)
    harness.reply([1, [NO_BOUND, 0, [b"m"]]])
    assert (put.results, get.results) == ([1], [b"m"])
    assert get.deliveries is not None
    assert len(harness.lanes.courier.records)


def test_a_lane_stays_while_messages_for_a_client_that_has_gone_are_on_their_way_back(
    harness: Harness,
) -> None:
    harness.add(verbs.GET, owner=Gone())
    harness.reply([1, [NO_BOUND, [b"m"]]])
    assert harness.lanes._lanes[b"q"].has_put_backs
    harness.lanes.flush_put_backs([b"q"])
    assert verbs.PUT_BACK.name in harness.link.calls[0].arguments()
