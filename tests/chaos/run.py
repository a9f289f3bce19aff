"""A run: the stand, its clients and its faults, from the first message until all queues are drained."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.chaos.backends import MakeBackend, SingleBackend
from tests.chaos.beanstalk import BeanstalkCaller
from tests.chaos.beanstalk_clients import BeanstalkWorker, Kicker, MortalWorker, Putter
from tests.chaos.caller import Caller
from tests.chaos.causes import Incident
from tests.chaos.consumers import CLOSED, Consumer, Exchanger, ReliableConsumer, Taker, TransactionConsumer
from tests.chaos.faults import Faults
from tests.chaos.group_readers import OffsetReader
from tests.chaos.hang_ups import PATHS, HalfCloser, HangUps
from tests.chaos.journal import Journal
from tests.chaos.kestrel import Kestrel
from tests.chaos.ledger import NamedLedger
from tests.chaos.log_clients import LOGS, ONCE, LogClients
from tests.chaos.log_ledger import LogLedger
from tests.chaos.maker import Maker
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.memcached_clients import Getter, Setter
from tests.chaos.once import OnceProducer
from tests.chaos.plan import Fault, Kind, Timeouts
from tests.chaos.poppers import Popper
from tests.chaos.producers import Pace, Producer, Sender
from tests.chaos.reached import reached
from tests.chaos.readers import Reader
from tests.chaos.redis_workers import DetachedWorker, JobProducer, RedisKicker, RedisWorker
from tests.chaos.ring_clients import RingClients
from tests.chaos.stand import Stand
from tests.chaos.tags import beside
from tests.chaos.workers import JobConsumer
from tests.support.waiters import Waiter, Words

# Queues with their bounds; 0 for none. Exchanges and moves are between those with the same tag.
QUEUES = {"wide": 0, "{wide}r": 0, "narrow": 20, "{narrow}tight": 300, "{wide}stack": 300, "{narrow}bag": 300}
# Those that are no fifo.
_TYPES = {"{wide}stack": ("TYPE", "LIFO"), "{narrow}bag": ("TYPE", "RANDOM")}
_NAMES = list(QUEUES)
# beanstalk has no names with braces.
_PLAIN_NAMES = ["wide", "narrow"]
# Queues of jobs with their bounds; None for one that the first put creates. Takers take from `mixed`, too.
TUBES = {"tube": 300, "urgent": 300, "small": 40, "created": None, "mixed": 300}
_TUBES = list(TUBES)
# A list from which workers reserve, and takers take.
HELD = {"held": 300}
_HELD = list(HELD)
# Queues from which poppers take, with their settings.
KEPT: dict[str, Words] = {
    "kept": ("BOUND", 300),
    "{kept}jobs": ("BOUND", 300, "TYPE", "JOBS", "RETRY-DELAY", 0.05, "RETRY-DELAY-MAX", 1, "IN-FLIGHT", 40),
}
_KEPT = list(KEPT)
_POPPERS = 5
# The queues of clients that hang up in a stall.
_LEFT_QUEUES = [path.queue for path in PATHS]
# Kinds of clients: type, protocol, name and number. The connections of the first third of the producers are
# never cut, and of the consumers only those of reliable consumers are.
_PRODUCERS: list[tuple[type[Producer], type[Caller], str, int]] = [
    (Producer, Caller, "producer", 6),
    (Setter, MemcachedCaller, "setter", 3),
]
_CONSUMERS: list[tuple[type[Consumer], type[Caller], str, int]] = [
    (Taker, Caller, "taker", 8),
    (ReliableConsumer, Caller, "reliable", 4),
    (Getter, MemcachedCaller, "getter", 2),
    (Kestrel, MemcachedCaller, "kestrel", 4),
    (TransactionConsumer, Caller, "transaction", 2),
    (Reader, Caller, "reader", 1),
]
# The same for jobs, with the queues.
_JOB_PRODUCERS: list[tuple[type[Producer], type[Caller], str, int, list[str]]] = [
    (Putter, BeanstalkCaller, "putter", 3, _TUBES),
    (JobProducer, Caller, "job-producer", 2, [*_TUBES[:3], "mixed"]),
    (Producer, Caller, "plain-producer", 1, ["held", "mixed"]),
    (Producer, Caller, "kept-producer", 1, list(KEPT)),
]
_WORKERS: list[tuple[type[JobConsumer], type[Caller], str, int, list[str]]] = [
    (BeanstalkWorker, BeanstalkCaller, "worker", 5, _TUBES),
    (BeanstalkWorker, BeanstalkCaller, "tube-worker", 1, ["tube"]),
    (BeanstalkWorker, BeanstalkCaller, "created-worker", 1, ["created"]),
    (MortalWorker, BeanstalkCaller, "mortal", 2, _TUBES),
    (RedisWorker, Caller, "redis-worker", 4, [*_TUBES, *_HELD]),
]
_DETACHED = 3
_JOB_TAKERS = 2
_READERS = 2
# The shares of messages that are put as jobs, with a transaction id into queues, and into logs.
_JOBS = 0.4
_WITH_ID = 0.08
_IN_LOGS = 0.08
_EXCHANGERS = 2
_HALF_CLOSERS = 4
# How often the auditor asks a server whose backend does not answer in time.
_ATTEMPTS = 20
# Seconds between checks of the tasks, between lines of progress, and until queues that do not become shorter
# are given up. Workers hold jobs, so the thousands that may be left take minutes on a busy machine.
_CHECK_INTERVAL = 0.2
_PROGRESS_INTERVAL = 10.0
_DRAIN_TIMEOUT = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """The size of a run: the number of messages to acknowledge, the faults and the servers."""

    messages: int
    faults: Sequence[Fault]
    proxies: int
    timeouts: Timeouts
    folder: Path
    seed: int
    backend: MakeBackend = SingleBackend
    workers: int = 1
    # A kind of fault that lasts until the messages have been put.
    stays: Kind | None = None
    # How many seconds of acknowledged changes a power cut may lose.
    may_lose: float = 0.0


@dataclass
class Outcome:
    """The results of a run. Times are of `time.monotonic`; `seconds` excludes the drain."""

    settings: Settings
    ledger: NamedLedger = field(default_factory=NamedLedger)
    # Of the messages that were put with a transaction id into queues, and of those in logs.
    once: NamedLedger = field(default_factory=NamedLedger)
    logs: dict[str, LogLedger] = field(
        default_factory=lambda: {name: LogLedger(name, groups) for name, (_, groups) in LOGS.items()}
    )
    journal: Journal = field(default_factory=Journal)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    incidents: list[Incident] = field(default_factory=list)
    # The times at which a power cut may have lost acknowledged changes.
    cuts: list[float] = field(default_factory=list)
    append_only_files: list[Path] = field(default_factory=list)
    # Queues that were not drained, with their lengths.
    left: dict[str, int] = field(default_factory=dict)
    # What each server said of its backend while a fault stayed.
    said: list[str] = field(default_factory=list)
    # Rare states, and how often they were reached.
    reached: Counter[str] = field(default_factory=Counter)

    @property
    def ledgers(self) -> list[NamedLedger]:
        """The ledgers of all messages. A message in a log is in the ledger of each of its groups."""
        return [
            self.ledger,
            self.once,
            *(group for log in self.logs.values() for group in log.groups.values()),
        ]

    @property
    def in_logs(self) -> int:
        """The number of acknowledged messages in logs."""
        return sum(log.acknowledged for log in self.logs.values())

    @property
    def acknowledged(self) -> int:
        """The number of messages acknowledged; those in logs count once."""
        return self.ledger.acknowledged + self.once.acknowledged + self.in_logs

    @property
    def received(self) -> int:
        """The number of messages received; those in logs count once for each group."""
        return sum(ledger.received for ledger in self.ledgers)

    @property
    def last_receipt(self) -> float:
        """The time of the last receipt."""
        return max(ledger.last_receipt for ledger in self.ledgers)


async def run(settings: Settings, say: Say) -> Outcome:
    """Run the test. `say` receives lines of progress."""
    outcome = Outcome(settings)
    stand = Stand(
        settings.folder,
        settings.proxies,
        settings.timeouts,
        outcome.journal,
        settings.backend,
        settings.workers,
    )
    try:
        await stand.start()
        outcome.began = time.monotonic()
        await _Work(stand, outcome, say).run()
        await stand.end()
    finally:
        await stand.close()
    outcome.append_only_files = stand.append_only_files
    outcome.cuts = stand.backend.cuts
    for complaint in stand.complaints_in_logs():
        outcome.journal.complain(complaint)
    outcome.reached = reached(settings.folder, outcome.journal)
    return outcome


class _Work:
    """The clients and faults of one run."""

    def __init__(self, stand: Stand, outcome: Outcome, say: Say) -> None:
        self._stand = stand
        self._outcome = outcome
        self._settings = outcome.settings
        self._ledger, self._journal = outcome.ledger, outcome.journal
        self._say = say
        self._maker = Maker(stand.proxies, self._journal, self._settings.seed)
        self._log_clients = LogClients(self._maker, outcome.once, outcome.logs, self._journal)
        self._ring_clients = RingClients(self._maker, self._journal)
        sender = self._sender(self._maker.caller("stall-producer"))
        collector = self._maker.caller("stall-collector")
        self._hang_ups = HangUps(stand.proxies, self._ledger, self._journal, sender, collector)
        self._faults = Faults(stand, self._hang_ups, self._ledger.is_acknowledged)
        self._outcome.incidents = self._faults.done

    async def run(self) -> None:
        await self._create_queues()
        messages = self._settings.messages
        plain = 1 - _JOBS - _WITH_ID - _IN_LOGS
        pace = Pace(lambda: self._ledger.acknowledged - self._ledger.jobs, plain * messages, self._share)
        job_pace = Pace(lambda: self._ledger.jobs, _JOBS * messages, self._share)
        once_pace = Pace(lambda: self._outcome.once.acknowledged, _WITH_ID * messages, self._share)
        log_pace = Pace(lambda: self._outcome.in_logs, _IN_LOGS * messages, self._share)
        paces = (pace, job_pace, once_pace, log_pace)
        workers: list[Consumer | HalfCloser | OffsetReader] = [
            *self._consumers(pace),
            *self._job_consumers(),
            *self._log_clients.consumers(),
            *self._log_clients.offset_readers(),
        ]
        makers: list[Producer | OnceProducer] = [
            *self._producers(pace),
            *self._job_producers(job_pace),
            *self._log_clients.once_producers(once_pace),
            *self._log_clients.log_producers(log_pace),
        ]
        producers = [asyncio.create_task(producer.work()) for producer in makers]
        rings = [asyncio.create_task(client.work()) for client in self._ring_clients.clients()]
        breaking = asyncio.create_task(self._faults.all(self._settings.faults))
        staying = asyncio.create_task(self._faults.stay(self._settings.stays, self._settings.seed))
        tasks = [
            *(asyncio.create_task(worker.work()) for worker in workers),
            asyncio.create_task(self._hang_ups.collect()),
            *rings,
            *producers,
            asyncio.create_task(self._report_progress()),
            breaking,
            staying,
        ]
        try:
            while not breaking.done() or self._outcome.acknowledged < self._settings.messages:
                await self._check(tasks)
            if self._settings.stays is not None:
                self._outcome.said = await self._backends_away()
            self._faults.end_stay()
            await staying
            for one in paces:
                one.is_over = True
            while not all(task.done() for task in producers):
                await self._check(tasks)
            self._outcome.seconds = time.monotonic() - self._outcome.began
            for ring in rings:
                ring.cancel()
                tasks.remove(ring)
            await asyncio.gather(*rings, return_exceptions=True)
            await self._ring_clients.delete()
            await self._drain(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _share(self) -> float:
        """Return the share of the messages that may be put by now; inf when all faults are done."""
        done, planned = len(self._faults.done), len(self._settings.faults)
        return (done + 1) / planned if done < planned else math.inf

    async def _backends_away(self) -> list[str]:
        """Return what each server that runs says of the parts of its backend that are away."""
        lines = []
        for proxy in self._stand.proxies:
            if proxy.is_running:
                with Waiter(proxy.port) as asked:
                    about = await asyncio.to_thread(asked, "INFO", "backend")
                away = [
                    line
                    for line in about.decode().splitlines()
                    if "status=down" in line or "status:down" in line
                ]
                lines.append(f"{proxy.name}: {'; '.join(away) or 'no part of the backend is away'}")
        return lines

    async def _check(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait a little, then raise the exception of a task that failed."""
        await asyncio.sleep(_CHECK_INTERVAL)
        for task in tasks:
            if task.done():
                task.result()

    async def _create_queues(self) -> None:
        caller = self._maker.caller("creator")
        for queue, bound in (QUEUES | HELD | TUBES).items():
            if bound is None:
                continue
            await caller.ask(
                ("PRESSURE.CREATE", queue, "BOUND", bound, "OVERFLOW", "BLOCK", *_TYPES.get(queue, ()))
            )
        for queue, settings in KEPT.items():
            await caller.ask(("PRESSURE.CREATE", queue, "ACK", "NEXT", *settings))
        closed = {beside(queue, CLOSED) for queue in (*QUEUES, *LOGS)}
        for queue in (*_LEFT_QUEUES, *closed):
            await caller.ask(("PRESSURE.CREATE", queue))
        await self._log_clients.create_queues(caller)
        await self._ring_clients.create(caller)
        for queue in closed:
            await caller.ask(("PRESSURE.CLOSE", queue))
        caller.close()
        if isinstance(self._stand.backend, SingleBackend):
            await asyncio.to_thread(self._stand.backend.begin_to_lose)

    def _sender(self, caller: Caller) -> Sender:
        return Sender(self._maker.made, caller, self._ledger, self._journal)

    def _producers(self, pace: Pace) -> list[Producer]:
        producers = []
        for producer, protocol, name, count in _PRODUCERS:
            for n in range(count):
                caller = protocol(*self._maker.next(name), self._journal, relayed=n >= count // 3)
                producers.append(producer(caller, self._sender(caller), _NAMES, pace, self._maker.chance()))
        return producers

    def _job_producers(self, pace: Pace) -> list[Producer]:
        producers = []
        for producer, protocol, name, count, queues in _JOB_PRODUCERS:
            for n in range(count):
                caller = protocol(*self._maker.next(name), self._journal, relayed=n >= count // 3)
                producers.append(producer(caller, self._sender(caller), queues, pace, self._maker.chance()))
        return producers

    def _consumers(self, pace: Pace) -> list[Consumer | HalfCloser]:
        consumers: list[Consumer | HalfCloser] = []
        for consumer, protocol, name, count in _CONSUMERS:
            for _ in range(count):
                is_relayed = consumer is ReliableConsumer
                caller = protocol(*self._maker.next(name), self._journal, relayed=is_relayed)
                consumers.append(consumer(caller, self._ledger, _NAMES, self._maker.chance()))
        for _ in range(_EXCHANGERS):
            caller = self._maker.caller("exchanger")
            sender = self._sender(caller)
            consumers.append(Exchanger(caller, self._ledger, _NAMES, self._maker.chance(), sender, pace))
        for _ in range(_HALF_CLOSERS):
            name_and_proxy = self._maker.next("half-closer")
            consumers.append(
                HalfCloser(*name_and_proxy, self._ledger, self._journal, _PLAIN_NAMES, self._maker.chance())
            )
        return consumers

    def _job_consumers(self) -> list[Consumer]:
        consumers: list[Consumer] = []
        for worker, protocol, name, count, queues in _WORKERS:
            for n in range(count):
                caller = protocol(*self._maker.next(name), self._journal, relayed=n > 0)
                consumers.append(
                    worker(caller, self._ledger, queues, self._maker.chance(), self._journal, _HELD)
                )
        for n in range(_DETACHED):
            caller = Caller(*self._maker.next("detached"), self._journal, relayed=n > 0)
            successor = self._maker.caller("successor")
            queues = [*_TUBES, *_HELD]
            consumers.append(
                DetachedWorker(
                    caller, self._ledger, queues, self._maker.chance(), self._journal, _HELD, successor
                )
            )
        for _ in range(_JOB_TAKERS):
            caller = self._maker.caller("job-taker")
            consumers.append(Taker(caller, self._ledger, ["mixed", *_HELD], self._maker.chance()))
        for n in range(_POPPERS):
            caller = Caller(*self._maker.next("popper"), self._journal, relayed=n > 0)
            consumers.append(Popper(caller, self._ledger, _KEPT, self._maker.chance(), self._journal))
        reader = MemcachedCaller(*self._maker.next("job-kestrel"), self._journal, relayed=False)
        consumers.append(Kestrel(reader, self._ledger, ["mixed", *_HELD], self._maker.chance()))
        of_logs = [
            name for log in self._outcome.logs.values() for name in (log.name, *map(log.queue_of, log.groups))
        ]
        for _ in range(_READERS):
            caller = self._maker.caller("reader")
            consumers.append(Reader(caller, self._ledger, [*_TUBES, *_HELD, *of_logs], self._maker.chance()))
        kicker = BeanstalkCaller(*self._maker.next("kicker"), self._journal, relayed=False)
        consumers.append(Kicker(kicker, self._ledger, _TUBES, self._maker.chance(), self._journal))
        caller = self._maker.caller("redis-kicker")
        consumers.append(RedisKicker(caller, self._ledger, _HELD, self._maker.chance(), self._journal))
        return consumers

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until nothing is received for longer than a proxy takes to recover a dead proxy's messages."""
        self._say("all faults repaired, all producers stopped; draining the queues")
        quiet = 2 * self._settings.timeouts.proxy + 1
        began = shrank = time.monotonic()
        least = math.inf
        while time.monotonic() - max(began, self._outcome.last_receipt) < quiet or self._outcome.left:
            await self._check(tasks)
            try:
                self._outcome.left = await asyncio.to_thread(self._lengths)
            except redis.RedisError:  # on a busy machine, nodes take each other for dead for a moment
                continue
            length = sum(self._outcome.left.values())
            if length < least:
                least, shrank = length, time.monotonic()
            elif time.monotonic() - shrank > _DRAIN_TIMEOUT + quiet:
                return
        await self._audit()

    def _lengths(self) -> dict[str, int]:
        """Return the lengths of queues that are not empty in the backend, with their jobs in any state."""
        lengths: dict[str, int] = {}
        for control in self._stand.backend.clients():
            for prefix in self._stand.backend.prefixes:
                for key in control.keys(f"{prefix}*:bound"):
                    base = key.removesuffix(":bound")
                    length = control.llen(base) + control.hlen(f"{base}:ext:jobs")
                    lengths[base.removeprefix(prefix)] = length
            control.close()
        return {queue: length for queue, length in lengths.items() if length}

    async def _audit(self) -> None:
        """Complain of empty queues whose statistics count other numbers in, or out, than there were."""
        await asyncio.to_thread(self._audit_jobs)
        caller = self._maker.caller("auditor")
        for queue in (*QUEUES, *_LEFT_QUEUES, *TUBES, *HELD, *KEPT):
            await self._audit_counts(caller, queue)
        for queue in ONCE:
            await self._audit_counts(caller, queue, self._outcome.once.acknowledged_in(queue))
        for log in self._outcome.logs.values():
            for queue in (log.name, *map(log.queue_of, log.groups)):
                await self._audit_counts(caller, queue, log.acknowledged)
            await self._audit_groups(caller, log)
        caller.close()

    async def _audit_counts(self, caller: Caller, queue: str, expected: int | None = None) -> None:
        """Complain if a queue has not as many messages out as in, or in as `expected`."""
        for attempt in range(1, _ATTEMPTS + 1):
            (reply,) = await caller.ask(("PRESSURE.INFO", queue))
            if not isinstance(reply, Exception):
                break
            # On a busy machine, the backend may take longer to answer than the timeouts of the run.
            if attempt == _ATTEMPTS or not str(reply).startswith("BACKEND"):
                raise reply
            await asyncio.sleep(_CHECK_INTERVAL)
        about: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
        produced, consumed = about[b"produced_messages"], about[b"consumed_messages"]
        if produced != consumed:
            self._journal.complain(
                f"{queue} is empty; its statistics count {produced} produced, {consumed} consumed"
            )
        if expected is not None and produced != expected:
            self._journal.contradict(
                f"{queue}: {expected} messages were acknowledged; its statistics count {produced} produced"
            )

    async def _audit_groups(self, caller: Caller, log: LogLedger) -> None:
        """Complain of a group that has not passed all messages of its log."""
        (found,) = await caller.ask(("PRESSURE.GROUP", "LIST", log.name))
        for reply in found:
            about: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            unfinished = [about[name] for name in (b"lag", b"pending", b"buried", b"missed")]
            if about[b"offset"] != log.acknowledged or any(unfinished):
                self._journal.contradict(
                    f"{log.acknowledged} messages were put into {log.name}, and groups are empty: {about}"
                )

    def _audit_jobs(self) -> None:
        """Complain of what is left of jobs in the backend."""
        for control in self._stand.backend.clients():
            for state in ("ready", "delayed", "reserved", "buried"):
                for key in control.keys(f"__pressure__:*:ext:{state}"):
                    self._journal.complain(f"there are no jobs, but {key} is left")
            control.close()

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL)
            self._say(
                f"{self._outcome.acknowledged} acknowledged, {self._outcome.received} received, "
                f"{len(self._faults.done)} of {len(self._settings.faults)} faults"
            )
