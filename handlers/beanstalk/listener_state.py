"""What the clients of one listener share: counts as beanstalkd has them, and the index of jobs."""

from __future__ import annotations

import logging
from collections import Counter

from pressure_server.log_limits import LogThrottle
from pressure_server.queues.database import Database

logger = logging.getLogger(__name__)

# Tubes that are counted; others have zeros.
_MAX_TUBES = 10_000

_IDS_OF_BLOCK = 64
# Blocks whose tubes are remembered. A block gets another tube only if the backend has lost data.
_MAX_KNOWN = 100_000


class Statistics:
    """The counts of one listener, in this process."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self._of_tubes: dict[bytes, Counter[str]] = {}
        # Pauses, in seconds, as they were asked for.
        self.pauses: dict[bytes, int] = {}
        # The replies of INTERNAL_ERROR have no text, so the log has their reasons.
        self.errors = LogThrottle(logger, "reply of INTERNAL_ERROR", "replies of INTERNAL_ERROR")

    def of_tube(self, tube: bytes) -> Counter[str]:
        """Return the counts of a tube."""
        counts = self._of_tubes.get(tube)
        if counts is None:
            counts = Counter()
            if len(self._of_tubes) < _MAX_TUBES:
                self._of_tubes[tube] = counts
        return counts


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
        shard = self._database.shard_of_block(block)
        base = await shard.keys.command(b"HGET", shard.prefix + b"!blocks", b"%d" % block)
        if not base:
            return None
        tube: bytes = base[len(shard.prefix) + 1 :]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[block] = tube
        return tube
