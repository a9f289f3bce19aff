"""The ledger of a log: the offsets of its messages, and a ledger for each group that reads it."""

import random
from collections.abc import Iterable, Sequence

from tests.chaos.ledger import NamedLedger
from tests.chaos.messages import name_of
from tests.support.ledger import Event

# How far before the newest known offset `some_offset` goes.
_RECENT = 300


class LogLedger:
    """The messages of one log. Each group must receive each of them, and each has one offset.

    `groups` are the names of the groups. Messages in their ledgers have the queues `log+group`.
    """

    def __init__(self, name: str, groups: Sequence[str]) -> None:
        self.name = name
        self.groups = {group: NamedLedger() for group in groups}
        # Messages with two offsets, offsets with two messages, and offsets that a put returned and are gone.
        self.wrong_offsets: list[str] = []
        # Deliveries of a message to a group with a number that another delivery had.
        self.repeated_deliveries: list[str] = []
        # First deliveries that a group's only consumer got after those of later messages.
        self.disordered: list[str] = []
        # How many deliveries of READ were first ones, and later ones.
        self.first_deliveries = self.later_deliveries = 0
        self._acknowledged: set[bytes] = set()
        self._offsets: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._newest = -1
        self._deliveries: dict[tuple[str, bytes, int], str] = {}
        self._last_first: dict[str, int] = {}

    def queue_of(self, group: str) -> str:
        """Return the name of a group's queue."""
        return f"{self.name}+{group}"

    @property
    def acknowledged(self) -> int:
        """The number of messages acknowledged, each counted once."""
        return len(self._acknowledged)

    def send(self, names: Iterable[bytes], event: Event) -> None:
        """Note messages that are about to be put."""
        names = list(names)
        for group, ledger in self.groups.items():
            ledger.send(names, event._replace(queue=self.queue_of(group)))

    def acknowledge(self, names: Iterable[bytes]) -> None:
        """Note messages whose put was replied to."""
        names = list(names)
        self._acknowledged.update(names)
        for ledger in self.groups.values():
            ledger.acknowledge(names)

    def locate(self, name: bytes, offset: int, by: str) -> None:
        """Note the offset of a message, as a reply to `by` has it."""
        first = self._offsets.setdefault(name, offset)
        if first != offset:
            self.wrong_offsets.append(f"{name.decode()} has the offsets {first} and {offset} ({by})")
        other = self._names.setdefault(offset, name)
        if other != name:
            self.wrong_offsets.append(
                f"{offset} is the offset of {other.decode()} and of {name.decode()} ({by})"
            )
        self._newest = max(self._newest, offset)

    def locate_all(self, names: Sequence[bytes], first: int, by: str) -> None:
        """Note the offsets of the messages of one put, which has returned the first."""
        for offset, name in enumerate(names, first):
            self.locate(name, offset, by)

    def find(self, data: bytes, offset: int, by: str) -> None:
        """Note a message that was read by its offset. It stays in the log."""
        try:
            self.locate(name_of(data), offset, by)
        except ValueError:
            self.wrong_offsets.append(f"{offset} has {data[:60]!r}, which nobody sent ({by})")

    def miss(self, offset: int, by: str) -> None:
        """Note that the log says of a known offset that it is yet to come."""
        name = self._names[offset].decode()
        self.wrong_offsets.append(f"{offset} of {name} is yet to come ({by})")

    def some_offset(self, chance: random.Random) -> int | None:
        """Return a known offset, near the newest; None if there is none."""
        offset = chance.randint(max(0, self._newest - _RECENT), max(0, self._newest))
        return offset if offset in self._names else None

    def deliver(
        self, group: str, name: bytes, offset: int, number: int, by: str, *, is_alone: bool = False
    ) -> None:
        """Note a delivery by READ: the `number`th of this message to the group.

        If the consumer `is_alone` in its group, first deliveries must be in the order of offsets.
        """
        self.locate(name, offset, by)
        delivery = f"delivery {number} of {name.decode()} (offset {offset})"
        other = self._deliveries.setdefault((group, name, number), by)
        if other is not by:
            self.repeated_deliveries.append(f"{self.queue_of(group)}: {delivery} to {other} and to {by}")
        if number > 1:
            self.later_deliveries += 1
            return
        self.first_deliveries += 1
        last = self._last_first.get(group, -1)
        if is_alone and offset < last:
            self.disordered.append(f"{self.queue_of(group)}: {delivery} to {by} after that of offset {last}")
        self._last_first[group] = max(last, offset)
