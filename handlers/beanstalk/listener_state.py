"""What the clients of one listener share: counts as beanstalkd has them, and the tubes of jobs.

Each process of the server reports on its own clients, for `stats`, `stats-tube` and `list-tubes`; the
commands put the reports together.
"""

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

from handlers.beanstalk.session import DEFAULT_TUBE, BeanstalkSession
from handlers.beanstalk.table import PROTOCOL
from pressure_server.log_limits import LogThrottle
from pressure_server.net.handler import Context
from pressure_server.net.workers import sum_fields

logger = logging.getLogger(__name__)

# Tubes that are counted: those that were changed last. Those that were deleted are forgotten in time.
_MAX_TUBES = 10_000

_IDS_OF_BLOCK = 64
# Blocks whose tubes are remembered. A block gets another tube only if the backend has lost data.
_MAX_KNOWN = 100_000


@dataclass(frozen=True)
class Report:
    """What clients do and have done, on one tube or on all.

    `counts` are by the names that stats-tube and stats have for clients, and by commands. `tubes` are those
    that clients use or watch, some several times. `pauses` has for how many seconds the tube was paused last
    through each process.
    """

    counts: Counter[str]
    tubes: tuple[bytes, ...] = ()
    pauses: tuple[int, ...] = ()


class ListenerState:
    """The limit and the counts of one listener, in this process, and the tubes of the jobs of one database.

    `max_job_size` is in bytes. `report` is the name of the listener's reports.
    """

    def __init__(self, context: Context, max_job_size: int) -> None:
        self.max_job_size = max_job_size
        self.report = context.clients.add_report(PROTOCOL, self._report)
        self.commands: Counter[str] = Counter()
        # By tube: commands, and `pause`, the seconds that were asked for last.
        self._of_tubes: OrderedDict[bytes, Counter[str]] = OrderedDict()
        # The replies of INTERNAL_ERROR have no text, so the log has their reasons.
        self.errors = LogThrottle(logger, "reply of INTERNAL_ERROR", "replies of INTERNAL_ERROR")
        self._clients = context.clients
        self._database = context.broker.default_database
        self._known: dict[int, bytes] = {}

    def _report(self, tube: bytes | None) -> Report:
        """Return a report on a tube, or on all, with the counts of this listener."""
        found = [one for one in self._clients.connected if isinstance(one, BeanstalkSession)]
        if tube is not None:
            using = sum(one.used == tube for one in found)
            watching = sum(tube in one.watched for one in found)
            counts = Counter({"current-using": using, "current-watching": watching})
            of_tube = self._of_tubes.get(tube, Counter[str]())
            return Report(counts + of_tube, pauses=(of_tube["pause"],))
        counts = Counter(
            {
                "current-connections": len(found),
                "current-producers": sum(one.is_producer for one in found),
                "current-workers": sum(one.is_worker for one in found),
                "current-waiting": sum(one.is_waiting for one in found),
            }
        )
        # As in beanstalkd, the default tube exists.
        tubes = {DEFAULT_TUBE}.union(*({one.used, *one.watched} for one in found))
        return Report(counts + self.commands, tubes=tuple(tubes))

    def of_tube(self, tube: bytes) -> Counter[str]:
        """Return the counts of a tube, to change them."""
        counts = self._of_tubes.setdefault(tube, Counter())
        self._of_tubes.move_to_end(tube)
        if len(self._of_tubes) > _MAX_TUBES:
            self._of_tubes.popitem(last=False)
        return counts

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


async def report_on(client: BeanstalkSession, tube: bytes | None = None) -> Report:
    """Return the report of all processes of the server on a tube, or on all."""
    found: list[Report] = await client.context.workers.reports(client.listener.report, tube)
    return sum_fields(Report, found)


async def is_in_use(client: BeanstalkSession, tube: bytes) -> bool:
    """Return whether a client of the server uses or watches the tube. As in beanstalkd, it then exists."""
    counts = (await report_on(client, tube)).counts
    return tube == DEFAULT_TUBE or bool(counts["current-using"] or counts["current-watching"])
