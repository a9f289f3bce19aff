"""Turns in roles that native clients hold: when a lane asks for one, keeps it, and gives it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from pressure_server.backend.turns import Turns
from pressure_server.errors import PressureError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.owners import CoroutineOwner
from pressure_server.queues.operations.wait import Wait, WaitCondition
from pressure_server.queues.shard import Shard
from pressure_server.queues.waiting.role_turns import QueueTurns, RoleTurns
from pressure_server.queues.waiting.waiting_line import WaitingLine
from tests.unit.queues.operations_of import Recorder, get, put, wait_of

PRODUCER, CONSUMER = WaitCondition.PRODUCER_ROLE, WaitCondition.CONSUMER_ROLE


class Lane:
    """The two lines of a lane, and its turns. `said` has what it says to the turns of the server."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []
        self.lines = {line: WaitingLine(b"q") for line in Line}
        self.turns = QueueTurns(b"q", self.lines, cast(RoleTurns, self))

    def ask(self, name: bytes, condition: WaitCondition, *, for_listeners: bool = False) -> None:
        self.said.append(("ask", name, condition, for_listeners))

    def withdraw(self, name: bytes, condition: WaitCondition) -> None:
        self.said.append(("withdraw", name, condition))

    def give_back(self, name: bytes) -> None:
        self.said.append(("give back", name))

    def wait(self, operation: Operation, condition: WaitCondition) -> Operation:
        """Let an operation wait in its line."""
        wait = operation.wait = operation.wait or Wait(found_queue=True)
        wait.condition, wait.in_line = condition, True
        assert operation.verb.line is not None
        self.lines[operation.verb.line].add(operation)
        return operation

    def after(self, *must_wait: Operation, held: Iterable[WaitCondition] = ()) -> None:
        """Take a reply: these operations must wait, and native clients hold these roles."""
        progress = Progress([])
        progress.must_wait, progress.held_roles = must_wait, set(held)
        self.turns.ask(progress)


@pytest.fixture
def lane() -> Lane:
    return Lane()


def test_a_lane_asks_for_the_role_that_an_operation_waits_for(lane: Lane) -> None:
    lane.after(lane.wait(put(b"m"), PRODUCER))
    assert lane.said == [("ask", b"q", PRODUCER, False)]


def test_a_lane_asks_for_a_held_role_if_its_holder_waits_for_the_same(lane: Lane) -> None:
    """Redis would serve the holder first."""
    waiting = lane.wait(get(), WaitCondition.MESSAGE)
    lane.after(waiting, held=[PRODUCER, CONSUMER])
    assert lane.said == [("ask", b"q", CONSUMER, False)]


def test_a_move_asks_for_the_role_at_its_destination(lane: Lane) -> None:
    moving = Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=Wait(None, destination=b"d"))
    wait_of(moving).at_destination = True
    lane.after(lane.wait(moving, PRODUCER))
    assert lane.said == [("ask", b"d", PRODUCER, True)]


def test_a_turn_ends_when_an_operation_that_needs_the_role_has_ended_or_none_needs_it(lane: Lane) -> None:
    first, second = lane.wait(put(b"a"), PRODUCER), lane.wait(put(b"b"), PRODUCER)
    lane.turns.begin(PRODUCER)
    lane.turns.end([lane.wait(get(), WaitCondition.MESSAGE)])
    assert lane.said == []
    lane.lines[Line.PRODUCERS].remove(first)
    lane.turns.end([first])
    assert lane.said == [("give back", b"q")]
    lane.turns.begin(PRODUCER)
    lane.turns.end()
    assert len(lane.said) == 1
    lane.lines[Line.PRODUCERS].remove(second)  # its client has gone
    for _ in range(2):
        lane.turns.end()
        assert lane.said[1:] == [("give back", b"q")]


def test_a_turn_that_has_not_come_is_withdrawn_when_no_operation_needs_it(lane: Lane) -> None:
    operation = lane.wait(put(b"a"), PRODUCER)
    lane.after(operation)
    lane.turns.end()
    assert len(lane.said) == 1
    lane.lines[Line.PRODUCERS].remove(operation)
    lane.turns.end()
    assert lane.said[1:] == [("withdraw", b"q", PRODUCER)]
    lane.turns.end()
    assert len(lane.said) == 2


class RoleServer:
    """The lanes of one database, the native clients' line for their roles, and the turns between them."""

    prefix = b"p"
    database_number = 3

    def __init__(self) -> None:
        self.is_up = True
        self.said: list[tuple[object, ...]] = []
        self.submitted: list[Operation] = []
        self.later: list[Callable[[], None]] = []
        self.ended: Callable[[bool], None] = lambda _: None
        self.turns = RoleTurns(cast(Shard, self), cast(Turns, self))

    # The lanes.

    @property
    def notifications(self) -> RoleServer:
        return self

    def notify(self, name: bytes) -> None:
        self.said.append(("notify", name))

    def submit(self, operation: Operation) -> None:
        self.submitted.append(operation)

    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        self.said.append(("attempt", operation.verb, operation.name))
        return [1]

    def take_turn(self, name: bytes, role: WaitCondition) -> None:
        self.said.append(("take turn", name, role))

    def after_iterations(self, iterations: int, follows: Callable[[], None]) -> None:
        self.later.append(follows)

    def wake_up(self, names: Iterable[bytes]) -> None:
        self.said.append(("wake up", *names))

    # The line for roles.

    def wait_in_line(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        self.said.append(("wait in line", number, token, parked))
        self.ended = ended

    def withdraw(self, number: int, parked: bytes) -> None:
        self.said.append(("withdraw", number, parked))

    def forget_note(self, number: int, parked: bytes) -> None:
        self.said.append(("forget", number, parked))

    async def noted_keys(self, number: int) -> list[bytes]:
        return [b"p:a:ext:producer_turn", b"p:b:ext:consumer_turn", b"other:c:ext:producer_turn", b"p:d"]


@pytest.fixture
def server() -> RoleServer:
    return RoleServer()


@pytest.mark.parametrize(
    ("has_token", "follows"), [(True, ("take turn", b"q", PRODUCER)), (False, ("wake up", b"q"))]
)
def test_the_lane_has_its_turn_when_the_role_s_token_has_come_or_tries_again(
    server: RoleServer, has_token: bool, follows: tuple[object, ...]
) -> None:
    server.turns.ask(b"q", PRODUCER)
    assert server.said == [("wait in line", 3, b"p:q:producer_free", b"p:q:ext:producer_turn")]
    server.ended(has_token)
    assert server.said[1:] == [follows]


def test_a_turn_at_a_destination_is_given_back_after_the_listeners_have_acted(server: RoleServer) -> None:
    server.turns.ask(b"d", PRODUCER, for_listeners=True)
    server.ended(True)
    assert server.said[1:] == [("notify", b"d")]
    assert server.submitted == []
    server.later[0]()
    assert [(one.verb, one.name) for one in server.submitted] == [(verbs.TURN, b"d")]


def test_a_turn_is_given_back_by_an_operation_and_then_forgotten(server: RoleServer) -> None:
    server.turns.give_back(b"q")
    (turn,) = server.submitted
    turn.results = [1]
    turn.owner.completed(turn)
    assert set(server.said) == {
        ("forget", 3, b"p:q:ext:producer_turn"), ("forget", 3, b"p:q:ext:consumer_turn"),
    }  # fmt: skip
    server.turns.backend_is_back()
    assert len(server.submitted) == 1


def test_a_turn_is_given_back_when_the_backend_is_back(server: RoleServer) -> None:
    server.is_up = False
    server.turns.give_back(b"q")
    assert server.submitted == []
    server.is_up = True
    server.turns.backend_is_back()
    assert [one.name for one in server.submitted] == [b"q"]
    # It failed: it is given back the next time.
    server.submitted[0].error = PressureError("no")
    server.submitted[0].owner.completed(server.submitted[0])
    server.turns.backend_is_back()
    assert len(server.submitted) == 2


async def test_turns_of_a_server_that_died_are_ended(server: RoleServer) -> None:
    await server.turns.end_noted_turns()
    attempts = [said for said in server.said if said[0] == "attempt"]
    assert attempts == [("attempt", verbs.TURN, b"a"), ("attempt", verbs.TURN, b"b")]
