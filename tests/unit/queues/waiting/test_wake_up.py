"""Wake-ups: a change of a queue, before, while and after the server asks for it, is a reason to try again."""

from asyncio import AbstractEventLoop
from collections.abc import Iterable
from typing import cast

import pytest

from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.names import CLOSED, NOT_FULL, READY
from pressure_server.queues.operations.wait import WaitCondition, watched_suffixes
from pressure_server.queues.waiting.key_notifications import KeyListener, KeyNotifications, WakeUp
from pressure_server.queues.waiting.timed_tries import TimedTries
from pressure_server.queues.waiting.waiting_operations import WaitingOperations
from tests.interleavings.loop import ModelLoop

SUFFIXES = watched_suffixes([WaitCondition.MESSAGE])


class World:
    """A wake-up with the lane, the waiting operations and the watcher that it uses."""

    def __init__(self) -> None:
        self.name = b"q"
        self.is_in_flight = False
        self.conditions: dict[bytes, set[WaitCondition]] = {b"q": {WaitCondition.MESSAGE}}
        self.existed = True
        self.timed_tries = TimedTries(cast(AbstractEventLoop, ModelLoop()), self.wake_up)
        self.wake_ups = self.tries_of_all = 0
        self.seen: list[bool] = []
        self.armed: list[tuple[bytes, list[bytes], bool]] = []
        self.left: list[tuple[bytes, list[bytes]]] = []
        self.wake = WakeUp(cast(Lane, self), cast(WaitingOperations, self), cast(KeyNotifications, self))
        self.wake.watch()

    # The lane and the waiting operations.

    def wake_up(self) -> None:
        self.wake_ups += 1

    def try_all(self) -> None:
        self.tries_of_all += 1

    def note_existence(self, *, exists: bool) -> None:
        self.seen.append(exists)

    # The watcher.

    def arm(self, _listener: KeyListener, name: bytes, watched: list[bytes], *, own: bool = False) -> None:
        self.armed.append((name, watched, own))

    def leave(self, _listener: KeyListener, name: bytes, watched: Iterable[bytes] = ()) -> None:
        self.left.append((name, list(watched)))

    # What happens, and is counted.

    @property
    def counts(self) -> str:
        """How often the operations were tried, and how often it was asked what a queue has."""
        return f"{self.wake_ups} {len(self.armed)}"

    def play(self, script: str) -> None:
        """Do the steps of a script: the name of a method below, and its arguments.

        After "=" are the counts that a step leads to.
        """
        for step in script.split("; "):
            action, _, expected = step.partition(" = ")
            name, *words = action.split()
            getattr(self, name)(*words)
            assert not expected or self.counts == expected, step

    def wait(self, name: str, condition: str = "MESSAGE") -> None:
        """Let operations wait for a condition of a queue."""
        self.conditions.setdefault(name.encode(), set()).add(WaitCondition[condition])
        self.wake.watch()

    def try_all_operations(self) -> None:
        """Let no operation wait, because all are in flight."""
        self.conditions = {}

    def has(self, *present: str, name: str = "q", exists: bool = True, due: str = "") -> None:
        """Say that the queue is watched, and which of its keys exist."""
        mask = sum(1 << SUFFIXES.index(KEYS[key]) for key in present)
        mask |= (1 << len(SUFFIXES) - 1) * exists
        self.wake.armed(name.encode(), SUFFIXES, mask, due.encode() or None)

    def gone(self) -> None:
        self.has(exists=False)

    def due(self, note: str, name: str = "q") -> None:
        """Say that the queue is watched, and the note of its due jobs."""
        self.has(name=name, due=note)

    def note(self, note: str) -> None:
        """Note which jobs are due, as the last reply said."""
        self.timed_tries.due_note = note.encode()

    def missed(self) -> None:
        """Note that there was no queue when the operations were tried."""
        self.existed = False

    def forget(self) -> None:
        self.wake.forget_attempts()

    def check(self) -> None:
        self.wake.check()

    def changed(self, name: str) -> None:
        self.wake.changed(name.encode())

    def call(self, state: str) -> None:
        """Let a call of the lane be in flight, or answered. It may cause the next notification."""
        self.is_in_flight, self.wake.may_be_own_change = state == "begins", True


KEYS = {"message": b"", "closed": CLOSED, "ready": READY}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    "script",
    [
        "has = 0 1",
        # What there was before the queue was watched is a reason to try once: if that was in vain, it has not
        # changed.
        *[f"has {key} = 1 1; has {key} = 1 1; forget; has {key} = 2 1" for key in KEYS],
        # So is a queue that was created or deleted meanwhile, and another note of due jobs, also of another
        # queue, whose notes are not known.
        "gone = 1 1; has = 1 1",
        "missed; gone = 0 1; has = 1 1",
        "note 1; due 1 = 0 1; due 2 = 1 1; due 2 = 1 1; due 3 = 2 1",
        "wait log = 0 2; due 2 log = 1 2; due 2 log = 1 2; due 3 log = 2 2",
        # A change is a reason each time, and makes what was tried in vain a reason again.
        "has = 0 1; changed q = 1 2; has = 1 2; changed q = 2 3",
        "has message = 1 1; changed q = 2 2; has message = 3 2",
        "changed other = 0 1",
        # An answer while the operations are tried makes them ask again if that is in vain.
        "try_all_operations; has message = 0 1; wait q = 0 2; has message = 1 2",
        # A change that the lane's own call may have made is asked for, by the reply if the call is in flight.
        "call ends; changed q = 0 2; changed q = 1 3",
        "call begins; changed q = 0 1; wait q = 0 2; has message = 1 2",
        "wait d ROOM = 0 2; call ends; changed d = 1 3",
        "has = 0 1; check = 0 2",
    ],
)
def test_what_is_a_reason_to_try_the_waiting_operations_again(world: World, script: str) -> None:
    world.play(script)


def test_the_operations_learn_whether_their_own_queue_exists(world: World) -> None:
    world.play("wait log; has; due 2 log; gone")
    assert world.seen == [True, False]


def test_the_keys_that_waiting_operations_need_are_watched_once(world: World) -> None:
    assert world.armed == [(b"q", SUFFIXES, True)]
    world.play("wait q = 0 1; wait q ROOM = 0 2; wait d ROOM = 0 3")
    assert [(name, own) for name, _, own in world.armed[1:]] == [(b"q", True), (b"d", False)]
    assert set(world.armed[1][1]) >= {NOT_FULL, READY, CLOSED, b""}
    world.conditions = {b"q": {WaitCondition.ROOM}}
    world.wake.watch()
    assert len(world.armed) == 3


def test_all_keys_are_released_at_the_end(world: World) -> None:
    world.play("wait d ROOM")
    world.wake.stop()
    assert world.left == [(b"q", SUFFIXES), (b"d", watched_suffixes([WaitCondition.ROOM]))]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lost_watch_and_a_backend_that_cannot_watch_have_all_tried_again(
    world: World, is_lost: bool
) -> None:
    world.play("has message = 1 1")
    if is_lost:
        world.wake.watch_lost()
    else:
        world.wake.armed(b"q", SUFFIXES, None, None)
    assert (world.tries_of_all, world.wake_ups) == (1, 1)
    assert world.left == [(b"q", SUFFIXES if is_lost else [])]
    world.play("wait q = 1 2; has message = 2 2" if is_lost else "wait q = 1 2")
