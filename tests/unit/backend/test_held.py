"""Held requests: which are sent again and which fail, and when."""

import asyncio
from typing import cast

import pytest

from pressure_server.backend.held import HeldRequests
from pressure_server.backend.link import Link
from pressure_server.backend.requests import AwaitedRequest, BackendRequest

GRACE = 0.1


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


async def test_what_is_held_is_returned_in_order_when_the_backend_is_back() -> None:
    link, requests = FakeLink(), [request() for _ in range(3)]
    link.is_connected = False
    for one in requests:
        link.held.hold(one)
    assert link.held.end_grace() == requests
    assert link.held.end_grace() == []
    await asyncio.sleep(2 * GRACE)  # the grace has ended for good
    assert (link.failed, link.held.has_given_up) == ([], False)


@pytest.mark.parametrize("grace", [GRACE, 0])
async def test_after_the_grace_all_fail_until_the_backend_is_back(grace: float) -> None:
    link, requests = FakeLink(grace), [request() for _ in range(3)]
    link.is_connected = False
    for one in requests:
        link.held.hold(one)
    assert link.held.has_given_up is not bool(grace)
    await link.has_failed.wait()
    assert (link.failed, link.held.has_given_up) == (requests, True)
    assert link.held.end_grace() == []
    assert not link.held.has_given_up


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


@pytest.mark.parametrize("ends", ["the grace", "the grace, unconnected", "close"])
async def test_keys_that_move_are_waited_for_until_the_end(ends: str) -> None:
    link, one = FakeLink(), request()
    link.is_moving, link.is_connected = True, ends != "the grace, unconnected"
    link.held.stall(one)
    if ends == "close":
        link.held.close()
    else:
        await link.has_failed.wait()
        assert link.held.has_given_up
        assert not link.held.is_stalled
    assert link.failed == [one]


async def test_what_was_sent_again_and_is_not_answered_yet_is_no_reason_to_give_up() -> None:
    link = FakeLink()
    link.is_moving = True
    link.held.stall(request())
    link.is_moving = False
    await link.has_sent.wait()
    await asyncio.sleep(2 * GRACE)  # the grace ends meanwhile
    assert (link.failed, link.held.has_given_up) == ([], False)
