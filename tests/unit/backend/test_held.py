"""Held requests: which are sent again and which fail, and when."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from pressure_server.backend.held import HeldRequests
from pressure_server.backend.link import Link
from pressure_server.backend.requests import AwaitedRequest, BackendRequest

GRACE = 0.1


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return a test that runs a coroutine."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        async def play() -> None:
            async with asyncio.timeout(20):
                await test(**fixtures)

        asyncio.run(play())

    return run


class FakeLink:
    """Holds what it is told to send as long as keys are being moved."""

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self.is_connected = True
        self.is_moving = False
        self.sent: list[BackendRequest] = []
        self.failed: list[BackendRequest] = []
        self.held = HeldRequests(cast(Link, self))
        self.has_sent = asyncio.Event()
        self.has_failed = asyncio.Event()

    def send(self, request: BackendRequest) -> None:
        if self.is_moving:
            self.held.stall(request)
        else:
            self.sent.append(request)
            self.has_sent.set()

    def fail(self, request: BackendRequest) -> None:
        self.failed.append(request)
        self.has_failed.set()


def request() -> BackendRequest:
    return AwaitedRequest(lambda _channel, _answered: None, lambda _reply: None, changes=False)


@in_a_loop
async def test_what_is_held_is_returned_in_order_when_the_backend_is_back() -> None:
    link = FakeLink()
    link.is_connected = False
    requests = [request() for _ in range(3)]
    for one in requests:
        link.held.hold(one)
    assert link.held.end_grace() == requests
    assert link.held.end_grace() == []
    await asyncio.sleep(2 * GRACE)  # the grace has ended for good
    assert not (link.failed)
    assert not (link.held.has_given_up)


@in_a_loop
async def test_after_the_grace_all_fail_until_the_backend_is_back() -> None:
    link = FakeLink()
    link.is_connected = False
    requests = [request() for _ in range(3)]
    for one in requests:
        link.held.hold(one)
    await link.has_failed.wait()
    assert link.failed == requests
    assert link.held.has_given_up
    assert link.held.end_grace() == []
    assert not link.held.has_given_up


@in_a_loop
async def test_without_grace_the_link_gives_up_at_once() -> None:
    link = FakeLink(grace=0)
    link.held.hold(request())
    assert link.held.has_given_up
    await link.has_failed.wait()


@in_a_loop
async def test_calls_wait_while_their_keys_move_and_are_sent_again() -> None:
    link = FakeLink(grace=60)
    link.is_moving = True
    first, second = request(), request()
    link.held.stall(first)
    assert link.held.is_stalled
    link.held.hold(second)  # as the link does meanwhile
    link.is_moving = False
    await link.has_sent.wait()
    assert link.sent == [first, second]
    assert not link.held.is_stalled
    assert link.held.was_stalled
    assert link.held.end_grace() == []
    assert not link.held.was_stalled


@pytest.mark.parametrize("is_connected", [True, False])
@in_a_loop
async def test_the_grace_ends_for_keys_that_move_too(*, is_connected: bool) -> None:
    link = FakeLink()
    link.is_moving, link.is_connected = True, is_connected
    link.held.stall(request())
    await link.has_failed.wait()
    assert link.held.has_given_up
    assert not link.held.is_stalled


@in_a_loop
async def test_what_was_sent_again_and_is_not_answered_yet_is_no_reason_to_give_up() -> None:
    link = FakeLink()
    link.is_moving = True
    link.held.stall(request())
    link.is_moving = False
    await link.has_sent.wait()
    await asyncio.sleep(2 * GRACE)  # the grace ends meanwhile
    assert not link.held.has_given_up
    assert not link.failed


@in_a_loop
async def test_close_fails_what_is_held() -> None:
    link = FakeLink()
    one = request()
    link.held.stall(one)
    link.held.close()
    assert link.failed == [one]
