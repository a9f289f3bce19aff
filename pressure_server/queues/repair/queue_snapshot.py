"""A snapshot: the state of one queue at one moment, as `examine` in doctor.lua returns it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Role:
    """The producer or consumer role of a queue.

    `free` is the number of tokens in :…_free, `parked` the number in :ext:…_turn. `holder` is the name of the
    last holder, None if there is none. `messages` is the number it has counted. `invalid` are the names of
    its statistics that are not numbers; these count as 0. `view` is opaque: it changes when any of the others
    does, or the number of bytes counted.
    """

    name: str
    free: int
    parked: int
    holder: bytes | None
    messages: int
    invalid: tuple[bytes, ...]
    view: bytes

    @property
    def tokens(self) -> int:
        """The number of tokens: one, or none while a native client holds the role."""
        return self.free + self.parked

    @property
    def is_held(self) -> bool:
        """Whether a native client holds the role. A pressure-server acts in one step, and never holds it."""
        return self.tokens == 0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A queue at one moment.

    `bound` is None if the queue does not exist; `keys` are then the suffixes of those of its keys that do,
    b"" for the list of messages. `length` is the number of queued messages; in a queue of jobs, `listed` of
    these are in the list, and `held` others are reserved or buried jobs. `closed` and `not_full` are numbers
    of tokens. `view` is opaque: it changes when any of the others does.
    """

    bound: int | None
    length: int
    listed: int
    held: int
    closed: int
    not_full: int
    keys: tuple[bytes, ...]
    producer: Role
    consumer: Role
    view: bytes

    @classmethod
    def of(cls, reply: Sequence[Any]) -> QueueSnapshot:
        """Make a snapshot from a reply of `examine`."""
        bound, length, listed, held, closed, not_full, keys, producer, consumer, view = reply
        bound = None if bound is None else _number(bound)
        roles = (_role("producer", producer), _role("consumer", consumer))
        return cls(bound, length, listed, held, closed, not_full, tuple(keys), *roles, view)

    @property
    def roles(self) -> tuple[Role, Role]:
        """The producer and the consumer role."""
        return self.producer, self.consumer

    @property
    def has_room(self) -> bool:
        """Whether the bound admits one more message."""
        return self.bound == 0 or (self.bound is not None and self.length < self.bound)

    @property
    def uncounted(self) -> int:
        """The number of messages that the statistics lack; negative if they count too many."""
        return self.length + self.held - self.producer.messages + self.consumer.messages

    @property
    def invalid(self) -> tuple[bytes, ...]:
        """The names of the statistics that are not numbers."""
        return self.producer.invalid + self.consumer.invalid

    @property
    def is_at_rest(self) -> bool:
        """Whether no native client holds a role."""
        return not self.producer.is_held and not self.consumer.is_held

    @property
    def is_unused(self) -> bool:
        """Whether no client has ever acted in a role, or closed the queue."""
        return self.length == self.held == self.closed == 0 and all(
            role.holder is None and role.messages == 0 and role.parked == 0 for role in self.roles
        )

    def is_condition_met(self, role: Role) -> bool:
        """Return whether the condition that a role's holder waits for is met (pressure 0.15, Put and Get).

        A producer waits for a token in :not_full, a consumer for a message; neither waits if the queue is
        closed. Redis hands these to blocked clients at once, so if one is visible, no client waits for it.
        """
        comes = self.not_full if role.name == "producer" else self.listed
        return comes > 0 or self.closed > 0

    def could_go_on(self, role: Role) -> bool:
        """Return whether a live native holder would not be waiting. It writes its name before it waits."""
        return self.is_condition_met(role) or role.holder is None


def _role(name: str, reply: Sequence[Any]) -> Role:
    free, parked, holder, messages, garbled, view = reply
    return Role(name, free, parked, holder, messages, tuple(garbled), view)


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
