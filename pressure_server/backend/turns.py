"""Turns: waiting for a role in line with native clients, which hand it from one to the next.

Where several of them want a role its token is never to be seen: who gives it back gives it to the first who
is blocked on it. So we block on it, too, and have it moved to where nobody else takes it. It is our turn
then, until our script moves the token back. A server that dies in between has left a note.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from pressure_server.backend.address import Address

logger = logging.getLogger(__name__)

# Each blocks a connection. Who finds none free tries whenever the token is seen.
_MOST = 16
_ANSWER_TIMEOUT = 2.0
# What redis-py raises without an answer; the second is uvloop's, for a connection that has just been closed.
_LOST = (RedisError, RuntimeError)
# Seconds in line, until it is looked whether that still makes sense. It costs the place.
_LONGEST_IN_LINE = 10.0
_UNBLOCK_PAUSE = 0.02


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
        # The backend's numbers of the connections that are blocked.
        self._blocked: dict[tuple[int, bytes], int] = {}
        self._withdrawing: dict[tuple[int, bytes], asyncio.Task[None]] = {}

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
            async with client.client() as blocked:
                with suppress(ResponseError):  # where we may not ask, the turn cannot be withdrawn
                    self._blocked[number, parked] = await blocked.execute_command("CLIENT", "ID")
                moved = await blocked.execute_command(
                    "BLMOVE", token, parked, "RIGHT", "LEFT", _LONGEST_IN_LINE
                )
            if moved is None:
                await client.execute_command("SREM", self._note, parked)
        except _LOST as error:
            # What waits for the role has its own time, and its own look at whether it is free.
            logger.debug("no turn for %s: %s", token, error)
            return
        finally:
            self._asked.pop((number, parked), None)
            self._blocked.pop((number, parked), None)
        ended(moved is not None)

    def withdraw(self, number: int, parked: bytes) -> None:
        """Nobody waits for that turn any longer. It ends as any other does, only sooner."""
        withdrawn = (number, parked)
        if withdrawn in self._asked and withdrawn not in self._withdrawing:
            task = asyncio.create_task(self._unblock(number, parked))
            self._withdrawing[withdrawn] = task
            task.add_done_callback(lambda _: self._withdrawing.pop(withdrawn))

    async def _unblock(self, number: int, parked: bytes) -> None:
        while (number, parked) in self._asked:
            blocked = self._blocked.get((number, parked), 0)
            try:
                if blocked and await self._client(number).execute_command("CLIENT", "UNBLOCK", blocked):
                    return
            except _LOST as error:
                logger.debug("a turn that nobody waits for goes on: %s", error)
                return
            # It is about to block.
            await asyncio.sleep(_UNBLOCK_PAUSE)

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
        except _LOST as error:
            logger.debug("the note of a turn stays: %s", error)

    async def left_behind(self, number: int) -> list[bytes]:
        """The keys at which a server that died may have left a token."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                return list(await self._client(number).execute_command("SMEMBERS", self._note))
        except (*_LOST, TimeoutError):
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
        asked = [*self._asked.values(), *self._withdrawing.values()]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, *self._forgetting.values(), return_exceptions=True)

    async def disconnect(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
