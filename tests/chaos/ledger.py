"""The ledger: every message that was sent, acknowledged, and received; what was lost, doubled, or is strange.

It is told; it knows no clock and no connection. Times are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.chaos.messages import flags_of, name_of


class Put(NamedTuple):
    """When a message was sent, to which queue, by whom, and through which proxy."""

    when: float
    queue: str
    by: str
    proxy: str


class Receipt(NamedTuple):
    """When a message was received, from which queue, by whom, and through which proxy."""

    when: float
    queue: str
    by: str
    proxy: str


class Lost(NamedTuple):
    """A message that was acknowledged, and never received."""

    name: bytes
    put: Put


class Duplicate(NamedTuple):
    """A message that was received more than once."""

    name: bytes
    receipts: list[Receipt]


class Strange(NamedTuple):
    """Something received that nobody has sent, or not with these flags; None where these were not told."""

    data: bytes
    receipt: Receipt
    flags: int | None = None


class Ledger:
    """A message is *unsure* from when it is sent until its put is acknowledged."""

    def __init__(self) -> None:
        self.strange: list[Strange] = []
        self.last_receipt = 0.0
        self._puts: dict[bytes, Put] = {}
        self._acknowledged: set[bytes] = set()
        self._first: dict[bytes, Receipt] = {}
        self._further: dict[bytes, list[Receipt]] = {}

    def sending(self, names: Iterable[bytes], put: Put) -> None:
        """They are about to be sent."""
        for name in names:
            self._puts[name] = put

    def acknowledge(self, names: Iterable[bytes]) -> None:
        """The reply to their put has been read."""
        self._acknowledged.update(names)

    def receive(self, data: bytes, receipt: Receipt, flags: int | None = None) -> None:
        """A reply with it has been read; `flags` where that had any."""
        name = self.see(data, receipt, flags)
        if name in self._first:
            self._further.setdefault(name, []).append(receipt)
        elif name:
            self._first[name] = receipt

    def see(self, data: bytes, receipt: Receipt, flags: int | None = None) -> bytes:
        """It has been read, but stays in the queue, or goes back. Its name; b"" where nobody has sent it."""
        self.last_receipt = receipt.when
        try:
            name = name_of(data)
        except ValueError:
            name = b""
        if name not in self._puts:
            self.strange.append(Strange(data, receipt, flags))
            return b""
        if flags is not None and flags != flags_of(name):
            self.strange.append(Strange(data, receipt, flags))
        return name

    @property
    def acknowledged(self) -> int:
        """How many messages were."""
        return len(self._acknowledged)

    @property
    def received(self) -> int:
        """How many messages were, each counted once."""
        return len(self._first)

    @property
    def unsure(self) -> int:
        """How many messages were sent and not acknowledged."""
        return len(self._puts) - len(self._acknowledged)

    @property
    def unsure_received(self) -> int:
        """How many of those were received."""
        return sum(name not in self._acknowledged for name in self._first)

    def lost(self) -> list[Lost]:
        """What was acknowledged and has not been received yet, in the order in which it was sent."""
        missing = self._acknowledged - self._first.keys()
        return [Lost(name, put) for name, put in self._puts.items() if name in missing]

    def duplicates(self) -> list[Duplicate]:
        """What was received more than once, in the order of the second receipt."""
        return [Duplicate(name, [self._first[name], *others]) for name, others in self._further.items()]
