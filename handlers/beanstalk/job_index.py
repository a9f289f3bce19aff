"""The index of jobs: finds the tube of a job by its id (lua/jobs.lua, `new_block`)."""

from __future__ import annotations

from pressure_server.queues.database import Database

_IDS_OF_BLOCK = 64
# Blocks whose tubes are remembered. A block gets another tube only if the backend has lost data.
_MAX_KNOWN = 100_000


class JobIndex:
    """The tubes of jobs, of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, bytes] = {}

    def known_tube(self, job: int) -> bytes | None:
        """Return the tube of a job if it is known without asking the backend."""
        return self._known.get((job - 1) // _IDS_OF_BLOCK)

    def forget(self, job: int) -> None:
        """Ask the backend the next time: the tube does not have the job."""
        self._known.pop((job - 1) // _IDS_OF_BLOCK, None)

    async def tube(self, job: int) -> bytes | None:
        """Return the tube of a job; None if no tube has the id. Raises BackendError."""
        known = self.known_tube(job)
        if known is not None or job < 1:
            return known
        block = (job - 1) // _IDS_OF_BLOCK
        prefix = self._database.prefix
        base = await self._database.command(b"HGET", prefix + b"!blocks", b"%d" % block)
        if not base:
            return None
        tube: bytes = base[len(prefix) + 1 :]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[block] = tube
        return tube
