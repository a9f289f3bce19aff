"""Reservations and turns that a failover has revived: the new master lacks that they have been ended.

Nobody would end them again. So reservations that no client has are given up, and their jobs come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pressure_server.errors import BACKEND_LOST, BackendError, PressureError
from pressure_server.queues.operations import verbs
from pressure_server.text import counted

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Jobs that clients have: the number of the database, the queue, the id, and how often it has been reserved.
JobsOfClients = Callable[[], Iterable[tuple[int, bytes, int, int]]]
# The first byte of the field of a queue with reservations in the records (records.lua).
_QUEUE = b"j"


class Revived:
    """The search of one shard for what is revived."""

    def __init__(self, shard: Shard, records: bytes, jobs_of_clients: JobsOfClients) -> None:
        """`records` is the key of this server's records; `jobs_of_clients` returns what its clients have."""
        self._shard = shard
        self._records = records
        self._jobs_of_clients = jobs_of_clients
        self._is_due = False
        self._searching: asyncio.Task[None] | None = None

    @property
    def is_searching(self) -> bool:
        """Whether something may be revived."""
        return self._is_due or self._searching is not None

    def search(self) -> None:
        """End what is revived when the backend is back."""
        self._is_due = True
        self._shard.when_back(self._begin)

    def _begin(self) -> None:
        if self._searching is None:
            self._searching = self._shard.loop.create_task(self._search())

    async def _search(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                queues = await self._queues()
                self._give_up_revived([job for name in queues for job in await self._told_of(name)])
                await self._shard.role_turns.end_noted_turns()
        except BackendError as error:
            logger.debug("the search for revived reservations failed: %s", error)
            self.search()
        finally:
            self._searching = None

    def _give_up_revived(self, told: list[tuple[bytes, int, int, bytes]]) -> None:
        """Give up the jobs that no client has. `told` has what `_told_of` returns for each queue."""
        # A client may have got a job while the backend was asked. So the clients are looked at only now.
        number = self._shard.database_number
        known = {(name, job, reserves) for of, name, job, reserves in self._jobs_of_clients() if of == number}
        known.update(self._shard.reservations.undelivered())
        revived = [one for one in told if one[:3] not in known]
        for name, job, reserves, owner in revived:
            self._shard.reservations.give_up(name, [(job, reserves)], owner)
        if revived:
            logger.warning(
                "%s has %s again that clients had ended: the messages come again",
                self._shard.link.name, counted(len(revived), "reservation"),
            )  # fmt: skip

    async def _queues(self) -> list[bytes]:
        """Return the queues from which clients of this server have reserved. Raises BackendError."""
        fields: list[bytes] = await self._shard.link.command(b"HKEYS", self._records)
        start = len(_QUEUE + self._shard.prefix + b":")
        return [field[start:] for field in fields if field.startswith(_QUEUE)]

    async def _told_of(self, name: bytes) -> list[tuple[bytes, int, int, bytes]]:
        """Return the jobs that clients of this server have reserved in a queue, as the backend knows them.

        Each is the queue, the id, how often the job has been reserved, and the owner. Raises BackendError.
        """
        found: list[tuple[bytes, int, int, bytes]] = []
        cursor = b"0"
        while True:
            (reply,) = await self._shard.run_each(verbs.RESERVED, [name], [cursor])
            if isinstance(reply, BACKEND_LOST):
                raise reply
            if isinstance(reply, PressureError):
                return found  # there is no such queue, or it has a key of a wrong type
            cursor, *reservations = reply
            for first, last, reserves, owner in reservations:
                found += [(name, job, reserves, owner) for job in range(int(first, 16), int(last, 16) + 1)]
            if cursor == b"0":
                return found
