"""The requests that a link holds: while the backend is away, or while their keys move to another node.

After the grace they fail, and so do others until the backend is back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pressure_server.backend.requests import BackendRequest

if TYPE_CHECKING:
    from pressure_server.backend.link import Link

# Seconds until a call whose keys are being moved to another node is sent again, at first and at most.
_FIRST_STALL, _MAX_STALL = 0.02, 2.0


class HeldRequests:
    """The requests that one link holds."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._requests: list[BackendRequest] = []
        # Whether the grace is over, and the backend is not back.
        self.has_given_up = False
        self._giving_up: asyncio.TimerHandle | None = None
        # Whether requests wait until their keys have moved: others, sent now, would overtake them.
        self.is_stalled = False
        # Whether keys were being moved when a call was last refused.
        self.was_stalled = False
        # Sends what is held because its keys are being moved, and the pause before that.
        self._stalled: asyncio.TimerHandle | None = None
        self._stall = _FIRST_STALL
        self._loop = asyncio.get_running_loop()

    def hold(self, request: BackendRequest) -> None:
        """Keep a request until the backend is back, or the grace is over."""
        self.begin_grace()
        self._requests.append(request)

    def stall(self, request: BackendRequest) -> None:
        """Keep a request whose keys are being moved, and send it again later."""
        self.hold(request)
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._stall, self._send)
            self._stall = min(2 * self._stall, _MAX_STALL)
            self.is_stalled, self.was_stalled = not self.has_given_up, True

    def begin_grace(self) -> None:
        """Begin to count the grace, unless that has begun."""
        grace = self._link.grace
        if not grace:
            self.has_given_up = True
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(grace, self._grace_is_over)

    def end_grace(self) -> list[BackendRequest]:
        """End the grace, for the backend is back, or the keys have moved. Return what is held, to be sent."""
        self.has_given_up = False
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self._end_stall()
        held, self._requests = self._requests, []
        return held

    def _send(self) -> None:
        self._stalled, self.is_stalled = None, False
        held, self._requests = self._requests, []
        for request in held:
            self._link.send(request)

    def _grace_is_over(self) -> None:
        self._giving_up = None
        if self._link.is_connected and not self._requests:
            # What was held has been sent again, and is not answered yet.
            self._end_stall()
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.has_given_up, self.is_stalled = True, False
        held, self._requests = self._requests, []
        for request in held:
            self._link.fail(request)

    def _end_stall(self) -> None:
        self._stall = _FIRST_STALL
        self.is_stalled = self.was_stalled = False
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def close(self) -> None:
        """Fail all requests."""
        self._end_stall()
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._give_up()
