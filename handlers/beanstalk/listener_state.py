"""What the clients of one listener share: counts as beanstalkd has them, and the tubes of jobs."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

from pressure_server.log_limits import LogThrottle
from pressure_server.queues.database import Database

logger = logging.getLogger(__name__)

# Tubes that are counted; others have zeros.
_MAX_TUBES = 10_000

_IDS_OF_BLOCK = 64
# Blocks whose tubes are remembered. A block gets another tube only if the backend has lost data.
_MAX_KNOWN = 100_000


class ListenerState:
    """The limit and the counts of one listener, in this process, and the tubes of the jobs of one database.

    `max_job_size` is in bytes. `report` is the name of the listener's reports: see reports.py.
    """

    def __init__(self, database: Database, max_job_size: int) -> None:
        self.max_job_size = max_job_size
        self.report = ""
        self.commands: Counter[str] = Counter()
        self._of_tubes: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        # Pauses, in seconds, as they were asked for.
        self.pauses: dict[bytes, int] = {}
        # The replies of INTERNAL_ERROR have no text, so the log has their reasons.
        self.errors = LogThrottle(logger, "reply of INTERNAL_ERROR", "replies of INTERNAL_ERROR")
        self._database = database
        self._known: dict[int, bytes] = {}

    def of_tube(self, tube: bytes) -> Counter[str]:
        """Return the counts of a tube."""
        is_counted = tube in self._of_tubes or len(self._of_tubes) < _MAX_TUBES
        return self._of_tubes[tube] if is_counted else Counter()

    def forget(self, job: int) -> None:
        """Ask the backend the next time: the tube does not have the job."""
        self._known.pop((job - 1) // _IDS_OF_BLOCK, None)

    async def tube(self, job: int) -> bytes | None:
        """Return the tube of a job; None if no tube has the id. Raises BackendError."""
        block = (job - 1) // _IDS_OF_BLOCK
        known = self._known.get(block)
        if known is not None or job < 1:
            return known
        shard = self._database.shard_of_block(block)
        base = await shard.keys.command(b"HGET", shard.prefix + b"!blocks", b"%d" % block)
        if not base:
            return None
        tube: bytes = base[len(shard.prefix) + 1 :]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[block] = tube
        return tube
