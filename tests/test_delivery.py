"""Deliveries, and when the records of slow ones are cut down. The courier is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pressure_server.queues.calls.slow_deliveries import SlowDeliveries
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import OnSuccess
from pressure_server.queues.operations.restoring import restoring


class Stage:
    """A slow delivery of four messages to as many operations; `cuts` are what records were cut down to."""

    def __init__(self) -> None:
        self.cuts: list[list[bytes]] = []
        self.arrived = 0
        self.slow = SlowDeliveries(b"p", lambda _number, left: self.cuts.append(left))
        self.delivery = Delivery(7, self.has_arrived, lambda _: None)
        self.operations = [Operation(verbs.GET, b"q", [], 1, OnSuccess()) for _ in range(4)]

    def has_arrived(self) -> None:
        self.arrived += 1

    def share(self) -> None:
        for number, operation in enumerate(self.operations):
            operation.results = [b"%d" % number]
            self.delivery.expect(operation)
            operation.came_with(self.delivery)
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
        stage.slow._look()
        assert not stage.cuts
        stage.operations[0].delivered()
        stage.slow._look()
        assert not stage.cuts
        stage.slow._look()
        assert stage.cuts == [[b"p:q", b"1", b"1", b"p:q", b"1", b"2", b"p:q", b"1", b"3"]]
        stage.slow._look()
        stage.operations[1].delivered()
        stage.operations[2].delivered()
        stage.slow._look()
        assert stage.cuts[1:] == [[b"p:q", b"1", b"3"]]
        stage.operations[3].delivered()
        stage.slow._look()
        assert len(stage.cuts) == 2

    assert played(play).arrived == 1


def test_what_is_on_its_way_back_stays_in_the_record() -> None:
    def play(stage: Stage) -> None:
        stage.share()
        stage.slow.add(stage.delivery)
        ((number, restore),) = restoring(stage.operations[0])
        assert (number, restore.messages) == (7, [b"7", b"0"])
        for operation in stage.operations[2:]:
            operation.delivered()
        stage.slow._look()
        assert stage.cuts == [[b"p:q", b"1", b"0", b"p:q", b"1", b"1"]]
        restore.owner.completed(restore)
        stage.operations[1].delivered()

    assert played(play).arrived == 1


def test_nothing_is_cut_while_it_is_not_known_who_has_it() -> None:
    def play(stage: Stage) -> None:
        stage.slow.add(stage.delivery)
        stage.slow._look()
        stage.slow._look()
        stage.share()
        stage.slow._look()
        assert not stage.cuts

    played(play)
