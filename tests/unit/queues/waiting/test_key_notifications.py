"""Key notifications: which listeners are told of a queue's change, and for how long."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import pytest

from pressure_server.backend.watch import Armed, Watch
from pressure_server.queues.names import DUE
from pressure_server.queues.operations.wait import WaitCondition, watched_suffixes
from pressure_server.queues.waiting.key_notifications import KeyNotifications
from tests.unit.conftest import InLoop

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
def notifications(in_loop: InLoop, keys: Keys) -> KeyNotifications:
    made: KeyNotifications = in_loop(lambda: KeyNotifications(cast(Watch, keys), 0, b"p"))
    return made


def test_a_listener_is_told_once_of_a_change(notifications: KeyNotifications) -> None:
    first, second, other = Listener(), Listener(), Listener()
    for listener in (first, second, first):
        notifications.arm(listener, b"q", MESSAGE)
    notifications.arm(other, b"r", MESSAGE)
    notifications.notify(b"q")
    notifications.notify(b"q")
    assert (first.told, second.told, other.told) == ([b"q"], [b"q"], [])
    assert len(notifications) == 1


@pytest.mark.parametrize("watched", [MESSAGE, ROLE])
def test_a_listener_hears_what_the_queue_has_when_it_is_watched(
    notifications: KeyNotifications, keys: Keys, watched: list[bytes]
) -> None:
    listener = Listener()
    notifications.arm(listener, b"q", watched)
    ((armed_keys, armed, value_key),) = keys.armed
    assert (armed_keys[0], value_key) == (b"p:q" + watched[0], b"p:q" + DUE)
    armed(5, b"note")
    assert listener.told == [(b"q", 5, b"note")]


def test_a_listener_that_leaves_is_told_nothing_and_releases_its_keys(
    notifications: KeyNotifications, keys: Keys
) -> None:
    gone, stays = Listener(), Listener()
    for listener in (gone, stays):
        notifications.arm(listener, b"q", MESSAGE)
    notifications.arm(Listener(), b"r", MESSAGE, own=True)  # the lane of a queue, which others tell
    assert len(notifications) == 1
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
async def test_a_coroutine_waits_until_a_condition_may_be_met(
    notifications: KeyNotifications, keys: Keys, mask: int | None
) -> None:
    # The role's token is there when the keys are watched, or the backend cannot watch them.
    keys.on_arm = lambda: keys.armed[-1][1](mask and mask | 2, None)
    assert await notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 5.0)
    assert len(notifications) == 0


async def test_a_change_ends_the_wait_of_a_coroutine(notifications: KeyNotifications, keys: Keys) -> None:
    waiting = asyncio.create_task(notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, 5.0))
    await asyncio.sleep(0)
    keys.armed[0][1](2, None)  # the queue exists, the token does not
    await asyncio.sleep(0)
    assert not waiting.done()
    notifications.notify(b"q")
    assert await waiting


@pytest.mark.parametrize(("timeout", "released"), [(0.0, 0), (0.001, 1)])
async def test_a_coroutine_stops_listening_after_its_time(
    notifications: KeyNotifications, keys: Keys, timeout: float, released: int
) -> None:
    assert not await notifications.wait_for(b"q", WaitCondition.PRODUCER_ROLE, timeout)
    assert len(notifications) == 0
    assert len(keys.armed) == len(keys.released) == released
