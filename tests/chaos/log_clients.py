"""Clients of logs, and of queues into which all puts have a transaction id."""

from collections.abc import Sequence

from tests.chaos.beanstalk import BeanstalkCaller
from tests.chaos.beanstalk_clients import BeanstalkWorker, Kicker, MortalWorker
from tests.chaos.caller import Caller
from tests.chaos.consumers import Consumer, ReliableConsumer, TransactionConsumer
from tests.chaos.group_readers import GroupReader, OffsetReader
from tests.chaos.journal import Journal
from tests.chaos.kestrel import Kestrel
from tests.chaos.ledger import NamedLedger
from tests.chaos.log_ledger import LogLedger
from tests.chaos.maker import Maker
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.once import LOG_PREFIX, ONCE_PREFIX, OnceJobProducer, OnceLogProducer, OnceProducer
from tests.chaos.producers import Pace
from tests.chaos.redis_workers import RedisKicker, RedisWorker
from tests.chaos.workers import JobConsumer
from tests.support.waiters import Words

# Queues into which all puts have a transaction id, with their bounds; the last is of jobs. Workers read them.
# The largest put fits just into the narrow list, so that puts wait for room.
_LISTS = {f"{ONCE_PREFIX}wide": 0, f"{ONCE_PREFIX}narrow": 20}
_JOBS = {f"{ONCE_PREFIX}jobs": 300}
ONCE = [*_LISTS, *_JOBS]
# Logs with their bounds and groups. All puts have a transaction id.
LOGS: dict[str, tuple[int, Sequence[str]]] = {
    f"{LOG_PREFIX}wide": (0, ("alone", "shared", "tube")),
    f"{LOG_PREFIX}narrow": (100, ("shared", "plain")),
}
# Groups that are read by READ, with the numbers of their consumers.
_READERS = [
    (f"{LOG_PREFIX}wide", "alone", 1),
    (f"{LOG_PREFIX}wide", "shared", 3),
    (f"{LOG_PREFIX}narrow", "shared", 2),
]
_TUBE, _PLAIN = (f"{LOG_PREFIX}wide", "tube"), (f"{LOG_PREFIX}narrow", "plain")
_ONCE_PRODUCERS = 2
_LOG_PRODUCERS = 2
_ONCE_WORKERS = 3
_TUBE_WORKERS = 2


class LogClients:
    """Makes the clients. `once` is the ledger of the queues, and `logs` has those of the logs."""

    def __init__(self, maker: Maker, once: NamedLedger, logs: dict[str, LogLedger], journal: Journal) -> None:
        self._maker = maker
        self._once = once
        self._logs = logs
        self._journal = journal

    def once_producers(self, pace: Pace) -> list[OnceProducer]:
        """Return producers for each of the queues."""
        once = self._once
        producers: list[OnceProducer] = []
        for queue in ONCE * _ONCE_PRODUCERS:
            callers = self._maker.callers("once")
            common = (callers, self._maker.made, queue, once, self._journal, pace, self._maker.chance())
            producers.append(OnceJobProducer(*common, once) if queue in _JOBS else OnceProducer(*common))
        return producers

    def log_producers(self, pace: Pace) -> list[OnceProducer]:
        """Return producers for each of the logs."""
        producers: list[OnceProducer] = []
        for name, log in [*self._logs.items()] * _LOG_PRODUCERS:
            callers = self._maker.callers("log-producer")
            common = (callers, self._maker.made, name, log, self._journal, pace, self._maker.chance())
            producers.append(OnceLogProducer(*common, log))
        return producers

    def _once_workers(self) -> list[Consumer]:
        """Return workers of the queues. No fault explains a job that ends twice."""
        once = self._once
        consumers: list[Consumer] = []
        for n in range(_ONCE_WORKERS):
            caller = Caller(*self._maker.next("once-worker"), self._journal, relayed=n > 0)
            consumers.append(RedisWorker(caller, once, ONCE, self._maker.chance(), self._journal, [*_LISTS]))
        kicker = self._maker.caller("once-kicker")
        consumers.append(RedisKicker(kicker, once, ONCE, self._maker.chance(), self._journal))
        return consumers

    def _readers(self) -> list[Consumer]:
        """Return consumers that read groups by READ, and kickers of what they bury."""
        consumers: list[Consumer] = []
        for log, group, count in _READERS:
            ledger, queues = self._of_group(log, group)
            for _ in range(count):
                callers = self._maker.callers("reader")
                reader = GroupReader(
                    callers[0], ledger, queues, self._maker.chance(), self._journal, [],
                    self._logs[log], group, callers, is_alone=count == 1,
                )  # fmt: skip
                consumers.append(reader)
            kicker = self._maker.caller("group-kicker")
            consumers.append(RedisKicker(kicker, ledger, queues, self._maker.chance(), self._journal))
        return consumers

    def _tube_workers(self) -> list[Consumer]:
        """Return beanstalk workers, for which a group is a tube."""
        ledger, queues = self._of_group(*_TUBE)
        consumers: list[Consumer] = []
        workers: list[type[JobConsumer]] = [*[BeanstalkWorker] * _TUBE_WORKERS, MortalWorker]
        for worker in workers:
            caller = BeanstalkCaller(*self._maker.next("group-worker"), self._journal, relayed=True)
            consumers.append(worker(caller, ledger, queues, self._maker.chance(), self._journal, []))
        kicker = BeanstalkCaller(*self._maker.next("group-kicker"), self._journal, relayed=False)
        consumers.append(Kicker(kicker, ledger, queues, self._maker.chance(), self._journal))
        return consumers

    def _plain_consumers(self) -> list[Consumer]:
        """Return clients that know nothing of groups: of kestrel's protocol, and Redis clients that move."""
        ledger, queues = self._of_group(*_PLAIN)
        reader = MemcachedCaller(*self._maker.next("group-kestrel"), self._journal, relayed=False)
        kestrel = Kestrel(reader, ledger, queues, self._maker.chance())
        mover = Caller(*self._maker.next("group-mover"), self._journal, relayed=True)
        reliable = ReliableConsumer(mover, ledger, queues, self._maker.chance())
        taker = self._maker.caller("group-transaction")
        return [kestrel, reliable, TransactionConsumer(taker, ledger, queues, self._maker.chance())]

    def offset_readers(self) -> list[OffsetReader]:
        """Return clients that read the logs by offset."""
        return [
            OffsetReader(self._maker.caller("offset-reader"), log, self._maker.chance())
            for log in self._logs.values()
        ]

    def consumers(self) -> list[Consumer]:
        """Return the consumers of the queues and the groups."""
        return [*self._once_workers(), *self._readers(), *self._tube_workers(), *self._plain_consumers()]

    def _of_group(self, log: str, group: str) -> tuple[NamedLedger, list[str]]:
        """Return the ledger of a group, and its queue in a list."""
        ledger = self._logs[log]
        return ledger.groups[group], [ledger.queue_of(group)]

    async def create_queues(self, caller: Caller) -> None:
        """Create the queues and logs."""
        for queue, limit in (_LISTS | _JOBS).items():
            words: Words = ("PRESSURE.CREATE", queue, "BOUND", limit, "OVERFLOW", "BLOCK")
            await caller.ask((*words, "TYPE", "JOBS") if queue in _JOBS else words)
        for log, (limit, groups) in LOGS.items():
            await caller.ask(
                ("PRESSURE.CREATE", log, "BOUND", limit, "OVERFLOW", "BLOCK", "TYPE", "LOG"),
                *(("PRESSURE.GROUP", "CREATE", log, group) for group in groups),
            )
