"""Eviction: whether the backend drops keys of its own choice when its memory is full.

That loses messages, and a queue of which one key was dropped is stuck. So such a backend is refused at the
start, unless that is allowed, and a server whose backend changes to that later is not ready.
"""

from __future__ import annotations

import asyncio
import logging
import re

from pressure_server.backend.address import Address
from pressure_server.backend.greeting import BackendRefusedError
from pressure_server.backend.link import Link
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

# Seconds between looks at the backend's settings, which may change while it runs.
_LOOK_EVERY = 5.0
# Policies that drop any key. Others drop only keys that expire, and no key of a queue does.
_OF_ANY_KEY = re.compile(rb"^maxmemory_policy:(allkeys-\w+)", re.MULTILINE)


class Eviction:
    """Looks at the backend's `maxmemory-policy`, and again every few seconds."""

    def __init__(self, link: Link, address: Address, *, is_allowed: bool) -> None:
        self._link = link
        self._address = address
        self._is_allowed = is_allowed
        self._policy = ""
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look, and go on until `stop`. Raises BackendRefusedError if the backend may drop any key."""
        if self._link.is_up:
            await self._look()
            if not self._is_allowed:
                try:
                    self.check_readiness()
                except BackendError as error:
                    raise BackendRefusedError(str(error)) from error
        self._looking = asyncio.create_task(self._look_on())

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def check_readiness(self) -> None:
        """Raise BackendError if the backend may drop any key, and that is not allowed."""
        if self._policy and not self._is_allowed:
            raise BackendError(
                f"{self._address} has the maxmemory-policy {self._policy}: it would drop messages when its "
                "memory is full. Set `maxmemory-policy noeviction` there, or allow it by --allow-eviction"
            )

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._look()

    async def _look(self) -> None:
        try:
            info = await self._link.command(b"INFO", b"memory")
        except BackendError as error:
            logger.debug("the backend's maxmemory-policy cannot be read now: %s", error)
            return
        found = _OF_ANY_KEY.search(info)
        policy = found[1].decode() if found else ""
        if policy and policy != self._policy:
            logger.warning(
                "the backend has the maxmemory-policy %s: when its memory is full it drops messages, and "
                "parts of queues, which auto-repair mends if it is on",
                policy,
            )
        elif self._policy and not policy:
            logger.info("the backend's maxmemory-policy drops no messages any longer")
        self._policy = policy
