"""Every state in which a native client can die: what the doctor says, and what is true after its repair.

`python -m tests.repair_table docs/repair.md` puts the table into the document, behind its marker.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.broker import operation as kinds
from pressure_server.broker.broker import Broker
from pressure_server.broker.database import Database
from pressure_server.broker.diagnosis import Finding, Trouble
from pressure_server.broker.doctor import Case, Doctor
from pressure_server.broker.policy import ERROR, Policy
from tests.native import NativeError, NativeSteps, QueueClosedError, Steps, run
from tests.programs import Client, Valkey

QUEUE = "q"
BASE = f"__pressure__:{QUEUE}"
MARKER = "<!-- made by `python -m tests.repair_table docs/repair.md` -->\n"
VERSIONS = ("0.15", "0.1")
VICTIM = "victim"


class VersionedSteps(NativeSteps):
    """A native client of either version, which notes what it has done last."""

    def __init__(self, client: Client, identity: str, version: str) -> None:
        super().__init__(client, QUEUE, identity)
        self._version = version
        self.last = "nothing"

    def _do(self, command: str, suffix: str, *arguments: bytes | str | int) -> Any:
        if command == "LTRIM" and self._version == "0.1":
            # As its pseudo-code has it, which leaves up to two.
            arguments = (0, 1)
        self.last = f"{command} {suffix or 'the list'}"
        return super()._do(command, suffix, *arguments)


@dataclass(frozen=True)
class State:
    """A queue before a client comes to it: its bound, how many were put and taken, whether it was closed."""

    name: str
    bound: int | None
    put: int = 0
    taken: int = 0
    closed: bool = False

    def make(self, direct: Client) -> None:
        direct.flushdb()
        if self.bound is None:
            return
        earlier = VersionedSteps(direct, "earlier", "0.15")
        run(earlier.create(self.bound))
        for number in range(self.put):
            run(earlier.put(b"message %d" % number))
            if number < self.taken:
                run(earlier.get())
        if self.closed:
            run(earlier.close())


NO_QUEUE = State("none", None)
NEW = State("new", 0)
STATES = (
    NEW,
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
    "put": lambda native: native.put(b"theirs"),
    "put, non-blocking": lambda native: native.put_non_blocking(b"theirs"),
    "get": lambda native: native.get(),
    "get, non-blocking": lambda native: native.get_non_blocking(),
    "close": lambda native: native.close(),
    "delete": lambda native: native.delete(),
}
IN_BOTH_VERSIONS = ("create", "put", "get", "close", "delete")


@dataclass(frozen=True)
class Death:
    """A native client that has died after so many steps of an operation. Step 0 is its look at :bound."""

    operation: str
    version: str
    state: State
    step: int
    after: str
    waits: bool

    def __str__(self) -> str:
        return f"{self.operation} ({self.version}), {self.state.name}, after {self.after} (step {self.step})"

    def happen(self, direct: Client) -> None:
        """Bring it about, in an empty database."""
        self.state.make(direct)
        steps = OPERATIONS[self.operation](VersionedSteps(direct, VICTIM, self.version))
        for _ in range(self.step + 1):
            next(steps)
        steps.close()


def deaths(direct: Client) -> Iterator[Death]:
    """All of them: each operation of either version, in each state, up to where it ends or waits."""
    for operation in OPERATIONS:
        for version in VERSIONS:
            if version == "0.1" and operation not in IN_BOTH_VERSIONS:
                continue
            for state in (NO_QUEUE,) if operation == "create" else STATES:
                yield from _deaths(direct, operation, version, state)


def _deaths(direct: Client, operation: str, version: str, state: State) -> Iterator[Death]:
    state.make(direct)
    native = VersionedSteps(direct, VICTIM, version)
    steps = OPERATIONS[operation](native)
    found: list[Death] = []
    try:
        while True:
            waits_for = next(steps)
            after = native.last if "non-blocking" in operation else native.last.replace("RPOP", "BRPOP")
            if waits_for:
                after = f"it began to wait at BRPOP {waits_for.removeprefix(BASE) or 'the list'}"
            found.append(Death(operation, version, state, len(found), after, waits_for is not None))
            if waits_for:
                break
    except (StopIteration, NativeError):
        pass
    steps.close()
    yield from found


@dataclass
class Told:
    """What the doctor has found, a round of repair each, and what it has done."""

    found: list[list[Finding]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    @property
    def in_words(self) -> str:
        rounds = [", ".join(finding.trouble.value for finding in findings) for findings in self.found]
        return "; then ".join(rounds) or "all is well"


class Ward:
    """A doctor who waits for nobody, a server's view of the queues, and the keys themselves."""

    def __init__(self, backend: Valkey) -> None:
        self.direct: Client = backend.client()
        self.loop = asyncio.new_event_loop()
        self._broker = Broker(
            Address(backend.url), prefix="__pressure__", policy=Policy(None, ERROR, role_timeout=0)
        )
        self.loop.run_until_complete(self._broker.start())
        self.doctor = self.loop.run_until_complete(self._doctor())

    async def _doctor(self) -> Doctor:
        return Doctor(self._broker.default_database, 0)

    @property
    def database(self) -> Database:
        return self._broker.default_database

    def examine(self) -> dict[bytes, Case]:
        """All queues in trouble."""
        return self.loop.run_until_complete(self._examine())

    async def _examine(self) -> dict[bytes, Case]:
        cases: dict[bytes, Case] = {}
        async for names in self.doctor.queues():
            await self.doctor.look_for(names, cases)
        await self.doctor.confirm(cases)
        return cases

    @contextmanager
    def told_the_name(self) -> Iterator[None]:
        """As `doctor QUEUE`."""
        self.doctor.named = QUEUE.encode()
        yield
        self.doctor.named = None

    def repair(self) -> Told:
        """What `doctor --repair` does."""
        return self.loop.run_until_complete(self._repair())

    async def _repair(self) -> Told:
        told = Told()

        def hear(_case: Case, findings: list[Finding], done: list[str]) -> None:
            told.found.append(findings)
            told.done += done

        cases = await self._examine()
        await self.doctor.treat(cases, hear)
        for case in cases.values():
            told.left += case.lasting(0)
        return told

    def mend(self, case: Case) -> list[str]:
        return self.loop.run_until_complete(self.doctor.mend(case))

    def ours(self, kind: kinds.Kind, *arguments: bytes, size: int = 1) -> Any:
        """Do an operation as a server does; its results. Raises a PressureError."""
        return self.loop.run_until_complete(
            self.database.run(kind, QUEUE.encode(), list(arguments), size=size)
        )

    def close(self) -> None:
        self.loop.run_until_complete(self._broker.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.direct.close()


@dataclass
class Keys:
    """The protocol's keys of the queue, read one by one."""

    bound: int | None
    messages: list[bytes]
    closed: int
    not_full: int
    free: dict[str, int]
    holder: dict[str, bytes | None]
    stats: list[int]

    @classmethod
    def read(cls, direct: Client) -> Keys:
        stats = [
            f":stats:{verb}_{unit}" for verb in ("produced", "consumed") for unit in ("messages", "bytes")
        ]
        bound = direct.get(f"{BASE}:bound")
        return cls(
            None if bound is None else int(bound),
            direct.lrange(BASE, 0, -1)[::-1],
            direct.llen(f"{BASE}:closed"),
            direct.llen(f"{BASE}:not_full"),
            {role: direct.llen(f"{BASE}:{role}_free") for role in ("producer", "consumer")},
            {role: direct.get(f"{BASE}:{role}") for role in ("producer", "consumer")},
            [int(direct.get(BASE + name) or 0) for name in stats],
        )

    @property
    def has_room(self) -> bool:
        return self.bound == 0 or (self.bound is not None and len(self.messages) < self.bound)

    @property
    def producer_may_wait(self) -> bool:
        """Whether a live producer could look so: it waits for room."""
        return (
            self.bound is not None
            and not self.free["producer"]
            and self.holder["producer"] is not None
            and not self.closed
            and not self.has_room
            and not self.not_full
        )

    @property
    def consumer_may_wait(self) -> bool:
        """Whether a live consumer could look so: it waits for a message."""
        return (
            self.bound is not None
            and not self.free["consumer"]
            and self.holder["consumer"] is not None
            and not self.closed
            and not self.messages
        )

    def assert_sound(self, *, bytes_too: bool = True) -> None:
        """Tokens and statistics are as the specification has them when nobody is at work."""
        assert self.free == {"producer": 1, "consumer": 1}
        assert self.not_full == (1 if self.has_room else 0)
        produced, produced_bytes, consumed, consumed_bytes = self.stats
        assert produced - consumed == len(self.messages)
        if bytes_too:
            assert produced_bytes - consumed_bytes == sum(map(len, self.messages))


def assert_works(ward: Ward) -> None:
    """Native clients and ours put and get without waiting, and a delete leaves nothing."""
    direct = ward.direct
    native = VersionedSteps(direct, "survivor", "0.15")
    before = Keys.read(direct)
    before.assert_sound()
    expected = list(before.messages)

    def get(from_ours: bool) -> None:
        message = ward.ours(kinds.GET)[0] if from_ours else run(native.get())
        assert message == expected.pop(0)

    if before.closed:
        try:
            run(native.put(b"no"))
        except QueueClosedError:
            pass
        else:
            raise AssertionError("a closed queue was put on")
        while expected:
            get(from_ours=len(expected) % 2 == 0)
    else:
        for from_ours in (False, True):
            if not Keys.read(direct).has_room:
                get(from_ours)
            message = b"from ours" if from_ours else b"from a native client"
            if from_ours:
                assert ward.ours(kinds.ADD, message) == [1]
            else:
                run(native.put(message))
            expected.append(message)
        while expected:
            get(from_ours=len(expected) % 2 == 0)
    Keys.read(direct).assert_sound()
    assert ward.ours(kinds.DELETE) == [1]
    assert direct.keys("*") == []


@dataclass(frozen=True)
class Outcome:
    """What has become of a queue in which a client died; as the table has it."""

    said: str
    done: str
    afterwards: str


def outcome(ward: Ward, death: Death) -> Outcome:
    """Let it happen, repair, and see that the queue works. Raises AssertionError where anything is wrong."""
    direct = ward.direct
    death.happen(direct)
    before = Keys.read(direct)
    told = ward.repair()
    after = Keys.read(direct)
    said = told.in_words
    done = ", ".join(told.done) or "nothing"
    assert [finding.trouble for finding in told.left] in ([], [Trouble.LONE_LIST])
    if told.left:
        said = Trouble.LONE_LIST.value
        with ward.told_the_name():
            done = "nothing; where the queue is named: " + ", ".join(ward.repair().done)
    assert not ward.examine()
    if before.bound is None:
        assert direct.keys("*") == [], "keys were left behind"
        run(VersionedSteps(direct, "survivor", "0.15").create(0))
        assert_works(ward)
        return Outcome(said, done, "the queue is gone, and can be made anew")
    assert (after.messages, after.bound) == (before.messages, before.bound)
    waits = {
        "producer": before.producer_may_wait,
        "consumer": before.consumer_may_wait,
    }
    for role, may_wait in waits.items():
        assert after.free[role] == (0 if may_wait else 1), f"{role}: {after}"
        assert after.holder[role] == before.holder[role]
    if not any(waits.values()):
        assert_works(ward)
        return Outcome(said, done, "works")
    other = VersionedSteps(direct, "other", "0.15")
    # What it may wait for comes: had it lived, it would go on.
    if waits["producer"]:
        assert run(other.get()) == before.messages[0]
    else:
        run(other.put(b"for the waiting"))
    why, then = (
        ("a producer may wait for room", "get")
        if waits["producer"]
        else ("a consumer may wait for a message", "put")
    )
    later = ward.repair()
    assert not later.left
    assert_works(ward)
    return Outcome(said, done, f"role kept, for {why}; after a {then} {later.in_words}: mended, works")


def table(backend: Valkey) -> str:
    """The table, in Markdown: steps and states of equal outcome together."""
    ward = Ward(backend)
    # By operation, step and outcome: the states, and for each the versions of the client.
    found: dict[tuple[str, str, Outcome], dict[str, list[str]]] = {}
    try:
        for death in list(deaths(ward.direct)):
            try:
                what = outcome(ward, death)
            except Exception as error:
                error.add_note(f"when a client had died in: {death}")
                raise
            states = found.setdefault((death.operation, death.after, what), {})
            states.setdefault(death.state.name, []).append(death.version)
    finally:
        ward.close()
    rows: dict[tuple[str, str, Outcome], list[str]] = {}
    for (operation, after, what), states in found.items():
        rows.setdefault((operation, _in_words(states, operation), what), []).append(after)
    lines = []
    for operation in OPERATIONS:
        lines += [
            f"\n### {operation.capitalize()}\n",
            "| it died after | the queue was | `doctor` says | `--repair` | afterwards |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {', '.join(after)} | {states} | {what.said} | {what.done} | {what.afterwards} |"
            for (row_operation, states, what), after in rows.items()
            if row_operation == operation
        ]
    return "\n".join(lines) + "\n"


def _in_words(states: dict[str, list[str]], operation: str) -> str:
    possible = len(VERSIONS) if operation in IN_BOTH_VERSIONS else 1
    if len(states) == len(STATES) and all(len(versions) == possible for versions in states.values()):
        return "any"
    return "; ".join(
        name if len(versions) == possible else f"{name} ({versions[0]})" for name, versions in states.items()
    )


def main(document: Path) -> None:
    """Put the table into the document."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Valkey(Path(folder))
        try:
            made = table(backend)
        finally:
            backend.stop()
    text = document.read_text(encoding="utf-8")
    document.write_text(text[: text.index(MARKER) + len(MARKER)] + made, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
