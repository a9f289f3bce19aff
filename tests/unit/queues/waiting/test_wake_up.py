"""Wake-ups: a change of a queue, before, while and after the server asks for it, is a reason to try again."""

from collections.abc import Iterable
from typing import cast

import pytest

from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.names import CLOSED, NOT_FULL, READY
from pressure_server.queues.operations.wait import WaitCondition, watched_suffixes
from pressure_server.queues.waiting.key_notifications import KeyListener, KeyNotifications, WakeUp
from pressure_server.queues.waiting.waiting_operations import WaitingOperations

MESSAGE, ROOM = WaitCondition.MESSAGE, WaitCondition.ROOM
SUFFIXES = watched_suffixes([MESSAGE])


class World:
    """A wake-up with the lane, the waiting operations and the watcher that it uses."""

    def __init__(self) -> None:
        self.name = b"q"
        self.is_in_flight = False
        self.conditions: dict[bytes, set[WaitCondition]] = {b"q": {MESSAGE}}
        self.existed = True
        self.due_note: bytes | None = None
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

    # What the backend says.

    def answer(
        self, *present: bytes, exists: bool = True, due: bytes | None = None, name: bytes = b"q"
    ) -> None:
        """Say that the queue is watched, and which of its keys exist."""
        mask = sum(1 << SUFFIXES.index(suffix) for suffix in present)
        mask |= (1 << len(SUFFIXES) - 1) * exists
        self.wake.armed(name, SUFFIXES, mask, due)


@pytest.fixture
def world() -> World:
    return World()


def test_the_keys_that_waiting_operations_need_are_watched_once(world: World) -> None:
    assert world.armed == [(b"q", SUFFIXES, True)]
    world.wake.watch()
    assert len(world.armed) == 1
    world.conditions = {b"q": {MESSAGE, ROOM}, b"d": {ROOM}}
    world.wake.watch()
    names = [(name, own) for name, _, own in world.armed[1:]]
    assert names == [(b"q", True), (b"d", False)]
    assert set(world.armed[1][1]) >= {NOT_FULL, READY, CLOSED, b""}
    world.conditions = {b"q": {ROOM}}
    world.wake.watch()
    assert len(world.armed) == 3


def test_all_keys_are_released_at_the_end(world: World) -> None:
    world.conditions[b"d"] = {ROOM}
    world.wake.watch()
    world.wake.stop()
    assert world.left == [(b"q", SUFFIXES), (b"d", watched_suffixes([ROOM]))]


@pytest.mark.parametrize("present", [b"", CLOSED, READY])
def test_a_change_before_the_queue_was_watched_is_a_reason_to_try_once(world: World, present: bytes) -> None:
    world.answer(present)
    assert world.wake_ups == 1
    # The try was in vain: the keys look as before, and did not change.
    world.answer(present)
    assert world.wake_ups == 1
    world.wake.forget_attempts()
    world.answer(present)
    assert world.wake_ups == 2


@pytest.mark.parametrize(
    ("existed", "exists", "wake_ups"), [(True, True, 0), (True, False, 1), (False, True, 1)]
)
def test_a_queue_that_was_created_or_deleted_meanwhile_is_a_reason(
    world: World, existed: bool, exists: bool, wake_ups: int
) -> None:
    world.existed = existed
    world.answer(exists=exists)
    assert (world.wake_ups, world.seen) == (wake_ups, [exists])


@pytest.mark.parametrize("name", [b"q", b"log"])
def test_another_note_of_due_jobs_is_a_reason(world: World, name: bytes) -> None:
    """Of this queue, or of one for which an operation here waits."""
    world.conditions = {name: {MESSAGE}}
    world.due_note = b"1" if name == b"q" else None
    for due, wake_ups in ((world.due_note, 0), (b"2", 1), (b"2", 1), (b"3", 2)):
        world.answer(due=due, name=name)
        assert world.wake_ups == wake_ups
    assert world.seen == ([True] * 3 if name == b"q" else [])


def test_an_answer_while_the_operations_are_tried_makes_them_ask_again_if_that_is_in_vain(
    world: World,
) -> None:
    world.conditions = {}
    world.answer(b"")
    assert world.wake_ups == 0
    assert world.left == [(b"q", [])]
    world.conditions = {b"q": {MESSAGE}}
    world.wake.watch()
    assert len(world.armed) == 2
    world.answer(b"")
    assert world.wake_ups == 1


@pytest.mark.parametrize(
    ("name", "is_in_flight", "wake_ups", "asks"),
    [
        (b"q", False, 0, 1),
        (b"q", True, 0, 0),  # the reply asks
        (b"d", False, 1, 1),  # the change of another queue cannot be the lane's own
        (b"not watched", False, 0, 0),
    ],
)
def test_a_change_that_the_lane_s_own_call_may_have_made_is_asked_for(
    world: World, name: bytes, is_in_flight: bool, wake_ups: int, asks: int
) -> None:
    world.conditions[b"d"] = {ROOM}
    world.wake.watch()
    world.is_in_flight, world.wake.may_be_own_change = is_in_flight, True
    world.wake.changed(name)
    assert (world.wake_ups, len(world.armed) - 2) == (wake_ups, asks)
    if name == b"q":
        world.wake.watch()
        assert len(world.armed) == 3
        world.answer(b"")
        assert world.wake_ups == 1


def test_a_change_of_a_watched_queue_is_a_reason_each_time(world: World) -> None:
    for number in (1, 2, 3):
        world.answer()
        world.wake.changed(b"q")
        assert (world.wake_ups, len(world.armed)) == (number, number + 1)


def test_a_change_makes_the_state_that_was_tried_in_vain_a_reason_again(world: World) -> None:
    world.answer(b"")
    world.wake.changed(b"q")
    assert world.wake_ups == 2
    world.answer(b"")
    assert world.wake_ups == 3


def test_a_check_asks_again_what_the_queue_has(world: World) -> None:
    world.answer()
    world.wake.check()
    assert (world.wake_ups, len(world.armed)) == (0, 2)


def test_a_backend_that_cannot_watch_has_all_tried_again(world: World) -> None:
    world.wake.armed(b"q", SUFFIXES, None, None)
    assert (world.tries_of_all, world.wake_ups) == (1, 0)
    assert world.left == [(b"q", [])]
    world.wake.watch()
    assert len(world.armed) == 2


def test_a_lost_watch_has_all_tried_again_and_asks_anew(world: World) -> None:
    world.answer(b"")
    world.wake.watch_lost()
    assert world.tries_of_all == 1
    assert world.left == [(b"q", SUFFIXES)]
    world.wake.watch()
    assert len(world.armed) == 2
    world.answer(b"")
    assert world.wake_ups == 2
