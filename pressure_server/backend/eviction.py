"""Eviction: check that the backend does not evict keys of queues when its memory is full.

Eviction loses messages, and a queue that loses one of its keys is stuck. The server does not start with a
backend that may evict keys, and is not ready if the policy changes later; --allow-eviction permits it.
"""

from __future__ import annotations

import asyncio
import logging
import re

from pressure_server.backend.link import Link
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError, BackendRefusedError

logger = logging.getLogger(__name__)

# Seconds between checks of the policy, which may change while the backend runs.
_LOOK_EVERY = 5.0
# Policies that evict any key. Others evict only keys with a TTL, and no key of a queue has one.
_OF_ANY_KEY = re.compile(rb"^maxmemory_policy:(allkeys-\w+)", re.MULTILINE)


class EvictionCheck:
    """A periodic check of the backend's `maxmemory-policy`."""

    def __init__(self, route: Route, *, is_allowed: bool) -> None:
        self._route = route
        self._is_allowed = is_allowed
        self._policy = ""
        self._looking: asyncio.Task[None] | None = None

    async def start(self, link: Link) -> None:
        """Check now, if the backend can be reached, and then periodically. Raises as check_readiness."""
        if link.is_up:
            await self._look(link)
            self.check_readiness()
        self._looking = asyncio.create_task(self._look_again(link))

    def stop(self) -> None:
        """Stop checking."""
        if self._looking is not None:
            self._looking.cancel()

    def check_readiness(self) -> None:
        """Raise BackendRefusedError if the backend may evict any key, and that is not allowed."""
        if self._policy and not self._is_allowed:
            raise BackendRefusedError(
                f"{self._route} has maxmemory-policy {self._policy}, which evicts messages when its memory "
                "is full: set `maxmemory-policy noeviction` in the backend, or pass --allow-eviction"
            )

    async def _look_again(self, link: Link) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._look(link)

    async def _look(self, link: Link) -> None:
        try:
            info = await link.command(b"INFO", b"memory")
        except BackendError as error:
            logger.debug("cannot read the backend's maxmemory-policy: %s", error)
            return
        found = _OF_ANY_KEY.search(info)
        policy = found[1].decode() if found else ""
        if policy and policy != self._policy:
            logger.warning(
                "the backend has maxmemory-policy %s: when its memory is full, it evicts messages and parts "
                "of queues; auto-repair repairs such queues if it is enabled",
                policy,
            )
        elif self._policy and not policy:
            logger.info("the backend's maxmemory-policy no longer evicts messages")
        self._policy = policy
