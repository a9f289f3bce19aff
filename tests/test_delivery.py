"""Deliveries, and when the records of slow ones are cut down. The courier is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pressure_server.queues.calls.slow_deliveries import SlowDeliveries
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import NotifyOnSuccess
from pressure_server.queues.operations.put_back import put_back_operations


class Stage:
    """A slow delivery of four messages to as many operations; `cuts` are what records were cut down to."""

    def __init__(self) -> None:
        self.cuts: list[list[bytes]] = []
        self.arrived = 0
        self.slow = SlowDeliveries(b"p", lambda _number, left: self.cuts.append(left))
        self.delivery = Delivery(7, self.has_arrived, lambda _: None)
        self.operations = [Operation(verbs.GET, b"q", [], 1, NotifyOnSuccess()) for _ in range(4)]

    def has_arrived(self) -> None:
        self.arrived += 1

    def share(self) -> None:
        for number, operation in enumerate(self.operations):
            operation.results = [b"%d" % number]
            self.delivery.add(operation)
            operation.add_delivery(self.delivery)
        self.delivery.release()


def played(play: Callable[[Stage], None]) -> Stage:
    async def played_here() -> Stage:
        stage = Stage()
        play(stage)
        return stage

    return asyncio.run(played_here())


def test_a_record_is_cut_down_when_half_has_arrived_or_no_more_does() -> None:
    def play(stage: Stage) -> None:
        stage.share()
        stage.slow.add(stage.delivery)
        stage.slow._check()
        assert not stage.cuts
        stage.operations[0].acknowledge()
        stage.slow._check()
        assert not stage.cuts
        stage.slow._check()
        assert stage.cuts == [[b"p:q", b"1", b"1", b"p:q", b"1", b"2", b"p:q", b"1", b"3"]]
        stage.slow._check()
        stage.operations[1].acknowledge()
        stage.operations[2].acknowledge()
        stage.slow._check()
        assert stage.cuts[1:] == [[b"p:q", b"1", b"3"]]
        stage.operations[3].acknowledge()
        stage.slow._check()
        assert len(stage.cuts) == 2

    assert played(play).arrived == 1


def test_what_is_on_its_way_back_stays_in_the_record() -> None:
    def play(stage: Stage) -> None:
        stage.share()
        stage.slow.add(stage.delivery)
        ((number, restore),) = put_back_operations(stage.operations[0])
        assert (number, restore.messages) == (7, [b"7", b"0"])
        for operation in stage.operations[2:]:
            operation.acknowledge()
        stage.slow._check()
        assert stage.cuts == [[b"p:q", b"1", b"0", b"p:q", b"1", b"1"]]
        restore.owner.completed(restore)
        stage.operations[1].acknowledge()

    assert played(play).arrived == 1


def test_nothing_is_cut_while_it_is_not_known_who_has_it() -> None:
    def play(stage: Stage) -> None:
        stage.slow.add(stage.delivery)
        stage.slow._check()
        stage.slow._check()
        stage.share()
        stage.slow._check()
        assert not stage.cuts

    played(play)
