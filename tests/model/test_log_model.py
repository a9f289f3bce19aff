"""Logs, groups, rings and outcomes against a plain model, over two servers, with native producers in between.

The model predicts every reply, and after every step the messages of the log and what is said of each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hiredis
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
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.programs import Client, Server, StartServer, Valkey
from tests.support.waiters import Waiter

SETTINGS = settings(model_settings("PRESSURE_MODEL_EXAMPLES", 60), stateful_step_count=60)
MESSAGES = [b"a", b"b", b"c", b"d", b"", b"e e"]
GROUPS = ["g", "i+j"]
CONSUMERS = ["ann", "bob"]
IDS = ["t1", "t2", "t3"]

messages = st.sampled_from(MESSAGES)
several = st.lists(messages, min_size=1, max_size=4)
groups = st.sampled_from(GROUPS)
consumers = st.sampled_from(CONSUMERS)
servers = st.integers(0, 1)
choices = st.integers(0, 5)


@dataclass
class Job:
    """A message that a group has taken from its log. If it is in a range, only the log has the message."""

    offset: int
    message: bytes
    id: int = 0
    deliveries: int = 0
    owner: str = ""
    in_range: bool = True
    is_passed: bool = False


@dataclass
class Group:
    """What a group has; `passed` is the offset that it has told the log, and `missed` what it never saw."""

    next: int
    passed: int
    ready: list[Job] = field(default_factory=list)
    reserved: list[Job] = field(default_factory=list)
    buried: list[Job] = field(default_factory=list)
    missed: int = 0

    def note_passed(self) -> None:
        jobs = [job for job in self.ready + self.reserved if not job.is_passed]
        self.passed = min([self.next, *(job.offset for job in jobs)])


@dataclass
class Log:
    """A log: all messages that were ever put, by offset."""

    bound: int
    is_ring: bool
    put: list[bytes] = field(default_factory=list)
    head: int = 0
    dropped: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    outcomes: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        return len(self.put)

    @property
    def length(self) -> int:
        return self.tail - self.head

    def add(self, some: list[bytes]) -> bool:
        """Put messages; return False if they do not fit."""
        excess = self.length + len(some) - self.bound if self.bound else 0
        if excess > 0 and not self.is_ring:
            return False
        self.put += some
        if excess > 0:
            self.head += excess
            self.dropped += excess
        return True

    def take(self, group: Group, wanted: int) -> list[Job]:
        """Take messages of a group: those that came back first, then the next ones of the log."""
        taken, group.ready = group.ready[:wanted], group.ready[wanted:]
        while len(taken) < wanted and max(group.next, self.head) < self.tail:
            offset = max(group.next, self.head)
            group.missed += offset - group.next
            taken.append(Job(offset, self.put[offset]))
            group.next = offset + 1
        return taken

    def drop_passed(self) -> None:
        if self.groups:
            self.head = max(self.head, min(group.passed for group in self.groups.values()))


class LogMachine(RuleBasedStateMachine):
    """Commands of clients of two servers, and steps of a native producer."""

    clients: tuple[Waiter, Waiter]
    direct: Client
    names = count()

    @initialize(bound=st.sampled_from([0, 0, 3, 5]), is_ring=st.booleans(), with_group=st.booleans())
    def create(self, bound: int, is_ring: bool, with_group: bool) -> None:
        self.name = f"log{next(self.names)}"
        self.log = Log(bound, is_ring and bound > 0)
        self.native: Steps[None] | None = None
        self.native_message = b""
        overflow = "OVERWRITE" if self.log.is_ring else "ERROR"
        assert (
            self(0, "PRESSURE.CREATE", self.name, "TYPE", "LOG", "BOUND", bound, "OVERFLOW", overflow)
            == b"OK"
        )

        if with_group:
            self.create_group(0, GROUPS[0], "head")

    def pick(self, which: int) -> str:
        """Return the name of a group: of one that exists, if there is any."""
        names = sorted(self.log.groups) or GROUPS
        return names[which % len(names)]

    def __call__(self, server: int, *words: str | bytes | int) -> Any:
        return self.clients[server](*words)

    def group_queue(self, name: str) -> str:
        return f"{self.name}+{name}"

    # Producers

    def _expect_put(self, reply: Any, value: int, added: bool, *, has_new: bool = True) -> None:
        if added:
            assert reply == value
            if has_new:
                self.log.drop_passed()
        else:
            assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("FULL ")  # noqa: PT018 -- one reply

    @precondition(lambda self: self.native is None)
    @rule(server=servers, message=messages)
    def put(self, server: int, message: bytes) -> None:
        self.log.drop_passed()
        offset, added = self.log.tail, self.log.add([message])
        self._expect_put(self(server, "PRESSURE.PUT", self.name, message, "OFFSET"), offset, added)

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several)
    def push(self, server: int, some: list[bytes]) -> None:
        self.log.drop_passed()
        before, added = self.log.length, self.log.add(some)
        length = before + len(some)
        expected = min(length, self.log.bound) if self.log.bound else length
        self._expect_put(self(server, "RPUSH", self.name, *some), expected, added)

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several)
    def add(self, server: int, some: list[bytes]) -> None:
        self.log.drop_passed()
        new = [one for one in dict.fromkeys(some) if one not in self.log.put[self.log.head :]]
        added = self.log.add(new)
        reply = self(server, "SADD", self.name, *some)
        self._expect_put(reply, len(new), added, has_new=bool(new))

    @precondition(lambda self: self.native is None)
    @rule(server=servers, message=messages, transaction=st.sampled_from(IDS))
    def put_once(self, server: int, message: bytes, transaction: str) -> None:
        self.log.drop_passed()
        known = self.log.outcomes.get(transaction)
        reply = self(server, "PRESSURE.PUT", self.name, message, "OFFSET", "TXN", transaction)
        if known is not None and known[0] == "offset":
            assert reply == known[1]
        elif known is not None:
            assert str(reply).startswith("TXN ")
        else:
            offset, added = self.log.tail, self.log.add([message])
            self._expect_put(reply, offset, added)
            if added:
                self.log.outcomes[transaction] = ("offset", offset, offset)

    @precondition(lambda self: self.native is None)
    @rule(server=servers, some=several, transaction=st.sampled_from(IDS))
    def add_once(self, server: int, some: list[bytes], transaction: str) -> None:
        self.log.drop_passed()
        known = self.log.outcomes.get(transaction)
        assert self(server, "PRESSURE.TXN", transaction) == b"OK"
        reply = self(server, "SADD", self.name, *some)
        if known is not None and known[0] == "count":
            assert reply == known[1]
        elif known is not None:
            assert str(reply).startswith("TXN ")
        else:
            new = [one for one in dict.fromkeys(some) if one not in self.log.put[self.log.head :]]
            first, added = self.log.tail, self.log.add(new)
            self._expect_put(reply, len(new), added, has_new=bool(new))
            if added:
                self.log.outcomes[transaction] = ("count", len(new), first if new else None)

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
                self.log.put.append(self.native_message)

    # Consumers of the log itself

    @rule(server=servers, wanted=st.integers(1, 3))
    def pop(self, server: int, wanted: int) -> None:
        self.log.drop_passed()
        reply = self(server, "SPOP", self.name, wanted)
        if self.log.groups:
            assert str(reply).startswith("TYPE ")
        else:
            assert reply == self.log.put[self.log.head : self.log.head + wanted]
            self.log.head += len(reply)

    @rule(server=servers, offset=st.integers(0, 12), size=st.integers(1, 6))
    def at(self, server: int, offset: int, size: int) -> None:
        self.log.drop_passed()
        reply = self(server, "PRESSURE.AT", self.name, offset, "COUNT", size)
        if offset >= self.log.tail:
            assert str(reply).startswith("AHEAD ")
        else:
            numbers = range(offset, min(offset + size, self.log.tail))
            assert reply == [None if number < self.log.head else self.log.put[number] for number in numbers]

    # Groups

    @rule(server=servers, name=groups, start=st.sampled_from(["head", "tail", "0", "3", "99"]))
    def create_group(self, server: int, name: str, start: str) -> None:
        self.log.drop_passed()
        reply = self(server, "PRESSURE.GROUP", "CREATE", self.name, name, "FROM", start)
        offset = self._checked_start(reply, start)
        if offset is None:
            return
        if name in self.log.groups:
            assert str(reply).startswith("EXISTS ")
            return
        assert reply == b"OK"
        self.log.groups[name] = Group(offset, offset)
        self.log.drop_passed()

    def _checked_start(self, reply: Any, start: str) -> int | None:
        offset = {"head": self.log.head, "tail": self.log.tail}.get(start)
        offset = int(start) if offset is None else offset
        if offset > self.log.tail:
            assert str(reply).startswith("AHEAD ")
        elif offset < self.log.head:
            assert str(reply).startswith("GONE ")
        else:
            return offset
        return None

    @rule(server=servers, which=choices, start=st.sampled_from(["head", "tail", "2", "5"]))
    def seek(self, server: int, which: int, start: str) -> None:
        name = self.pick(which)
        self.log.drop_passed()
        reply = self(server, "PRESSURE.GROUP", "SEEK", self.name, name, "FROM", start)
        offset = self._checked_start(reply, start)
        if offset is None:
            return
        if name not in self.log.groups:
            assert str(reply).startswith("NOGROUP ")
            return
        assert reply == b"OK"
        group = self.log.groups[name]
        group.next, group.ready = offset, []
        group.note_passed()
        self.log.drop_passed()

    @rule(server=servers, name=groups, chance=st.integers(0, 4))
    def delete_group(self, server: int, name: str, chance: int) -> None:
        if chance and name in self.log.groups:
            return
        self.log.drop_passed()
        reply = self(server, "PRESSURE.GROUP", "DELETE", self.name, name)
        if name not in self.log.groups:
            assert str(reply).startswith("NOGROUP ")
            return
        assert reply == b"OK"
        del self.log.groups[name]
        self.log.drop_passed()

    @rule(server=servers, which=choices, consumer=consumers, wanted=st.integers(1, 8))
    def read(self, server: int, which: int, consumer: str, wanted: int) -> None:
        name = self.pick(which)
        reply = self(server, "PRESSURE.READ", self.name, "GROUP", name, consumer, "COUNT", wanted)
        if name not in self.log.groups:
            assert str(reply).startswith("NOGROUP ")
            return
        group = self.log.groups[name]
        taken = self.log.take(group, wanted)
        for job, (number, _, _, _) in zip(taken, reply or [], strict=False):
            assert job.id in (0, number)
            job.id, job.owner = number, consumer
            job.deliveries += 1
        assert (reply or []) == [[job.id, job.message, job.deliveries, job.offset] for job in taken]
        group.reserved += taken
        self.log.drop_passed()

    @rule(server=servers, which=choices, wanted=st.integers(1, 3))
    def pop_from_group(self, server: int, which: int, wanted: int) -> None:
        name = self.pick(which)
        reply = self(server, "SPOP", self.group_queue(name), wanted)
        if name not in self.log.groups:
            assert reply == []
            return
        group = self.log.groups[name]
        assert reply == [job.message for job in self.log.take(group, wanted)]
        if reply:
            group.note_passed()
        self.log.drop_passed()

    @rule(
        server=servers,
        which=choices,
        number=choices,
        is_owner=st.sampled_from([True, True, True, False]),
        event=st.sampled_from(["ACK", "ACK", "RELEASE", "BURY"]),
    )
    def end(self, server: int, which: int, number: int, is_owner: bool, event: str) -> None:
        name = self.pick(which)
        group = self.log.groups.get(name)
        if group is None or not group.reserved:
            return
        job = group.reserved[number % len(group.reserved)]
        consumer = job.owner if is_owner else next(one for one in CONSUMERS if one != job.owner)
        reply = self(server, f"PRESSURE.{event}", self.group_queue(name), job.id, "TOKEN", consumer)
        is_gone = event != "ACK" and job.in_range and job.offset < self.log.head
        assert reply == int(consumer == job.owner and not is_gone)
        if consumer != job.owner:
            return
        group.reserved.remove(job)
        job.in_range = False
        if is_gone:
            group.missed += 1
        elif event == "RELEASE":
            group.ready = sorted([*group.ready, job], key=lambda one: one.id)
        elif event == "BURY":
            group.buried.append(job)
        if not job.is_passed and (is_gone or event != "RELEASE"):
            group.note_passed()
        job.is_passed = job.is_passed or event == "BURY"
        self.log.drop_passed()

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
        name = self.pick(which)
        group = self.log.groups.get(name)
        if group is None or not group.reserved:
            return
        ids = sorted(group.reserved[number % len(group.reserved)].id for number in numbers)
        named = range(ids[0], ids[1] + 1)
        words: list[str | int] = [*named] if names_each else ["FROM", ids[0], "TO", ids[1]]
        reply = self(server, f"PRESSURE.{event}", self.group_queue(name), *words, "TOKEN", consumer)
        concerned = [job for job in group.reserved if job.id in named and job.owner == consumer]
        if event == "TOUCH":
            assert reply == len(concerned)
            return
        others = [job for job in group.ready + group.buried if job.id in named]
        assert reply == len(concerned + others)
        group.reserved = [job for job in group.reserved if job not in concerned]
        group.ready = [job for job in group.ready if job.id not in named]
        group.buried = [job for job in group.buried if job.id not in named]
        if not all(job.is_passed for job in concerned + others):
            group.note_passed()
        self.log.drop_passed()

    @rule(server=servers, which=choices, consumer=consumers)
    def claim(self, server: int, which: int, consumer: str) -> None:
        name = self.pick(which)
        group = self.log.groups.get(name)
        if group is None or any(job.in_range and job.offset < self.log.head for job in group.reserved):
            return
        reply = self(server, "PRESSURE.CLAIM", self.group_queue(name), consumer, "COUNT", 1000)
        claimed = [job for job in group.reserved if job.owner != consumer]
        for job in claimed:
            job.owner = consumer
            job.deliveries += 1
        expected = sorted([job.id, job.message, job.deliveries, job.offset] for job in claimed)
        assert sorted(reply or []) == expected
        self.log.drop_passed()

    @rule(server=servers, which=choices, wanted=st.integers(1, 2))
    def kick(self, server: int, which: int, wanted: int) -> None:
        name = self.pick(which)
        if name not in self.log.groups:
            return
        group = self.log.groups[name]
        assert self(server, "PRESSURE.KICK", self.group_queue(name), wanted) == len(group.buried[:wanted])
        group.ready = sorted(group.ready + group.buried[:wanted], key=lambda one: one.id)
        group.buried = group.buried[wanted:]
        self.log.drop_passed()

    @rule(server=servers, which=choices, chance=st.integers(0, 3))
    def purge(self, server: int, which: int, chance: int) -> None:
        if chance:
            return
        name = self.pick(which)
        reply = self(server, "PRESSURE.PURGE", self.group_queue(name))
        if name not in self.log.groups:
            assert str(reply).startswith("NOQUEUE ")
            return
        group = self.log.groups[name]
        ahead = self.log.tail - max(group.next, self.log.head)
        assert reply == len(group.ready) + len(group.buried) + max(0, ahead)
        if ahead > 0 or group.next < self.log.head:
            group.next = max(group.next, self.log.head) + max(0, ahead)
        group.ready, group.buried = [], []
        group.note_passed()
        self.log.drop_passed()

    # Invariants

    @invariant()
    def the_log_has_its_messages_and_its_groups_what_is_said_of_them(self) -> None:
        found = self(0, "PRESSURE.GROUP", "LIST", self.name)
        self.log.drop_passed()
        assert self(1, "LLEN", self.name) == self.log.length
        assert self(0, "LRANGE", self.name, 0, -1) == self.log.put[self.log.head :]
        described = {}
        for one in found:
            fields = dict(zip(one[::2], one[1::2], strict=True))
            name, *figures = fields.values()
            described[name.decode()] = tuple(figures)
        expected = {}
        for name, group in self.log.groups.items():
            ahead = self.log.tail - max(group.next, self.log.head)
            missed = group.missed + max(0, self.log.head - group.next)
            lag = ahead + len(group.ready)
            expected[name] = (group.passed, lag, len(group.reserved), len(group.buried), missed)
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
            expected = [(job.id, job.offset, job.owner, job.deliveries) for job in group.reserved]
            assert sorted(found) == sorted(expected)

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
