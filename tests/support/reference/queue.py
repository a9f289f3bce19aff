"""The reference queue: a list with its bound, its counters, and the tokens of the protocol of native clients.

An operation that the server refuses raises RefusedError and changes nothing, unless a comment says otherwise.
The order in which waiting clients are served is not decided here: tests try waiting operations again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

BLOCK, ERROR, OVERWRITE = "block", "error", "overwrite"
FULL = "FULL"
# Stands for the client that has had a role, in tests that do not look at such names.
SOMEBODY = b"somebody"


class RefusedError(Exception):
    """An operation is refused; the text is the code of the error over RESP."""


def require(condition: object, code: str) -> None:
    """Refuse an operation unless a condition is met."""
    if not condition:
        raise RefusedError(code)


class Marked(bytes):
    """A message with flags, which may have expired, or has come back. Messages are compared without these."""

    flags: int
    is_expired: bool
    deliveries: int

    def __new__(
        cls, message: bytes, flags: int = 0, *, is_expired: bool = False, deliveries: int = 0
    ) -> Self:
        made = super().__new__(cls, message)
        made.flags, made.is_expired, made.deliveries = flags, is_expired, deliveries
        return made

    def __repr__(self) -> str:
        return f"{bytes(self)!r}/{self.flags}"


def flags_of(message: bytes) -> int:
    """Return the flags of a message: 0 if it was put without any."""
    return message.flags if isinstance(message, Marked) else 0


def deliveries_of(message: bytes) -> int:
    """Return how often a message has been reserved and has come back."""
    return message.deliveries if isinstance(message, Marked) else 0


@dataclass
class Counters:
    """The statistics of a queue. Messages that expire or are dropped count as consumed."""

    produced: int = 0
    produced_bytes: int = 0
    consumed: int = 0
    consumed_bytes: int = 0
    dropped: int = 0

    def produce(self, messages: Sequence[bytes]) -> None:
        self.produced += len(messages)
        self.produced_bytes += sum(map(len, messages))

    def consume(self, messages: Sequence[bytes], sign: int = 1) -> None:
        """Count messages that leave; with the sign -1, those that come back."""
        self.consumed += sign * len(messages)
        self.consumed_bytes += sign * sum(map(len, messages))


@dataclass
class Tokens:
    """The lengths of the protocol's lists: whether each role is free, whether there is room, and closed."""

    producer_free: int = 1
    consumer_free: int = 1
    not_full: int = 1
    closed: int = 0


@dataclass
class Queue:
    """A queue. `producer` and `consumer` are the last clients in these roles, empty if there was none."""

    bound: int = 0
    messages: list[bytes] = field(default_factory=list)  # oldest first
    overflow: str = ERROR
    max_bytes: int = 0
    exists: bool = True
    producer: bytes = SOMEBODY
    consumer: bytes = SOMEBODY
    tokens: Tokens = field(default_factory=Tokens)
    counters: Counters = field(default_factory=Counters)
    # Whether keys of the protocol are there: a queue that does not exist has some while native clients create
    # or delete it.
    has_keys: bool = field(default=True, compare=False)
    # Who does the next operations.
    actor: bytes = field(default=SOMEBODY, compare=False)

    def copy(self) -> Self:
        """Return a copy that shares no state."""
        clone = copy(self)
        clone.messages = list(self.messages)
        clone.tokens, clone.counters = copy(self.tokens), copy(self.counters)
        return clone

    # Questions

    @property
    def length(self) -> int:
        """The number of queued messages."""
        return len(self.messages)

    @property
    def visible(self) -> list[bytes]:
        """A list of the queued messages, in the order in which they are taken."""
        return list(self.messages)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be put."""
        return self.tokens.closed > 0

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        self.tokens.closed = 2 if value else 0

    @property
    def is_finished(self) -> bool:
        """Whether the queue is closed, and no message will come."""
        return self.is_closed and not self.length

    @property
    def has_room(self) -> bool:
        """Whether the queue is below its bound and its limit of bytes."""
        return self.exists and not self.is_heavy and self._places_left > 0

    @property
    def is_heavy(self) -> bool:
        """Whether the limit of bytes is reached, by the statistics. Native clients write these last."""
        return 0 < self.max_bytes <= self.counters.produced_bytes - self.counters.consumed_bytes

    @property
    def is_being_created(self) -> bool:
        """Whether a native client has created the queue, and has not pushed :not_full yet."""
        return not (self.tokens.not_full or self.producer or self.consumer)

    @property
    def is_token_pending(self) -> bool:
        """Whether a native consumer may have taken a message, and has not pushed :not_full yet."""
        return self.bound != 0 and not (self.tokens.not_full or self.tokens.consumer_free)

    @property
    def room(self) -> float:
        """How many messages may be put. A put that begins below the limit of bytes may exceed it."""
        if self.is_being_created or self.is_token_pending or self.is_heavy:
            return 0
        return self._places_left

    @property
    def _places_left(self) -> float:
        return max(0, self.bound - self.length) if self.bound else math.inf

    def keeps_out(self, message: bytes) -> bool:
        """Return whether a put of unique messages leaves this one out, because an equal one is there."""
        return message in self.visible

    def contains(self, messages: Iterable[bytes]) -> list[int]:
        """Return 1 for each message that is queued, or 0."""
        return [int(self.exists and message in self.visible) for message in messages]

    def range(self, first: int, last: int) -> list[bytes]:
        """Return the messages from one position to another, as LRANGE: negative ones count from the end."""
        visible = self.visible
        first = max(0, first + len(visible) if first < 0 else first)
        last = last + len(visible) if last < 0 else last
        return visible[first : max(0, last + 1)]

    def at(self, position: int) -> bytes | None:
        """Return the message at a position, as LINDEX."""
        return next(iter(self.range(position, position)), None)

    @property
    def may_produce(self) -> bool:
        """Whether no native client holds the role."""
        return self.tokens.producer_free > 0

    @property
    def may_consume(self) -> bool:
        """Whether no native client holds the role."""
        return self.tokens.consumer_free > 0

    def require_existing(self) -> None:
        """Refuse an operation that does not create the queue."""
        require(self.exists, "NOQUEUE")

    def require_open(self) -> None:
        """Refuse a put that comes too late, or too early."""
        self.require_existing()
        require(not self.is_closed, "CLOSED")
        require(not self.is_being_created, "INUSE")

    # Lives

    @property
    def is_left(self) -> bool:
        """Whether keys are left that a client which does not see the queue may not delete."""
        tokens = self.tokens
        return bool(
            self.messages or self.producer or self.consumer or tokens.producer_free or tokens.consumer_free
        )

    def begin_delete(self) -> None:
        """Begin to delete the queue. If native clients hold a role, the rest is for those that come later."""
        if not (self.tokens.producer_free and self.tokens.consumer_free):
            self.exists, self.bound = False, 0
            self.tokens.not_full += 1
            self.tokens.closed += 2
            raise RefusedError("INUSE")

    def alter(self, bound: int) -> None:
        """Change the bound. Messages above a lower one stay."""
        self.require_existing()
        was_full = not self.has_room
        self.bound = bound
        if was_full or not self.has_room:
            self.settle()

    def close(self) -> None:
        """Close the queue. Queues of jobs need the role, too."""
        self.require_existing()
        require(not self.is_closed, "CLOSED")
        require(self.tokens.producer_free, "INUSE")
        self.producer, self.is_closed = self.actor, True

    # Puts

    def put(self, messages: Sequence[bytes], *, unique: bool = False, overfill: bool = False) -> int:
        """Put all messages or none. Return the length after it; if they are `unique`, how many were new."""
        (result,) = self.put_each([messages], unique=unique, overfill=overfill)
        if isinstance(result, str):
            raise RefusedError(result)
        return result

    def put_each(
        self, commands: Sequence[Sequence[bytes]], *, unique: bool = False, overfill: bool = False
    ) -> list[int | str]:
        """Put the messages of several commands. Return for each what `put` returns, or FULL."""
        self.require_open()
        room = math.inf if overfill else self.room
        overwrites = self.overflow == OVERWRITE and sum(map(len, commands)) > room
        if not (room or overwrites or self.may_produce):
            return [FULL] * len(commands)
        require(self.may_produce and (self.may_consume or not overwrites), "INUSE")
        if room or overwrites:
            self.producer = self.actor
        results: list[int | str] = []
        for command in commands:
            new = self._new(command) if unique else list(command)
            if len(new) > (math.inf if overfill or overwrites else room and self._places_left):
                results.append(FULL)
            else:
                self._accept(new)
                results.append(len(new) if unique else self.length)
            if not overwrites:
                self.settle()
            elif unique:
                self._drop_excess()  # what this command drops, the next may put again
        if unique or not overwrites:
            return results
        self._drop_excess()
        return [min(int(length), self.length) for length in results]

    def put_some(self, messages: Sequence[bytes], *, unique: bool = False) -> tuple[int, int]:
        """Put messages one by one while there is room. Return how many are done; and how many were new.

        A unique message that is queued already needs no room.
        """
        done = new = 0
        room = self.room
        for message in messages:
            if not (unique and self.keeps_out(message)):
                if not (room and self._places_left):
                    break
                self._accept([message])
                new += 1
            done += 1
        self.settle()
        return done, new

    def restore(self, messages: Sequence[bytes]) -> None:
        """Put undelivered messages back at the head."""
        self.messages[:0] = messages
        self.counters.consume(messages, -1)

    def _new(self, messages: Iterable[bytes]) -> list[bytes]:
        return [message for message in dict.fromkeys(messages) if not self.keeps_out(message)]

    def _accept(self, messages: Sequence[bytes]) -> None:
        if messages:
            self.producer = self.actor
        self.messages += messages
        self.counters.produce(messages)

    def _drop_excess(self) -> None:
        excess = self.length - self.bound if self.bound else 0
        if excess > 0:
            self.consumer = self.actor
            self._pop(excess)
            self.counters.dropped += excess
        while self.is_heavy and self.length > 1:
            self.consumer = self.actor
            self._pop(1)
            self.counters.dropped += 1
        self.settle()

    # Takes

    def take(self, count: int = 1) -> list[bytes]:
        """Take messages for good, as many as there are; expired ones among them are dropped."""
        if not self.messages:
            return []
        require(self.may_consume, "INUSE")
        self.consumer = self.actor
        taken: list[bytes] = []
        while self.messages and len(taken) < count:
            taken += [one for one in self._pop(count - len(taken)) if not _is_expired(one)]
        self.settle()
        return taken

    def get(self, count: int = 1) -> list[bytes]:
        """Take messages; refuse that if the queue does not exist, or no more will come."""
        self.require_existing()
        require(not self.is_finished, "CLOSED")
        return self.take(count)

    def peek(self) -> list[bytes]:
        """Return the next message, if there is one; drop expired ones before it."""
        while self.messages and _is_expired(self.messages[0]):
            self._pop(1)
        return self.visible[:1]

    def remove(self, messages: Iterable[bytes]) -> list[int]:
        """Remove all copies of each message. Return for each 1 if there was one, or 0."""
        return [min(1, self.remove_copies(0, message)) for message in messages]

    def remove_copies(self, wanted: int, message: bytes) -> int:
        """Remove at most `wanted` of the oldest copies of a message; of the newest if negative; 0 for all."""
        require(self.may_consume or not self.messages, "INUSE")
        places = [place for place, one in enumerate(self.messages) if one == message]
        gone = places[wanted:] if wanted < 0 else places[: wanted or None]
        self._drop(gone)
        return len(gone)

    def drop_newest(self, count: int) -> None:
        """Remove the newest messages, at most `count`."""
        require(self.may_consume or not self.messages, "INUSE")
        self._drop(range(max(0, self.length - count), self.length))

    def _drop(self, places: Collection[int]) -> None:
        self.counters.consume([self.messages[place] for place in places])
        self.messages = [one for place, one in enumerate(self.messages) if place not in places]
        if places:
            self.consumer = self.actor
            self.settle()

    def flush(self) -> int:
        """Remove all messages. Return how many there were."""
        count = self.length
        require(self.may_consume or not count, "INUSE")
        self._pop(count)
        if count:
            self.settle()
        return count

    def _pop(self, count: int) -> list[bytes]:
        """Remove messages from the head, and count them."""
        taken, self.messages = self.messages[:count], self.messages[count:]
        self.counters.consume(taken)
        return taken

    # Moves

    def to_move(self, message: bytes | None = None) -> bytes | None:
        """Return the message that `move` moves: the next one, or this one if it is queued."""
        if message is None:
            return next(iter(self.messages), None)
        return message if message in self.visible else None

    def move(self, destination: Queue, message: bytes | None = None) -> bytes | None:
        """Move the next message, as LMOVE; or all copies of one, unless the other queue has it, as SMOVE.

        Return the message, or None if there is none. It loses its flags and its expiry.
        """
        found = self.to_move(message)
        if found is None:
            return None
        found = bytes(found)
        require(self.may_consume, "INUSE")
        if destination is not self:
            destination.put([found], unique=message is not None)
        elif message is not None:
            return found
        else:
            self.require_open()
            require(self.may_produce, "INUSE")
        if message is None:
            self.take()
        else:
            self.remove([found])
        if destination is self:
            self._accept([found])
            self.settle()
        return found

    # Tokens

    def settle(self) -> None:
        """Keep one :not_full token if there is room, else none.

        A native consumer that has taken a message from a full queue pushes the token itself.
        """
        if not self.has_room:
            self.tokens.not_full = 0
        elif not (self.is_token_pending or self.is_being_created):
            self.tokens.not_full = 1


def _is_expired(message: bytes) -> bool:
    return isinstance(message, Marked) and message.is_expired
