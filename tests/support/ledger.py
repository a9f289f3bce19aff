"""A ledger of the messages that were sent, acknowledged and received. It finds those lost or doubled.

Each message is sent once.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# The most messages of a kind that an AssertionError lists.
_EXAMPLES = 10


class Event(NamedTuple):
    """The sending or the receipt of a message: the client, the queue, the proxy, the time in seconds."""

    by: str = ""
    queue: str = ""
    proxy: str = ""
    when: float = 0.0


class Lost(NamedTuple):
    """A message that was acknowledged, at this time in seconds, and never received."""

    message: bytes
    sent: Event
    acknowledged: float


class Doubled(NamedTuple):
    """A message that was received more than once."""

    message: bytes
    receipts: list[Event]


class Strange(NamedTuple):
    """A message that nobody sent, or not with these flags. None stands for unknown flags."""

    data: bytes
    receipt: Event
    flags: int | None = None


class Disordered(NamedTuple):
    """A message that a client received after a later one of the same sender and queue."""

    message: bytes
    receipt: Event


class Ledger:
    """The messages of one test.

    A message is *unsure* until its put is acknowledged: it may be received, or not. It is *doubtful* if a
    client read it and does not know whether the server has received the acknowledgement.
    """

    def __init__(self) -> None:
        self.strange: list[Strange] = []
        self.disordered: list[Disordered] = []
        # With the positions in which they were sent.
        self._sent: dict[bytes, tuple[int, Event]] = {}
        # With the times.
        self._acknowledged: dict[bytes, float] = {}
        self._doubtful: set[bytes] = set()
        self._first: dict[bytes, Event] = {}
        self._further: dict[bytes, list[Event]] = {}
        # By receiver, sender and queue: the position of the message received last.
        self._last: dict[tuple[str, str, str], int] = {}

    def send(self, messages: Iterable[bytes], event: Event | None = None) -> None:
        """Note messages that are about to be sent."""
        for message in messages:
            assert message not in self._sent, f"sent twice: {message!r}"
            self._sent[message] = len(self._sent), event or Event()

    def acknowledge(self, messages: Iterable[bytes]) -> None:
        """Note messages whose put was replied to."""
        for message in messages:
            assert message in self._sent, f"acknowledged and never sent: {message!r}"
            self._acknowledged.setdefault(message, time.monotonic())

    def put(self, messages: Iterable[bytes], event: Event | None = None) -> None:
        """Note messages that were sent and acknowledged."""
        messages = list(messages)
        self.send(messages, event)
        self.acknowledge(messages)

    def receive(self, messages: Iterable[bytes], event: Event | None = None) -> None:
        """Note messages that a client has read, in this order."""
        receipt = event or Event()
        for message in messages:
            if message not in self._sent:
                self.strange.append(Strange(message, receipt))
                continue
            if message in self._first:
                self._further.setdefault(message, []).append(receipt)
            else:
                self._first[message] = receipt
            position, sent = self._sent[message]
            line = (receipt.by, sent.by, sent.queue)
            if position < self._last.get(line, 0):
                self.disordered.append(Disordered(message, receipt))
            self._last[line] = position

    def doubt(self, messages: Iterable[bytes]) -> None:
        """Note messages that a client has read, and may receive again once or never."""
        self._doubtful.update(messages)

    @property
    def receipts(self) -> Mapping[bytes, Event]:
        """The first receipt of each message received, in their order."""
        return self._first

    def is_sent(self, message: bytes) -> bool:
        """Return whether anybody sent the message."""
        return message in self._sent

    @property
    def sent(self) -> int:
        """The number of messages sent."""
        return len(self._sent)

    def is_acknowledged(self, message: bytes) -> bool:
        """Return whether the put of a message has been acknowledged."""
        return message in self._acknowledged

    @property
    def acknowledged(self) -> int:
        """The number of messages acknowledged."""
        return len(self._acknowledged)

    @property
    def received(self) -> int:
        """The number of messages received, each counted once."""
        return len(self._first)

    @property
    def settled(self) -> int:
        """The number of messages that were received or are doubtful."""
        return len(self._first.keys() | self._doubtful)

    @property
    def unsure(self) -> int:
        """The number of messages sent and not acknowledged."""
        return len(self._sent) - len(self._acknowledged)

    @property
    def unsure_received(self) -> int:
        """The number of unsure messages that were received."""
        return len(self._first.keys() - self._acknowledged.keys())

    def lost(self) -> list[Lost]:
        """Return the messages acknowledged and not received, in the order of sending."""
        missing = self._acknowledged.keys() - self._first.keys() - self._doubtful
        return [
            Lost(message, sent, self._acknowledged[message])
            for message, (_, sent) in self._sent.items()
            if message in missing
        ]

    def doubled(self) -> list[Doubled]:
        """Return the messages received more than once, in the order of their second receipts."""
        return [Doubled(message, [self._first[message], *more]) for message, more in self._further.items()]

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.acknowledged} acknowledged, {self.received} received, "
            f"{self.unsure_received} of {self.unsure} unsure received, {len(self.lost())} lost, "
            f"{len(self.doubled())} doubled, {len(self.strange)} strange, {len(self.disordered)} out of order"
        )

    def check(self, *, may_lose: int = 0, in_order: bool = False) -> None:
        """Print the figures. Raise AssertionError if a message was doubled or strange, or too many were lost.

        With `in_order`, raise it also if a message was out of order.
        """
        print(f"ledger: {self}")
        lost = self.lost()
        _fail("lost", lost if len(lost) > may_lose else [])
        _fail("doubled", self.doubled())
        _fail("strange", self.strange)
        _fail("out of order", self.disordered if in_order else [])


def _fail(what: str, found: Sequence[object]) -> None:
    assert not found, f"{len(found)} {what}, such as {found[:_EXAMPLES]}"
