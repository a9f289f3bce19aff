"""Dead native clients, a doctor on a backend of its own, and a check whether a queue works."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, Options
from pressure_server.queues.policy import ERROR, Policy
from pressure_server.queues.repair import Case, Doctor, Finding
from tests.support.brokers import default_broker
from tests.support.native import VERSIONS, NativeError, NativeSteps, QueueClosedError, Steps, run
from tests.support.programs import Client, Valkey

PREFIX = "__pressure__"
SUFFIXES = (
    "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free", ":not_full", ":closed",
    ":stats:produced_messages", ":stats:produced_bytes", ":stats:consumed_messages", ":stats:consumed_bytes",
)  # fmt: skip


def copy_queue(direct: Client, queue: str, to: str) -> str:
    """Copy all keys of a queue to another queue, and return its name."""
    with direct.pipeline(transaction=False) as pipeline:
        for suffix in SUFFIXES:
            pipeline.copy(f"{PREFIX}:{queue}{suffix}", f"{PREFIX}:{to}{suffix}")
        pipeline.execute()
    return to


def drop_queue(direct: Client, queue: str) -> None:
    """Delete all keys of a queue, without taking its roles."""
    direct.delete(*[f"{PREFIX}:{queue}{suffix}" for suffix in SUFFIXES])


@dataclass(frozen=True)
class State:
    """A queue before an operation: its bound, how many messages were put and taken, whether it is closed."""

    name: str
    bound: int | None
    put: int = 0
    taken: int = 0
    closed: bool = False

    def make(self, direct: Client, queue: str) -> str:
        """Make a queue in this state, and return its name."""
        if self.bound is not None:
            earlier = NativeSteps(direct, queue, "earlier")
            run(earlier.create(self.bound))
            for number in range(self.put):
                run(earlier.put(b"message %d" % number))
                if number < self.taken:
                    run(earlier.get())
            if self.closed:
                run(earlier.close())
        return queue


NO_QUEUE = State("none", None)
STATES = (
    State("new", 0),
    State("empty", 0, 1, 1),
    State("no bound, 2 messages", 0, 2),
    State("bound 3, 1 message", 3, 1),
    State("one below its bound of 2", 2, 1),
    State("full, of 1", 1, 1),
    State("full, of 2", 2, 2),
    State("full, of 2, used before", 2, 3, 1),
    State("closed, 1 message", 0, 1, 0, True),
    State("closed, full", 2, 2, 0, True),
    State("closed, empty", 0, 1, 1, True),
)
OPERATIONS: dict[str, Callable[[NativeSteps], Steps[Any]]] = {
    "create": lambda native: native.create(2),
    "put": lambda native: native.put(b"native"),
    "put, non-blocking": lambda native: native.put_non_blocking(b"native"),
    "get": lambda native: native.get(),
    "get, non-blocking": lambda native: native.get_non_blocking(),
    "close": lambda native: native.close(),
    "delete": lambda native: native.delete(),
}
IN_BOTH_VERSIONS = ("create", "put", "get", "close", "delete")


@dataclass(frozen=True)
class Death:
    """A native client that has died in an operation, and its queue. `after` describes its last command."""

    operation: str
    version: str
    state: State
    after: str
    queue: str


def deaths(direct: Client) -> Iterator[Death]:
    """Yield a death after each step of each operation, in each state, until it ends or waits.

    A live client does the steps, and its queue is copied after each of them.
    """
    for operation in OPERATIONS:
        for version in VERSIONS if operation in IN_BOTH_VERSIONS else VERSIONS[:1]:
            for state in (NO_QUEUE,) if operation == "create" else STATES:
                yield from _deaths(direct, operation, version, state)


def _deaths(direct: Client, operation: str, version: str, state: State) -> Iterator[Death]:
    name = f"{operation} ({version}), {state.name}"
    native = NativeSteps(direct, state.make(direct, name), "victim", version=version)
    steps = OPERATIONS[operation](native)
    number = 0
    waits_for: str | None = None
    while waits_for is None:
        try:
            waits_for = next(steps)
        except (StopIteration, NativeError):
            break
        after = native.last if "non-blocking" in operation else native.last.replace("RPOP", "BRPOP")
        if waits_for:
            key = waits_for.removeprefix(f"{PREFIX}:{name}")
            after = f"it began to wait at BRPOP {key or 'the list'}"
        number += 1
        yield Death(operation, version, state, after, copy_queue(direct, name, f"{name}, step {number:02}"))
    steps.close()
    drop_queue(direct, name)


_Result = TypeVar("_Result")


@contextmanager
def naming(queue: str) -> Iterator[None]:
    """Add the name of the queue to exceptions."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the queue '{queue}'")
        raise


@dataclass
class Report:
    """A report on one queue: the findings of each round of repair, what was done, and what is left."""

    found: list[list[Finding]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    @property
    def summary(self) -> str:
        rounds = [", ".join(finding.name for finding in findings) for findings in self.found]
        return "; then ".join(rounds) or "no problem"


class Ward:
    """A doctor that does not wait between its looks, a server's operations, and the keys themselves."""

    def __init__(self, backend: Valkey) -> None:
        self.direct: Client = backend.client()
        self._runner = asyncio.Runner()
        self._broker = default_broker(backend.url, Policy(None, ERROR, role_timeout=0))
        self.doctor = self._run(self._start())

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self._runner.run(coroutine)

    async def _start(self) -> Doctor:
        await self._broker.start()
        return Doctor(self._broker.default_database, 0)

    def examine(self) -> dict[str, Case]:
        """Return the queues with a problem."""
        self._run(self._examine())
        return {name.decode(): case for name, case in self.doctor.cases.items()}

    async def _examine(self) -> None:
        self.doctor.cases.clear()
        if self.doctor.named is not None:
            await self.doctor.look_for([self.doctor.named])
        else:
            async for names in self.doctor.queues():
                await self.doctor.look_for(names)
        await self.doctor.confirm()

    def problems(self) -> dict[str, list[str]]:
        """Return the problems by queue."""
        return {
            queue: [finding.name for finding in case.lasting(0)] for queue, case in self.examine().items()
        }

    def look_again(self) -> list[Case]:
        """Return the cases that still have a problem."""
        self._run(self.doctor.look_again())
        return list(self.doctor.cases.values())

    def fix(self, case: Case) -> list[str]:
        """Fix a case. Return what was done, in words."""
        return self._run(self.doctor.fix(case))

    def repair(self, named: str | None = None) -> dict[str, Report]:
        """Do what `doctor --repair` does. Return a report on each queue with a problem."""
        self.doctor.named = None if named is None else named.encode()
        return self._run(self._repair())

    async def _repair(self) -> dict[str, Report]:
        reports: defaultdict[str, Report] = defaultdict(Report)

        def add(case: Case, findings: list[Finding], done: list[str]) -> None:
            report = reports[case.name.decode()]
            report.found.append(findings)
            report.done.extend(done)

        await self._examine()
        await self.doctor.repair(add)
        for case in self.doctor.cases.values():
            reports[case.name.decode()].left.extend(case.lasting(0))
        return dict(reports)

    def repair_only(self, queue: str) -> Report:
        """Repair the only queue with a problem. Return the report on it."""
        reports = self.repair()
        assert set(reports) <= {queue}
        return reports.get(queue, Report())

    def operate(
        self, queue: str, verb: Verb, *arguments: bytes, size: int = 1, options: Options = DEFAULT
    ) -> Any:
        """Do an operation as a server does. Return its results. Raises a PressureError."""
        database = self._broker.default_database
        return self._run(database.run(verb, queue.encode(), list(arguments), size=size, options=options))

    def assert_all_work(self, queues: Iterable[str]) -> None:
        """Check that all queues work; of those with equal keys, only one is tried."""
        alike = {Keys.read(self.direct, queue): queue for queue in queues}
        for queue in alike.values():
            with naming(queue):
                self.assert_works(queue)

    def assert_works(self, queue: str) -> None:
        """Check that native and server clients put and get at once, and that a delete leaves no key."""
        native = NativeSteps(self.direct, queue, "survivor")
        before = Keys.read(self.direct, queue)
        before.assert_sound()
        expected = list(before.messages)
        if before.closed:
            with suppress(QueueClosedError):
                run(native.put(b"no"))
                raise AssertionError("a closed queue accepted a put")
        else:
            for by_server in (False, True):
                if not Keys.read(self.direct, queue).has_room:
                    assert self._get(queue, by_server) == expected.pop(0)
                message = b"from a server" if by_server else b"from a native client"
                if by_server:
                    assert self.operate(queue, verbs.PUT, message, options=UNIQUE) == [1]
                else:
                    run(native.put(message))
                expected.append(message)
        while expected:
            assert self._get(queue, by_server=len(expected) % 2 == 0) == expected.pop(0)
        Keys.read(self.direct, queue).assert_sound()
        assert self.operate(queue, verbs.DELETE) == [1]
        assert self.direct.keys(f"{PREFIX}:{queue}*") == []

    def _get(self, queue: str, by_server: bool) -> bytes:
        if by_server:
            return bytes(self.operate(queue, verbs.GET)[0])
        return run(NativeSteps(self.direct, queue, "survivor").get())

    def close(self) -> None:
        self._run(self._broker.close())
        self._runner.close()
        self.direct.close()


@dataclass(frozen=True)
class Keys:
    """The protocol's keys of a queue at one moment."""

    bound: int | None
    messages: tuple[bytes, ...]
    closed: int
    not_full: int
    producer_free: int
    consumer_free: int
    producer: bytes | None
    consumer: bytes | None
    stats: tuple[int, ...]

    @classmethod
    def read(cls, direct: Client, queue: str) -> Keys:
        base = f"{PREFIX}:{queue}"
        with direct.pipeline() as pipeline:
            pipeline.get(f"{base}:bound").lrange(base, 0, -1)
            for name in ("closed", "not_full", "producer_free", "consumer_free"):
                pipeline.llen(f"{base}:{name}")
            pipeline.get(f"{base}:producer").get(f"{base}:consumer")
            for verb in ("produced", "consumed"):
                pipeline.get(f"{base}:stats:{verb}_messages").get(f"{base}:stats:{verb}_bytes")
            bound, messages, *rest = pipeline.execute()
        bound = None if bound is None else int(bound)
        stats = tuple(int(number or 0) for number in rest[6:])
        return cls(*[bound, tuple(messages[::-1]), *rest[:6], stats])

    @property
    def has_room(self) -> bool:
        return self.bound == 0 or (self.bound is not None and len(self.messages) < self.bound)

    @property
    def producer_may_wait(self) -> bool:
        """Whether a live producer may hold the role: it waits for room."""
        waits = not self.producer_free and self.producer is not None and not self.closed
        return waits and self.bound is not None and not self.has_room and not self.not_full

    @property
    def consumer_may_wait(self) -> bool:
        """Whether a live consumer may hold the role: it waits for a message."""
        waits = not self.consumer_free and self.consumer is not None and not self.closed
        return waits and self.bound is not None and not self.messages

    def assert_sound(self) -> None:
        """Check that tokens and statistics are as specified for a queue that no client uses."""
        assert (self.producer_free, self.consumer_free) == (1, 1)
        assert self.not_full == (1 if self.has_room else 0)
        produced, produced_bytes, consumed, consumed_bytes = self.stats
        assert produced - consumed == len(self.messages)
        assert produced_bytes - consumed_bytes == sum(map(len, self.messages))
