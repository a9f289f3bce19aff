"""A case: a queue with problems, as several examinations have found them. Pure.

lua/upkeep/doctor.lua has the table of problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pressure_server.text import printable

# Seconds by which the event loop may wake up a task too early.
_CLOCK = 0.001


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a queue. `sign` changes if a live client acts; the others are words."""

    name: str
    sign: bytes
    evidence: str
    means: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment. `bound` is None if the queue does not exist."""

    bound: int | None
    length: int
    findings: dict[str, Finding]

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Snapshot:
        """Make a snapshot from a reply of `examine` in doctor.lua."""
        bound, length, *problems = reply
        findings = (
            Finding(name.decode(), sign, printable(evidence, len(evidence)), means.decode(), remedy.decode())
            for name, sign, evidence, means, remedy in problems
        )
        return cls(bound, length, {finding.name: finding for finding in findings})


@dataclass
class Case:
    """A queue with problems, for as long as it has any.

    `since` has the problems on which the last two examinations agree, and when each was seen first.
    `examined_at` is the time of the last examination. Times are in seconds, by the event loop's clock.
    """

    name: bytes
    snapshot: Snapshot
    examined_at: float
    since: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.since = dict.fromkeys(self.snapshot.findings, self.examined_at)

    def update(self, snapshot: Snapshot, now: float) -> None:
        """Note a new examination of the queue."""
        before = self.snapshot.findings
        self.since = {
            name: self.since.get(name, self.examined_at)
            for name, finding in snapshot.findings.items()
            if name in before and before[name].sign == finding.sign
        }
        self.snapshot, self.examined_at = snapshot, now

    def lasting(self, seconds: float) -> list[Finding]:
        """Return the problems that have lasted for that time."""
        return [
            self.snapshot.findings[name]
            for name, since in self.since.items()
            if self.examined_at - since >= seconds - _CLOCK
        ]
