"""Turns: wait for a role in line with native clients, which hand its token from one to the next.

If several clients want a role, its token is never visible: it goes at once to the first client that blocks on
it. The server therefore blocks on it too, with BLMOVE to a key from which native clients do not take it (the
token is parked). This server's turn lasts until a script moves the token back. A note in the backend lets
other servers find the parked token of a server that died.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from pressure_server.backend.address import Address
from pressure_server.backend.route import Route

logger = logging.getLogger(__name__)

# The most turns to wait for at a time: each blocks a connection. Other operations that need a role try when
# they are notified of its token.
_MAX_TURNS = 16
_ANSWER_TIMEOUT = 2.0
# What redis-py raises if there is no reply. RuntimeError is uvloop's, for a connection that was just closed.
_LOST = (RedisError, RuntimeError)
# Seconds in line before the caller checks whether waiting still makes sense. This costs the place in line.
_LINE_TIMEOUT = 10.0
_UNBLOCK_PAUSE = 0.02


class Turns:
    """The turns that this server waits for or holds.

    `note` is the key of a set in each database: the keys at which tokens may be parked.
    """

    def __init__(self, route: Route, note: bytes) -> None:
        self._route = route
        route.follow(self._moved)
        self._note = note
        # By the node and the database. Any: redis-py's commands have no types.
        self._clients: dict[tuple[Address, int], Any] = {}
        # Whether a turn has been asked for, or noted turns have been read.
        self.are_used = False
        self._closing: set[asyncio.Task[None]] = set()
        # By database and the key at which the token is parked.
        self._asked: dict[tuple[int, bytes], asyncio.Task[None]] = {}
        self._forgetting: dict[tuple[int, bytes], asyncio.Task[None]] = {}
        # The client ids of the blocked connections, for CLIENT UNBLOCK.
        self._blocked: dict[tuple[int, bytes], int] = {}
        self._withdrawing: dict[tuple[int, bytes], asyncio.Task[None]] = {}

    def wait_in_line(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        """Wait in line for a role in database `number`, to have its `token` moved to `parked`.

        `ended` is called with True when the token is parked, or with False after _LINE_TIMEOUT seconds. It
        is not called if the backend is lost, or if too many turns are waited for. After the token has been
        moved back, `forget_note` must be called.
        """
        asked = (number, parked)
        withdrawing = self._withdrawing.pop(asked, None)
        if withdrawing is not None:
            # Keep the place in line. Otherwise native clients get three times the turns of this server.
            withdrawing.cancel()
        if asked not in self._asked and len(self._asked) < _MAX_TURNS:
            task = asyncio.create_task(self._wait(number, token, parked, ended))
            self._asked[asked] = task

    async def _wait(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        client, moved = self._client(number), None
        try:
            # A pending SREM runs on another connection, and must not delete the new note.
            forgetting = self._forgetting.get((number, parked))
            if forgetting is not None:
                await asyncio.wait([forgetting])
            await client.execute_command("SADD", self._note, parked)
            async with client.client() as blocked:
                with suppress(ResponseError):  # not permitted: the turn cannot be withdrawn
                    self._blocked[number, parked] = await blocked.execute_command("CLIENT", "ID")
                if (number, parked) not in self._withdrawing:
                    moved = await blocked.execute_command(
                        "BLMOVE", token, parked, "RIGHT", "LEFT", _LINE_TIMEOUT
                    )
            if moved is None:
                await client.execute_command("SREM", self._note, parked)
        except _LOST as error:
            # The operations that wait have a timeout of their own, and check whether the role is free.
            logger.debug("cannot wait in line for %s: %s", token, error)
            return
        finally:
            if self._asked.get((number, parked)) is asyncio.current_task():
                del self._asked[number, parked]
                self._blocked.pop((number, parked), None)
        ended(moved is not None)

    def _moved(self) -> None:
        """Wait no longer: another node has the keys. Turns are asked for again when the link is back."""
        asked, self._asked = self._asked, {}
        self._blocked.clear()
        for task in asked.values():
            task.cancel()
        for place in list(self._clients):
            if place[0] != self._route.address:
                closing = asyncio.create_task(_close(self._clients.pop(place)))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def withdraw(self, number: int, parked: bytes) -> None:
        """Stop waiting for a turn. `ended` is called as usual, only sooner."""
        withdrawn = (number, parked)
        if withdrawn in self._asked and withdrawn not in self._withdrawing:
            self._withdrawing[withdrawn] = asyncio.create_task(self._unblock(number, parked))

    async def _unblock(self, number: int, parked: bytes) -> None:
        try:
            while (number, parked) in self._asked:
                blocked = self._blocked.get((number, parked), 0)
                if blocked and await self._client(number).execute_command("CLIENT", "UNBLOCK", blocked):
                    break
                # BLMOVE has not been sent yet.
                await asyncio.sleep(_UNBLOCK_PAUSE)
        except _LOST as error:
            logger.debug("cannot withdraw a turn that is no longer needed: %s", error)
        self._withdrawing.pop((number, parked), None)

    def forget_note(self, number: int, parked: bytes) -> None:
        """Delete the note of a turn: no token is parked at `parked` any longer."""
        given_back = (number, parked)
        if given_back not in self._asked and given_back not in self._forgetting:
            task = asyncio.create_task(self._forget(number, parked))
            self._forgetting[given_back] = task
            task.add_done_callback(lambda _: self._forgetting.pop(given_back))

    async def _forget(self, number: int, parked: bytes) -> None:
        try:
            await self._client(number).execute_command("SREM", self._note, parked)
        except _LOST as error:
            logger.debug("cannot delete the note of a turn: %s", error)

    async def noted_keys(self, number: int) -> list[bytes]:
        """Return the noted keys of a database, at which a server that died may have left a token.

        The list is empty if the backend does not answer.
        """
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                return list(await self._client(number).execute_command("SMEMBERS", self._note))
        except (*_LOST, TimeoutError):
            return []

    def _client(self, number: int) -> Any:
        self.are_used = True
        place = (self._route.address, number)
        if place not in self._clients:
            self._clients[place] = self._route.address.client(number)
        return self._clients[place]

    async def close(self) -> None:
        """Stop waiting for turns. `noted_keys` finds tokens that have been parked in the meantime."""
        asked = [*self._asked.values(), *self._withdrawing.values()]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, *self._forgetting.values(), return_exceptions=True)

    async def disconnect(self) -> None:
        """Close the connections."""
        await asyncio.gather(*self._closing, *map(_close, self._clients.values()))


async def _close(client: Any) -> None:
    with suppress(*_LOST):
        await client.aclose()
