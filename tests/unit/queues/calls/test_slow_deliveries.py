"""Slow deliveries: when the record of a call is cut down, without a courier and a backend."""

import pytest

from pressure_server.queues.calls.records import SlowDeliveries
from pressure_server.queues.lanes.put_backs import put_back_operations
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import WithoutClient
from tests.unit.conftest import InLoop


class SlowDelivery:
    """A delivery of four messages to four operations. `cuts` has what each cut has left in the record."""

    def __init__(self) -> None:
        self.cuts: list[list[bytes]] = []
        self.completed = 0
        self.slow = SlowDeliveries(b"p", lambda _number, left: self.cuts.append(left))
        self.delivery = Delivery(7, self._complete, lambda _: None)
        self.operations = [Operation(verbs.GET, b"q", [], 1, WithoutClient()) for _ in range(4)]

    def _complete(self) -> None:
        self.completed += 1

    def assign_messages(self) -> None:
        """Give each operation its message."""
        for number, operation in enumerate(self.operations):
            operation.results = [b"%d" % number]
            self.delivery.add([operation])
        self.delivery.end_sharing_out()

    def add(self) -> None:
        """Let checks find the delivery from now on."""
        self.slow.add(self.delivery)

    def acknowledge(self, *numbers: int) -> None:
        for number in numbers:
            self.operations[number].acknowledge()

    def check(self) -> list[list[bytes]]:
        """Let the check run that otherwise runs once a second. Return all cuts."""
        self.slow._check()
        return self.cuts


@pytest.fixture
def slow(in_loop: InLoop) -> SlowDelivery:
    made: SlowDelivery = in_loop(SlowDelivery)
    return made


def test_a_record_is_cut_down_when_half_is_delivered_or_delivery_stalls(slow: SlowDelivery) -> None:
    slow.assign_messages()
    slow.add()
    assert not slow.check()
    slow.acknowledge(0)
    assert not slow.check()
    assert slow.check() == [[b"p:q", b"1", b"1", b"p:q", b"1", b"2", b"p:q", b"1", b"3"]]
    slow.check()
    slow.acknowledge(1, 2)
    assert slow.check()[1:] == [[b"p:q", b"1", b"3"]]
    slow.acknowledge(3)
    assert len(slow.check()) == 2
    assert slow.completed == 1


def test_messages_being_put_back_stay_in_the_record(slow: SlowDelivery) -> None:
    slow.assign_messages()
    slow.add()
    ((number, restore),) = put_back_operations(slow.operations[0])
    assert (number, restore.messages) == (7, [b"7", b"0"])
    slow.acknowledge(2, 3)
    assert slow.check() == [[b"p:q", b"1", b"0", b"p:q", b"1", b"1"]]
    restore.owner.completed(restore)
    slow.acknowledge(1)
    assert slow.completed == 1


def test_a_record_is_not_cut_down_before_its_messages_are_assigned(slow: SlowDelivery) -> None:
    slow.add()
    for _ in range(2):
        slow.check()
    slow.assign_messages()
    assert not slow.check()
