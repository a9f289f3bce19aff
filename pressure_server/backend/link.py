"""A link to one database of the backend: a channel that is opened again whenever it breaks."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.backend.channel import Channel
from pressure_server.backend.resp import Received, is_passing
from pressure_server.errors import BackendError, BackendReplyError

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
OLDEST_REDIS = (6, 2)


class BackendRefusedError(BackendError):
    """The backend answers, and will go on answering so: wrong version, login or database."""


class Link:
    """Commands to one database of the backend; while it is away, each fails at once with BackendError."""

    def __init__(self, address: Address, number: int, script: bytes, name: str) -> None:
        """`is_back`, if it is set, is called whenever the channel has been opened again."""
        self.is_back: Callable[[], None] | None = None
        self._address = address
        self.number = number
        self._script = script
        self._name = name
        self._channel: Channel | None = None
        self._why_down: BackendError = BackendError(f"{address} has not been reached yet")
        self._reopening: asyncio.Task[None] | None = None
        self._closed = False
        self.version = ""

    @property
    def is_up(self) -> bool:
        """Whether operations can be sent."""
        return self._channel is not None

    async def open(self) -> None:
        """Open the channel once. Raises BackendRefusedError, or BackendError when it may work later."""
        channel = Channel(self._script, self._channel_lost)
        try:
            await self._address.open(channel)
            async with asyncio.timeout(5 * LONGEST_PAUSE):
                await self._greet(channel)
        except TimeoutError:
            channel.close()
            raise BackendError(f"{self._address} accepts connections but does not answer") from None
        except BaseException:
            channel.close()
            raise
        self._channel = channel

    async def _greet(self, channel: Channel) -> None:
        """Log in, choose the database, check the version, load the script."""
        if self._address.password is not None:
            user = [self._address.username.encode()] if self._address.username else []
            await self._must(channel, b"AUTH", *user, self._address.password.encode())
        info = (await self._must(channel, b"INFO", b"server")).decode()
        self.version = _supported_version(info, self._address)
        if self.number:
            await self._must(channel, b"SELECT", b"%d" % self.number)
        with suppress(BackendReplyError):  # who looks at the backend's clients is not told who we are
            await channel.command(b"CLIENT", b"SETNAME", self._name.encode())
        await channel.command(b"SCRIPT", b"LOAD", self._script)

    async def _must(self, channel: Channel, *command: bytes) -> Any:
        try:
            return await channel.command(*command)
        except BackendReplyError as error:
            if is_passing(error):
                raise
            raise BackendRefusedError(f"{self._address}: {error}") from error

    def keep_open(self) -> None:
        """Go on trying, in the background, until the channel is open."""
        if self._reopening is None and not self._closed:
            self._reopening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        pause, down_since, said = FIRST_PAUSE, time.monotonic(), ""
        while not self._closed:
            try:
                await self.open()
            except BackendError as error:
                self._why_down = error
                if str(error) != said:
                    said = str(error)
                    logger.warning("backend database %d: %s; trying again", self.number, error)
                # Spread out, so that many servers do not come back in step.
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._reopening = None
                seconds = time.monotonic() - down_since
                logger.info("backend database %d is back after %.1f seconds", self.number, seconds)
                if self.is_back is not None:
                    self.is_back()
                return

    def _channel_lost(self, channel: Channel, exc: Exception | None) -> None:
        if channel is not self._channel or self._closed:
            return
        self._channel = None
        self._why_down = BackendError(f"the connection to {self._address} was lost ({_reason(exc)})")
        logger.warning("backend database %d: %s", self.number, self._why_down)
        self.keep_open()

    def _up(self) -> Channel:
        if self._channel is None:
            raise BackendError(f"the backend is away: {self._why_down}")
        return self._channel

    def call_script(self, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received) -> None:
        """Call the batch script on queues. Raises BackendError when the backend is away."""
        self._up().call_script(keys, arguments, received)

    async def command(self, *arguments: bytes) -> Any:
        """Send a command and wait for its reply. Raises BackendError, also for an error reply."""
        return await self._up().command(*arguments)

    async def close(self) -> None:
        """Close the channel and stop reopening it."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
        if self._channel is not None:
            self._channel.close()


def _reason(exc: Exception | None) -> str:
    return "it was closed" if exc is None else str(exc) or type(exc).__name__


def _supported_version(info: str, address: Address) -> str:
    """The backend's name and version from INFO server. Raises BackendRefusedError for one that is too old."""
    valkey = re.search(r"^valkey_version:(\S+)", info, re.MULTILINE)
    if valkey:
        return f"Valkey {valkey[1]}"
    redis = re.search(r"^redis_version:((\d+)\.(\d+)\S*)", info, re.MULTILINE)
    if not redis:
        raise BackendRefusedError(f"{address} does not say which version of Redis it is")
    if (int(redis[2]), int(redis[3])) < OLDEST_REDIS:
        raise BackendRefusedError(
            f"{address} is Redis {redis[1]}; Redis 6.2 or Valkey is needed (for SMISMEMBER, LPOS, RPOP count)"
        )
    return f"Redis {redis[1]}"
