"""Calls: what the courier sends to the library at once, for many queues, and keeps until it is answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pressure_server.backend.requests import LibraryCall
from pressure_server.backend.resp import add_packed
from pressure_server.compiled import mypyc_attr
from pressure_server.lua.layout import NUMBERS, BlockField
from pressure_server.queues.operations.operation import Delivery

if TYPE_CHECKING:
    from pressure_server.queues.calls.courier import Courier

# The most blocks of one call.
MAX_BLOCKS: Final = 200

_BLOCK_SIZE: Final = len(BlockField)


@mypyc_attr(allow_interpreted_subclasses=True)
class Part(ABC):
    """A part of a call: the work on one queue, or on several queues together."""

    __slots__ = ()

    @abstractmethod
    def pack_into(self, call: Call) -> None:
        """Add a block to the call, unless there is nothing to do any longer."""

    @abstractmethod
    def received(self, reply: Any, delivery: Delivery | None) -> None:
        """Take the reply to the block that was added last: a value, an error reply, or a BackendError.

        `delivery` has the messages that the call took; None if it has no record or takes nothing.
        """


class Block(Part):
    """A part with its block. `how` it is done is in layout.py, what its `arguments` mean in batch.lua.

    `keys` are base keys; `take` gets the reply, as `Part.received` does. `changes` says that the block must
    not be done twice, `takes` that it may bring messages. If it is unknown whether the call was done,
    `resolved` is called later, and told whether this block was done.
    """

    __slots__ = ("arguments", "changes", "how", "keys", "resolved", "take", "takes")

    def __init__(
        self,
        keys: Sequence[bytes],
        how: bytes,
        arguments: Sequence[bytes],
        take: Callable[[Any, Delivery | None], None],
        changes: bool = True,
        takes: bool = True,
        resolved: Callable[[bool], None] | None = None,
    ) -> None:
        self.keys = keys
        self.how = how
        self.arguments = arguments
        self.take = take
        self.changes = changes
        self.takes = takes
        self.resolved = resolved

    def pack_into(self, call: Call) -> None:
        """See Part."""
        call.add(self, self.keys, self.how, self.arguments, self.changes, self.takes, self.resolved)

    def received(self, reply: Any, delivery: Delivery | None) -> None:
        """See Part."""
        self.take(reply, delivery)


class Call(LibraryCall):
    """A call: it collects the blocks of its parts, is sent, and has its reply shared out among them."""

    has_changes: bool = False
    takes: bool = False
    number: int = 0
    done: Sequence[bytes] = ()  # the records that it drops
    sent: float = 0.0  # when, by perf_counter

    def __init__(self, courier: Courier) -> None:
        """Make a call without blocks, for this courier."""
        self.caller = courier.caller
        self.keys = []
        self.pieces = []
        self.word_count = 0
        self._courier = courier
        self.parts: list[Part] = []
        self._resolved: dict[int, Callable[[bool], None]] = {}  # of some parts, by their place

    def add(
        self,
        part: Part,
        keys: Sequence[bytes],
        how: bytes,
        arguments: Sequence[bytes],
        changes: bool,
        takes: bool,
        resolved: Callable[[bool], None] | None = None,
    ) -> None:
        """Add a block of a part. The other arguments are as in `Block`."""
        if resolved is not None:
            self._resolved[len(self.parts)] = resolved
        self.parts.append(part)
        self.keys += keys
        add_packed(self.pieces, (NUMBERS[len(keys)], NUMBERS[len(arguments)], how))
        add_packed(self.pieces, arguments)
        self.word_count += _BLOCK_SIZE + len(arguments)
        self.size += sum(map(len, arguments))
        self.has_changes = self.has_changes or changes
        self.takes = self.takes or takes

    def received(self, reply: Any) -> None:
        """See BackendRequest."""
        self._courier.answered(self, reply)

    def blocks_from(self, first: int) -> Iterator[Block]:
        """Yield the blocks from the place `first` on, for another call."""
        at = key = 0
        words = self.arguments()
        for place, part in enumerate(self.parts):
            begin = at + _BLOCK_SIZE
            keys = int(words[at + BlockField.KEYS])
            end = begin + int(words[at + BlockField.ARGUMENTS])
            if place >= first:
                yield Block(
                    self.keys[key : key + keys],
                    words[at + BlockField.HOW],
                    words[begin:end],
                    part.received,
                    self.has_changes,
                    self.takes,
                    self._resolved.get(place),
                )
            at, key = end, key + keys

    def resolve(self, done: int) -> None:
        """Tell the parts that want to know whether they were done: the first `done` of them."""
        for place, resolved in self._resolved.items():
            resolved(place < done)
