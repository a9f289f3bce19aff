"""Turns: waiting for a role in line with native clients, which hand it from one to the next.

Where several of them want a role its token is never to be seen: who gives it back gives it to the first who
is blocked on it. So we block on it, too, and have it moved to where nobody else takes it. It is our turn
then, until our script moves the token back. A server that dies in between has left a note.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from pressure_server.backend.address import Address

logger = logging.getLogger(__name__)

# Each blocks a connection. Who finds none free tries whenever the token is seen.
_MOST = 16
_ANSWER_TIMEOUT = 2.0
# Seconds in line, until it is looked whether that still makes sense. It costs the place.
_LONGEST_IN_LINE = 10.0


class Turns:
    """Asks for turns. `note` is the key of a set of those asked for."""

    def __init__(self, address: Address, note: bytes) -> None:
        self._address = address
        self._note = note
        # Of redis-py, whose commands have no types.
        self._clients: dict[int, Any] = {}
        # By where the token is parked.
        self._asked: dict[tuple[int, bytes], asyncio.Task[None]] = {}
        self._forgetting: dict[tuple[int, bytes], asyncio.Task[None]] = {}

    def ask(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        """Call `ended` when the token has been moved to `parked`, or with False after some seconds in line.

        `given_back` must be called when it has been moved back.
        """
        asked = (number, parked)
        if asked not in self._asked and len(self._asked) < _MOST:
            task = asyncio.create_task(self._wait(number, token, parked, ended))
            self._asked[asked] = task

    async def _wait(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        client = self._client(number)
        try:
            # On another connection: what is noted now must not be forgotten by it.
            forgetting = self._forgetting.get((number, parked))
            if forgetting is not None:
                await asyncio.wait([forgetting])
            await client.execute_command("SADD", self._note, parked)
            moved = await client.execute_command("BLMOVE", token, parked, "RIGHT", "LEFT", _LONGEST_IN_LINE)
            if moved is None:
                await client.execute_command("SREM", self._note, parked)
        except RedisError as error:
            # What waits for the role has its own time, and its own look at whether it is free.
            logger.debug("no turn for %s: %s", token, error)
            return
        finally:
            self._asked.pop((number, parked), None)
        ended(moved is not None)

    def given_back(self, number: int, parked: bytes) -> None:
        """There is nothing at `parked` any longer."""
        given_back = (number, parked)
        if given_back not in self._asked and given_back not in self._forgetting:
            task = asyncio.create_task(self._forget(number, parked))
            self._forgetting[given_back] = task
            task.add_done_callback(lambda _: self._forgetting.pop(given_back))

    async def _forget(self, number: int, parked: bytes) -> None:
        try:
            await self._client(number).execute_command("SREM", self._note, parked)
        except RedisError as error:
            logger.debug("the note of a turn stays: %s", error)

    async def left_behind(self, number: int) -> list[bytes]:
        """The keys at which a server that died may have left a token."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                return list(await self._client(number).execute_command("SMEMBERS", self._note))
        except (RedisError, TimeoutError):
            return []

    def _client(self, number: int) -> Any:
        if number not in self._clients:
            self._clients[number] = self._address.client(number)
        return self._clients[number]

    @property
    def are_wanted(self) -> bool:
        """Whether any has been asked for."""
        return bool(self._clients)

    async def close(self) -> None:
        """Ask for no more. What has arrived meanwhile is among what is left behind."""
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, *self._forgetting.values(), return_exceptions=True)

    async def disconnect(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
