"""Key notifications: which listeners are told of a queue's change, and for how long."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import pytest

from pressure_server.backend.watch import Armed, Watch
from pressure_server.queues.names import DUE, READY
from pressure_server.queues.operations.wait import WaitCondition, watched_suffixes
from pressure_server.queues.waiting.key_notifications import KeyNotifications

MESSAGE = watched_suffixes([WaitCondition.MESSAGE])
ROLE = watched_suffixes([WaitCondition.PRODUCER_ROLE])


class Listener:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def armed(self, name: bytes, _watched: list[bytes], mask: int | None, due: bytes | None) -> None:
        self.told.append((name, mask, due))

    def changed(self, name: bytes) -> None:
        self.told.append(name)


class Keys:
    """The watch of a backend, in memory."""

    def __init__(self) -> None:
        self.armed: list[tuple[Sequence[bytes], Armed, bytes | None]] = []
        self.released: list[list[bytes]] = []
        self.on_arm: Callable[[], None] = lambda: None

    def arm(self, _number: int, keys: Sequence[bytes], armed: Armed, value_key: bytes | None = None) -> None:
        self.armed.append((keys, armed, value_key))
        self.on_arm()

    def disarm(self, _number: int, keys: Iterable[bytes]) -> None:
        self.released.append(list(keys))


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as started:
        yield started


@pytest.fixture
def notifications(runner: asyncio.Runner, keys: Keys) -> KeyNotifications:
    async def make() -> KeyNotifications:
        return KeyNotifications(cast(Watch, keys), 0, b"p")

    return runner.run(make())


def test_a_listener_is_told_once_of_a_change(notifications: KeyNotifications) -> None:
    first, second, other = Listener(), Listener(), Listener()
    for listener in (first, second, first):
        notifications.arm(listener, b"q", MESSAGE)
    notifications.arm(other, b"r", MESSAGE)
    notifications.notify(b"q")
    notifications.notify(b"q")
    assert (first.told, second.told, other.told) == ([b"q"], [b"q"], [])
    assert len(notifications) == 1


def test_a_listener_hears_what_the_queue_has_when_it_is_watched(
    notifications: KeyNotifications, keys: Keys
) -> None:
    listener = Listener()
    notifications.arm(listener, b"q", MESSAGE)
    ((watched, armed, value_key),) = keys.armed
    assert (watched[0], value_key) == (b"p:q", b"p:q" + DUE)
    armed(5, b"note")
    assert listener.told == [(b"q", 5, b"note")]


def test_the_note_of_due_jobs_is_read_for_those_that_wait_for_a_role_or_room(
    notifications: KeyNotifications, keys: Keys
) -> None:
    notifications.arm(Listener(), b"q", ROLE)
    assert READY not in ROLE
    assert keys.armed[0][2] == b"p:q" + DUE


def test_the_lane_of_a_queue_is_told_by_others(notifications: KeyNotifications) -> None:
    notifications.arm(Listener(), b"q", MESSAGE, own=True)
    assert len(notifications) == 0


def test_a_listener_that_leaves_is_told_nothing_and_releases_its_keys(
    notifications: KeyNotifications, keys: Keys
) -> None:
    gone, stays = Listener(), Listener()
    for listener in (gone, stays):
        notifications.arm(listener, b"q", MESSAGE)
    notifications.leave(gone, b"q", MESSAGE)
    assert keys.released == [[*(b"p:q" + suffix for suffix in MESSAGE), b"p:q" + DUE]]
    notifications.notify(b"q")
    assert (gone.told, stays.told) == ([], [b"q"])
    notifications.leave(stays, b"q")
    assert len(notifications) == 0


def test_a_lost_watch_is_a_change_of_every_queue(notifications: KeyNotifications) -> None:
    first, second = Listener(), Listener()
    notifications.arm(first, b"q", MESSAGE)
    notifications.arm(second, b"r", MESSAGE)
    notifications.watch_lost()
    assert (first.told, second.told) == ([b"q"], [b"r"])
    assert len(notifications) == 0


@pytest.mark.parametrize("mask", [None, 1])
def test_a_coroutine_waits_until_a_condition_may_be_met(
    runner: asyncio.Runner, notifications: KeyNotifications, keys: Keys, mask: int | None
) -> None:
    # The role's token is there when the keys are watched, or the backend cannot watch them.
    keys.on_arm = lambda: keys.armed[-1][1](mask and mask | 2, None)
    assert runner.run(notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 5.0))
    assert len(notifications) == 0


def test_a_change_ends_the_wait_of_a_coroutine(
    runner: asyncio.Runner, notifications: KeyNotifications, keys: Keys
) -> None:
    async def change() -> bool:
        waiting = asyncio.create_task(notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 5.0))
        await asyncio.sleep(0)
        keys.armed[0][1](2, None)  # the queue exists, the token does not
        await asyncio.sleep(0)
        assert not waiting.done()
        notifications.notify(b"q")
        return await waiting

    assert runner.run(change())


def test_a_coroutine_without_time_does_not_wait(
    runner: asyncio.Runner, notifications: KeyNotifications, keys: Keys
) -> None:
    assert not runner.run(notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 0.0))
    assert keys.armed == []


def test_a_coroutine_stops_listening_after_its_time(
    runner: asyncio.Runner, notifications: KeyNotifications, keys: Keys
) -> None:
    assert not runner.run(notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 0.001))
    assert len(notifications) == 0
    assert len(keys.released) == 1
