"""Logs and their groups. A group is a queue of jobs, which it makes of the next messages of its log.

The offset of a message is how many were put before it. What all groups have passed leaves the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from tests.support.reference.jobs import BURIED, READY, RESERVED, Job, JobQueue
from tests.support.reference.queue import Queue, require
from tests.support.reference.queues import Queues


@dataclass(eq=False)
class Log(Queue):
    """A log; one that overwrites is a ring."""

    groups: dict[str, Group] = field(default_factory=dict, repr=False)
    # By transaction id: the kind of put, its result, and the offset of its first message, if it put any.
    outcomes: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)
    home: Queues = field(default_factory=Queues, repr=False)

    def copy(self) -> Self:
        """Return a copy that shares no state but its home. Its groups are copies, too."""
        clone = super().copy()
        clone.outcomes = dict(self.outcomes)
        clone.groups = {name: group.copy() for name, group in self.groups.items()}
        for group in clone.groups.values():
            group.log = clone
        return clone

    @property
    def head(self) -> int:
        """The offset of the oldest message."""
        return self.counters.consumed

    @property
    def tail(self) -> int:
        """The offset of the next message that is put."""
        return self.counters.produced

    def begin(self) -> None:
        """Drop what all groups have passed, as at the beginning of each operation on the log."""
        if self.groups:
            self._pop(max(0, min(group.passed for group in self.groups.values()) - self.head))

    def put_at_offset(self, message: bytes) -> int:
        """Put a message. Return its offset."""
        self.put([message])
        return self.tail - 1

    def put_once(self, messages: Sequence[bytes], transaction: str, *, unique: bool) -> int:
        """Put a message, or unique ones, unless the transaction has done so.

        Return the offset of the message, or how many of the unique ones were new.
        """
        kind = "count" if unique else "offset"
        if transaction in self.outcomes:
            known, result, _ = self.outcomes[transaction]
            require(known == kind, "TXN")
            return result
        first = self.tail
        result = self.put(messages, unique=True) if unique else self.put_at_offset(*messages)
        self.outcomes[transaction] = (kind, result, first if self.tail > first else None)
        return result

    def put_natively(self, message: bytes) -> None:
        """Note what a native client has put."""
        self._accept([message])

    def take(self, count: int = 1) -> list[bytes]:
        require(not self.groups, "TYPE")
        return super().take(count)

    def from_offset(self, offset: int, count: int) -> list[bytes | None]:
        """Return `count` messages from an offset on, or fewer at the end. Dropped ones are None."""
        require(offset < self.tail, "AHEAD")
        offsets = range(offset, min(offset + count, self.tail))
        return [None if one < self.head else self.messages[one - self.head] for one in offsets]

    # Groups

    def group(self, name: str) -> Group:
        """Return a group."""
        require(name in self.groups, "NOGROUP")
        return self.groups[name]

    def create_group(self, name: str, start: str) -> None:
        """Create a group that reads from `start` on: head, tail or an offset."""
        offset = self._offset_of(start)
        require(name not in self.groups, "EXISTS")
        self.groups[name] = Group(home=self.home, log=self, next=offset, passed=offset)

    def seek(self, name: str, start: str) -> None:
        """Let a group go on from another offset. Its jobs that nobody has reserved are dropped."""
        offset = self._offset_of(start)
        self.group(name).go_on(offset, drops=(READY,))

    def delete_group(self, name: str) -> None:
        """Delete a group with its jobs."""
        self.group(name)
        del self.groups[name]

    def _offset_of(self, start: str) -> int:
        offset = {"head": self.head, "tail": self.tail}.get(start)
        offset = int(start) if offset is None else offset
        require(offset <= self.tail, "AHEAD")
        require(offset >= self.head, "GONE")
        return offset


@dataclass(eq=False, kw_only=True)
class Group(JobQueue):
    """A group. `next` is the offset of the message of which it makes a job next."""

    log: Log = field(repr=False)
    next: int
    passed: int  # the offset of the first message that it needs, as the log knows it
    has_jobs: bool = True
    missed_before: int = 0  # how many messages had left the log before the group came to them

    @property
    def ahead(self) -> int:
        """How many messages of the log are not jobs yet."""
        return self.log.tail - max(self.next, self.log.head)

    @property
    def is_takeable(self) -> bool:
        """Whether a message may be taken."""
        return bool(self.takeable or self.ahead)

    @property
    def is_finished(self) -> bool:
        """Whether no message will come."""
        may_come = any(job.state != BURIED for job in self.jobs.values())
        return self.log.is_closed and not self.ahead and not may_come

    @property
    def lag(self) -> int:
        """How many messages the group has not taken yet."""
        return self.ahead + len(self.in_state(READY))

    @property
    def missed(self) -> int:
        """How many messages it has not seen."""
        return self.missed_before + max(0, self.log.head - self.next)

    def next_jobs(self, count: int) -> list[Job]:
        """Take jobs: those that came back first, then the next messages of the log, which have no id yet."""
        taken = self.in_state(READY)[:count]
        for job in taken:
            del self.jobs[job.id]
        while len(taken) < count and self.ahead:
            self.missed_before, self.next = self.missed, max(self.next, self.log.head)
            message = self.log.messages[self.next - self.log.head]
            taken.append(Job(0, message, offset=self.next, is_in_range=True))
            self.next += 1
        return taken

    def give(self, job: Job, number: int, owner: str) -> None:
        """Reserve a job that was taken, under this id."""
        job.id = number
        self.jobs[number] = job
        self.hold(job, owner)

    def take(self, count: int = 1) -> list[bytes]:
        taken = self.next_jobs(count)
        if taken:
            self._note_passed()
        return [job.message for job in taken]

    def acknowledge(self, numbers: Iterable[int], owner: str) -> int:
        before = len(self._unpassed())
        count = super().acknowledge(numbers, owner)
        if len(self._unpassed()) < before:
            self._note_passed()
        return count

    def release(self, number: int, owner: str, priority: int | None = None, delay: float = 0) -> int:
        return 0 if self._is_lost(number, owner) else super().release(number, owner, priority, delay)

    def bury(self, number: int, owner: str, priority: int | None = None) -> int:
        if self._is_lost(number, owner) or not super().bury(number, owner, priority):
            return 0
        job = self.jobs[number]
        if not job.is_passed:
            job.is_passed = True
            self._note_passed()
        return 1

    def claim(self, owner: str) -> list[Job]:
        """Take over the reservations of others."""
        some = [job for job in self.in_state(RESERVED) if job.owner != owner]
        for job in some:
            self.hold(job, owner)
        return some

    def purge(self) -> int:
        """Drop what nobody has reserved. Return how many messages."""
        count = self.lag + len(self.in_state(BURIED))
        self.go_on(self.log.tail, drops=(READY, BURIED))
        return count

    def go_on(self, offset: int, drops: tuple[str, ...]) -> None:
        """Drop the jobs in these states, and go on from an offset."""
        self.jobs = {number: job for number, job in self.jobs.items() if job.state not in drops}
        self.next = offset
        self._note_passed()

    def _is_lost(self, number: int, owner: str) -> bool:
        """Make a job of its own of a message in a range. Return whether the log has dropped the message."""
        job = self.owned(number, owner)
        if not job:
            return False
        if not job.is_in_range or job.offset >= self.log.head:
            job.is_in_range = False
            return False
        del self.jobs[number]
        self.missed_before += 1
        self._note_passed()
        return True

    def _unpassed(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state != BURIED and not job.is_passed]

    def _note_passed(self) -> None:
        self.passed = min([self.next, *(job.offset for job in self._unpassed())])
