"""Logs, groups, rings and outcomes against the reference, over two servers, with native producers in between.

The reference (tests/support/reference) predicts every reply, and after every step the messages of the log and
what is said of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.model_settings import model_settings
from tests.model.replies import code_or_reply, predicted
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.programs import Client, Server, StartServer, Valkey
from tests.support.reference.jobs import BURIED, RESERVED, Job
from tests.support.reference.log import Group, Log
from tests.support.reference.queue import ERROR, OVERWRITE
from tests.support.waiters import Waiter

SETTINGS = settings(model_settings("PRESSURE_MODEL_EXAMPLES", 150), stateful_step_count=60)
MESSAGES = [b"a", b"b", b"c", b"d", b"", b"e e"]
GROUPS = ["g", "i+j"]
CONSUMERS = ["ann", "bob"]
IDS = ["t1", "t2", "t3"]

messages = st.sampled_from(MESSAGES)
# Half of the logs are rings: only there a group can miss messages.
limits = st.sampled_from([(0, ERROR), (3, ERROR), (3, OVERWRITE), (5, OVERWRITE)])
several = st.lists(messages, min_size=1, max_size=4)
groups = st.sampled_from(GROUPS)
consumers = st.sampled_from(CONSUMERS)
servers = st.integers(0, 1)
choices = st.integers(0, 5)


class LogMachine(RuleBasedStateMachine):
    """Commands of clients of two servers, and steps of a native producer."""

    clients: tuple[Waiter, Waiter]
    direct: Client
    names = count()

    @initialize(limits=limits, with_group=st.booleans())
    def create(self, limits: tuple[int, str], with_group: bool) -> None:
        bound, overflow = limits
        self.name = f"log{next(self.names)}"
        self.log = Log(bound, overflow=overflow)
        self.native: Steps[None] | None = None
        self.native_message = b""
        words = ("PRESSURE.CREATE", self.name, "TYPE", "LOG", "BOUND", bound, "OVERFLOW", overflow.upper())
        assert self(0, *words) == b"OK"
        if with_group:
            self.create_group(0, GROUPS[0], "head")

    def pick(self, which: int) -> str:
        """Return the name of a group: of one that exists, if there is any."""
        names = sorted(self.log.groups) or GROUPS
        return names[which % len(names)]

    def reserving(self, which: int) -> tuple[str, Group, list[Job]]:
        """Pick a group. Return its queue's name, the group, and its reserved jobs, if there is one."""
        name = self.pick(which)
        group = self.log.groups.get(name)
        if group is None:
            return "", Group(home=self.log.home, log=self.log, next=0, passed=0), []
        return self.group_queue(name), group, group.in_state(RESERVED)

    def __call__(self, server: int, *words: str | bytes | int) -> Any:
        return self.clients[server](*words)

    def check(self, reply: Any, operation: Callable[[], Any]) -> None:
        """Compare a reply with the result of an operation; it is OK if there is none."""
        expected = predicted(operation)
        assert code_or_reply(reply) == (b"OK" if expected is None else expected)

    def group_queue(self, name: str) -> str:
        return f"{self.name}+{name}"

    # Producers

    @precondition(lambda self: self.native is None)
    @rule(server=servers, message=messages)
    def put(self, server: int, message: bytes) -> None:
        reply = self(server, "PRESSURE.PUT", self.name, message, "OFFSET")
        self.check(reply, lambda: self.log.put_at_offset(message))

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several)
    def push(self, server: int, some: list[bytes]) -> None:
        self.check(self(server, "RPUSH", self.name, *some), lambda: self.log.put(some))

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several)
    def add(self, server: int, some: list[bytes]) -> None:
        self.check(self(server, "SADD", self.name, *some), lambda: self.log.put(some, unique=True))

    @precondition(lambda self: self.native is None)
    @rule(server=servers, message=messages, transaction=st.sampled_from(IDS))
    def put_once(self, server: int, message: bytes, transaction: str) -> None:
        reply = self(server, "PRESSURE.PUT", self.name, message, "OFFSET", "TXN", transaction)
        self.check(reply, lambda: self.log.put_once([message], transaction, unique=False))

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several, transaction=st.sampled_from(IDS))
    def add_once(self, server: int, some: list[bytes], transaction: str) -> None:
        assert self(server, "PRESSURE.TXN", transaction) == b"OK"
        reply = self(server, "SADD", self.name, *some)
        self.check(reply, lambda: self.log.put_once(some, transaction, unique=True))

    @rule(server=servers, transaction=st.sampled_from([*IDS, "never"]))
    def ask(self, server: int, transaction: str) -> None:
        known = self.log.outcomes.get(transaction)
        expected = [b"unknown", None] if known is None else [b"done", known[2]]
        assert self(server, "PRESSURE.OUTCOME", self.name, transaction) == expected

    @precondition(lambda self: self.native is None)
    @rule(message=messages, steps=st.integers(3, 12))
    def begin_native_put(self, message: bytes, steps: int) -> None:
        self.native = NativeSteps(self.direct, self.name, "native").put_non_blocking(message)
        self.native_message = message
        self._step_native(steps)

    @precondition(lambda self: self.native is not None)
    @rule(steps=st.integers(3, 12))
    def go_on_natively(self, steps: int) -> None:
        self._step_native(steps)

    def _step_native(self, steps: int) -> None:
        base = f"__pressure__:{self.name}"
        for _ in range(steps):
            if self.native is None:
                return
            before = self.direct.llen(base)
            try:
                next(self.native)
            except (StopIteration, NativeError):
                self.native = None
            if self.direct.llen(base) > before:
                self.log.put_natively(self.native_message)

    # Consumers of the log itself

    @rule(server=servers, wanted=st.integers(1, 3))
    def pop(self, server: int, wanted: int) -> None:
        self.check(self(server, "SPOP", self.name, wanted), lambda: self.log.take(wanted))

    @rule(server=servers, offset=st.integers(0, 12), size=st.integers(1, 6))
    def at(self, server: int, offset: int, size: int) -> None:
        reply = self(server, "PRESSURE.AT", self.name, offset, "COUNT", size)
        self.check(reply, lambda: self.log.from_offset(offset, size))

    # Groups

    @rule(server=servers, name=groups, start=st.sampled_from(["head", "tail", "0", "3", "99"]))
    def create_group(self, server: int, name: str, start: str) -> None:
        reply = self(server, "PRESSURE.GROUP", "CREATE", self.name, name, "FROM", start)
        self.check(reply, lambda: self.log.create_group(name, start))

    @rule(server=servers, which=choices, start=st.sampled_from(["head", "tail", "2", "5"]))
    def seek(self, server: int, which: int, start: str) -> None:
        name = self.pick(which)
        reply = self(server, "PRESSURE.GROUP", "SEEK", self.name, name, "FROM", start)
        self.check(reply, lambda: self.log.seek(name, start))

    @rule(server=servers, name=groups, chance=st.integers(0, 4))
    def delete_group(self, server: int, name: str, chance: int) -> None:
        if not (chance and name in self.log.groups):
            reply = self(server, "PRESSURE.GROUP", "DELETE", self.name, name)
            self.check(reply, lambda: self.log.delete_group(name))

    @rule(server=servers, which=choices, consumer=consumers, wanted=st.integers(1, 8))
    def read(self, server: int, which: int, consumer: str, wanted: int) -> None:
        name = self.pick(which)
        reply = self(server, "PRESSURE.READ", self.name, "GROUP", name, consumer, "COUNT", wanted)

        def read() -> Any:
            group = self.log.group(name)
            taken = group.next_jobs(wanted)
            for job, (number, _, _, _) in zip(taken, reply or [], strict=False):
                assert job.id in (0, number)
                group.give(job, number, consumer)
            return [[job.id, job.message, job.counts["reserves"], job.offset] for job in taken]

        self.check(reply or [], read)

    @rule(server=servers, which=choices, wanted=st.integers(1, 3))
    def pop_from_group(self, server: int, which: int, wanted: int) -> None:
        name = self.pick(which)
        reply = self(server, "SPOP", self.group_queue(name), wanted)
        group = self.log.groups.get(name)
        self.check(reply, lambda: group.take(wanted) if group else [])

    @rule(
        server=servers,
        which=choices,
        number=choices,
        is_owner=st.sampled_from([True, True, True, False]),
        event=st.sampled_from(["ACK", "ACK", "RELEASE", "BURY"]),
    )
    def end(self, server: int, which: int, number: int, is_owner: bool, event: str) -> None:
        queue, group, reserved = self.reserving(which)
        if not reserved:
            return
        job = reserved[number % len(reserved)]
        consumer = job.owner if is_owner else next(one for one in CONSUMERS if one != job.owner)
        reply = self(server, f"PRESSURE.{event}", queue, job.id, "TOKEN", consumer)
        events: dict[str, Callable[[], int]] = {
            "ACK": lambda: group.acknowledge([job.id], consumer),
            "RELEASE": lambda: group.release(job.id, consumer),
            "BURY": lambda: group.bury(job.id, consumer),
        }
        self.check(reply, events[event])

    @rule(
        server=servers,
        which=choices,
        numbers=st.tuples(choices, choices),
        consumer=consumers,
        event=st.sampled_from(["ACK", "TOUCH"]),
        names_each=st.booleans(),
    )
    def end_several(
        self,
        server: int,
        which: int,
        numbers: tuple[int, int],
        consumer: str,
        event: str,
        *,
        names_each: bool,
    ) -> None:
        queue, group, reserved = self.reserving(which)
        if not reserved:
            return
        ids = sorted(reserved[number % len(reserved)].id for number in numbers)
        named = range(ids[0], ids[1] + 1)
        words: list[str | int] = [*named] if names_each else ["FROM", ids[0], "TO", ids[1]]
        reply = self(server, f"PRESSURE.{event}", queue, *words, "TOKEN", consumer)
        happen = group.touch if event == "TOUCH" else group.acknowledge
        self.check(reply, lambda: happen(named, consumer))

    @rule(server=servers, which=choices, number=choices)
    def claim(self, server: int, which: int, number: int) -> None:
        queue, group, reserved = self.reserving(which)
        others = CONSUMERS
        if reserved:
            owner = reserved[number % len(reserved)].owner
            others = [one for one in CONSUMERS if one != owner]
        consumer = others[0]
        if queue and not any(job.is_in_range and job.offset < self.log.head for job in reserved):
            reply = self(server, "PRESSURE.CLAIM", queue, consumer, "COUNT", 1000)
            claimed = group.claim(consumer)
            expected = [[job.id, job.message, job.counts["reserves"], job.offset] for job in claimed]
            assert sorted(reply or []) == expected

    @rule(server=servers, which=choices, wanted=st.integers(1, 2))
    def kick(self, server: int, which: int, wanted: int) -> None:
        queue, group, _ = self.reserving(which)
        if queue:
            self.check(self(server, "PRESSURE.KICK", queue, wanted), lambda: group.kick(wanted))

    @rule(server=servers, which=choices, chance=st.integers(0, 3))
    def purge(self, server: int, which: int, chance: int) -> None:
        if not chance:
            name = self.pick(which)
            reply = self(server, "PRESSURE.PURGE", self.group_queue(name))
            group = self.log.groups.get(name)
            assert code_or_reply(reply) == (group.purge() if group else "NOQUEUE")

    # Invariants

    @invariant()
    def the_log_has_its_messages_and_its_groups_what_is_said_of_them(self) -> None:
        found = self(0, "PRESSURE.GROUP", "LIST", self.name)
        self.log.begin()
        assert self(1, "LLEN", self.name) == self.log.length
        assert self(0, "LRANGE", self.name, 0, -1) == self.log.messages
        described = {}
        for one in found:
            fields = dict(zip(one[::2], one[1::2], strict=True))
            name, *figures = fields.values()
            described[name.decode()] = tuple(figures)
        expected = {
            name: (
                group.passed,
                group.lag,
                *(len(group.in_state(one)) for one in (RESERVED, BURIED)),
                group.missed,
            )
            for name, group in self.log.groups.items()
        }
        assert described == expected

    @invariant()
    def what_is_pending_is_what_consumers_have(self) -> None:
        for name, group in self.log.groups.items():
            found = []
            for entry in self(0, "PRESSURE.PENDING", self.group_queue(name)):
                first, last, offset, consumer, left, deliveries = entry
                assert 0 < left <= 60_000
                found += [
                    (first + at, offset + at, consumer.decode(), deliveries) for at in range(last - first + 1)
                ]
            reserved = group.in_state(RESERVED)
            expected = [(job.id, job.offset, job.owner, job.counts["reserves"]) for job in reserved]
            assert sorted(found) == expected

    def teardown(self) -> None:
        if hasattr(self, "name"):
            while self.native is not None:
                self._step_native(1)
            assert self(0, "DEL", self.name) == 1
            assert self.direct.keys(f"__pressure__:{self.name}*") == []


@pytest.fixture
def pair_of_servers(
    backend: Valkey, server: Server, start_server: StartServer
) -> Iterator[tuple[Waiter, Waiter]]:
    with Waiter(server.port) as first, Waiter(start_server("--backend", backend.url).port) as second:
        yield first, second


def test_logs_and_groups_behave_as_the_model_says(
    pair_of_servers: tuple[Waiter, Waiter], direct: Client
) -> None:
    class Machine(LogMachine):
        clients = pair_of_servers

    Machine.direct = direct
    run_state_machine_as_test(Machine, settings=SETTINGS)
