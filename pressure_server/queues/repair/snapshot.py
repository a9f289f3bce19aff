"""A snapshot: how the keys of one queue looked at a moment, as `examine` in doctor.lua returns them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Role:
    """The producer or the consumer of a queue.

    `free` is how many tokens :…_free has, `parked` how many a server of ours keeps aside. `holder` is the
    name written last; None where there is none. `messages` is how many it has counted. `garbled` are those of
    its statistics that are no numbers; they count as 0. `view` is opaque: it changes when any of the others
    does, or the bytes that were counted.
    """

    name: str
    free: int
    parked: int
    holder: bytes | None
    messages: int
    garbled: tuple[bytes, ...]
    view: bytes

    @property
    def tokens(self) -> int:
        """How many there are: one, or none while a native client acts in the role."""
        return self.free + self.parked

    @property
    def is_held(self) -> bool:
        """Whether a native client has the token. Ours act in one step, also where they have parked it."""
        return self.tokens == 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment. `bound` is None where it does not exist; `keys` are then what there is of it.

    `keys` are the suffixes that follow its base key; b"" is the list of messages. `closed` and `not_full` are
    numbers of tokens. `view` is opaque: it changes when anything else does.
    """

    bound: int | None
    length: int
    closed: int
    not_full: int
    keys: tuple[bytes, ...]
    producer: Role
    consumer: Role
    view: bytes

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Snapshot:
        """From what `examine` has returned."""
        bound, length, closed, not_full, keys, producer, consumer, view = reply
        return cls(
            None if bound is None else _number(bound),
            length,
            closed,
            not_full,
            tuple(keys),
            _role("producer", producer),
            _role("consumer", consumer),
            view,
        )

    @property
    def roles(self) -> tuple[Role, Role]:
        """The producer and the consumer."""
        return self.producer, self.consumer

    @property
    def has_room(self) -> bool:
        """Whether the bound lets one more message in."""
        return self.bound == 0 or (self.bound is not None and self.length < self.bound)

    @property
    def uncounted(self) -> int:
        """How many messages more there are than the statistics say; negative where there are fewer."""
        return self.length - self.producer.messages + self.consumer.messages

    @property
    def garbled(self) -> tuple[bytes, ...]:
        """The statistics that are no numbers."""
        return self.producer.garbled + self.consumer.garbled

    @property
    def is_at_rest(self) -> bool:
        """Whether no native client is at work."""
        return not self.producer.is_held and not self.consumer.is_held

    @property
    def is_unused(self) -> bool:
        """Whether nobody has ever acted on it, nor closed it."""
        return self.length == self.closed == 0 and all(
            role.holder is None and role.messages == 0 and role.parked == 0 for role in self.roles
        )

    def has_come(self, role: Role) -> bool:
        """Whether there is what who has the role waits for (pressure 0.15, Put and Get).

        A producer waits where :not_full has no token, a consumer where there is no message; neither where
        the queue is closed. Who is blocked gets what is pushed at once: what can be seen is not waited for.
        """
        comes = self.not_full if role.name == "producer" else self.length
        return comes > 0 or self.closed > 0

    def could_go_on(self, role: Role) -> bool:
        """Whether a live native holder of the role would not be waiting: it writes its name before."""
        return self.has_come(role) or role.holder is None


def _role(name: str, reply: Sequence[Any]) -> Role:
    free, parked, holder, messages, garbled, view = reply
    return Role(name, free, parked, holder, messages, tuple(garbled), view)


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
