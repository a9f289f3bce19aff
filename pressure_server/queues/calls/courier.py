"""The courier: packs calls on queues that are made at about the same time into one call of the batch script.

A call of the script costs the backend 15 microseconds before it has done anything, and a block in it 5. While
so many calls are under way as are useful, what is to be done waits, and goes together in the next.

A call that changes something has a number, and the backend keeps a record of it (records.lua), until a later
call says that it is done with: when all that it has brought has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import ceil
from typing import Any, Protocol

from pressure_server.backend.link import Link
from pressure_server.errors import OutcomeUnknownError
from pressure_server.lua.layout import CUT, RECOVER, Reply
from pressure_server.queues.calls.block import Block
from pressure_server.queues.calls.slow_deliveries import SlowDeliveries
from pressure_server.queues.operations.operation import Delivery, Operation

logger = logging.getLogger(__name__)

# While the backend does one call, the next ones are made: 3 did 4 to 15 % more than 2 on 1000 queues, 6 less.
_MOST_UNDER_WAY = 3
# What is ready is divided among the calls that may leave, but not into parts of fewer blocks: a call costs as
# much as two or three of them.
_LEAST_PART = 8
# Of one call, which blocks.lua ends after some two milliseconds: blocks, and bytes of their arguments.
_MOST_BLOCKS = 200
_MOST_BYTES = 1 << 20
# Records that one call drops: Redis's Lua can hand about 8000 values to one command.
_MOST_DONE = 1000
# Seconds after which a record that is not needed is dropped. What has not been dropped comes back when the
# server dies, though it may have arrived. The next call does it at no cost: so it waits a little for that.
_DROP_AFTER = 0.02
# The same after the backend has refused it.
_DROP_AGAIN_AFTER = 1.0


# What makes a block when a call is about to be sent, or None if there is nothing to do any longer.
Source = Callable[[], Block | None]


class CourierOwner(Protocol):
    """What the courier works for."""

    def put_back(self, operation: Operation) -> None:
        """Nobody is there any longer for what has been taken."""

    def when_back(self, follows: Callable[[], None]) -> None:
        """Call it when the backend is back; a little later if it is there, but has refused."""

    def are_back(self, bases: Sequence[bytes]) -> None:
        """Messages are back in the queues with these base keys."""

    def has_no_records(self) -> None:
        """The backend keeps nothing for us any longer."""


@dataclass(slots=True)
class _Call:
    """`field` is where its record is, empty if there is none; `done` are those that it drops."""

    number: int
    field: bytes
    blocks: list[Block]
    done: list[bytes]
    takes: bool


class Courier:
    """To one database of the backend. `header` are the first arguments of each call."""

    def __init__(
        self, link: Link, owner: CourierOwner, header: Sequence[bytes], prefix: bytes, records: bytes | None
    ) -> None:
        """`prefix` is that of keys, `records` the key of our records: None if nobody would recover them."""
        self._link = link
        self._owner = owner
        self._header = header
        self._records = records
        self._numbers = count(1)
        self._ready: deque[Source] = deque()
        self._under_way = 0
        self._is_about_to_send = False
        # How many operations have been submitted since the last call, and before it.
        self.submitted = 0
        self._submitted_before = 0
        # As `ready`, if `send_soon` or `end_of_read` is to follow.
        self.add = self._ready.append
        # Records that may be there, and those of them that are not needed.
        self._kept: set[bytes] = set()
        self._done: list[bytes] = []
        self._dropping: asyncio.TimerHandle | None = None
        self._slow = SlowDeliveries(prefix, self._cut)
        self._loop = asyncio.get_running_loop()

    @property
    def has_records(self) -> bool:
        """Whether the backend may keep anything for us."""
        return bool(self._kept)

    def call(self, block: Block) -> None:
        """Send the block with the next call."""
        self.ready(partial(_same, block))

    def ready(self, source: Source, *, goes_first: bool = False) -> None:
        """Ask the source for a block when the next call is sent; if it `goes_first`, before all others."""
        if goes_first:
            self._ready.appendleft(source)
        else:
            self._ready.append(source)
        self.send_soon()

    def send_soon(self) -> None:
        """Send what is ready in the next turn of the loop, or when a call comes back."""
        if not self._is_about_to_send and self._under_way < _MOST_UNDER_WAY:
            self._is_about_to_send = True
            self._loop.call_soon(self._send)

    def end_of_read(self) -> None:
        """Send what is ready: at once if operations come one at a time, as none is likely to join it then."""
        if self._ready and not self._is_about_to_send:
            if not self._under_way and self.submitted == self._submitted_before == 1:
                self._send_some()
            else:
                self.send_soon()

    def flush(self) -> None:
        """Send what is ready at once, so that it is done before anything that is sent after this."""
        while self._ready:
            self._send_some()

    def keep(self, field: bytes) -> None:
        """A call has made this record beside its own; it is needed until it is `done`, or recovered."""
        self._kept.add(field)

    def done(self, field: bytes) -> None:
        """The record is not needed: what it has of messages has arrived."""
        self._done.append(field)
        if self._dropping is None:
            self._dropping = self._loop.call_later(_DROP_AFTER, self.drop_done)

    def drop_done(self) -> None:
        """Have the backend drop at once what is not needed."""
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None
        while self._done:
            self._send_call([], changes=False, takes=False)

    def recover(self, fields: Sequence[bytes], follows: Callable[[int], None] = lambda _: None) -> None:
        """Put back what is in records of ours, the latest first, however long the backend is away.

        `follows` is told how many blocks of the first one's call were done: 0 if there is no record.
        """

        def received(reply: Any, _delivery: Delivery | None) -> None:
            if isinstance(reply, Exception) or reply[2]:
                self._owner.when_back(partial(self.recover, fields, follows))
                return
            self._forget(fields)
            self._owner.are_back(reply[4::2])
            follows(reply[1])

        key = self._records or b""
        self.ready(lambda: Block((key,), RECOVER, list(fields), received), goes_first=True)

    def _send(self) -> None:
        self._is_about_to_send = False
        while self._ready and self._under_way < _MOST_UNDER_WAY:
            part = ceil(len(self._ready) / (_MOST_UNDER_WAY - self._under_way))
            self._send_some(min(max(part, _LEAST_PART), _MOST_BLOCKS))

    def _send_some(self, most: int = _MOST_BLOCKS) -> None:
        ready = self._ready
        blocks: list[Block] = []
        size, changes, takes = 0, False, False
        while ready and len(blocks) < most and size < _MOST_BYTES:
            try:
                block = ready.popleft()()
            except Exception:  # it must not keep the others from being sent
                logger.exception("a part of a call could not be made")
                continue
            if block is not None:
                size += sum(map(len, block.arguments))
                changes = changes or block.changes
                takes = takes or block.takes
                blocks.append(block)
        if blocks:
            self._send_call(blocks, changes=changes, takes=takes)

    def _send_call(self, blocks: list[Block], *, changes: bool, takes: bool) -> None:
        if self.submitted:
            self._submitted_before, self.submitted = self.submitted, 0
        number = next(self._numbers)
        field = b""
        if changes and self._records is not None:
            field = b"%d" % number
            self._kept.add(field)
        done: list[bytes] = []
        if field or not blocks:
            # A refusal must not be that of clients' questions.
            done = self._done[:_MOST_DONE]
            del self._done[:_MOST_DONE]
        keys: list[bytes] = []
        arguments = [*self._header, b"", field, b"", b" ".join(done)]
        for block in blocks:
            keys += block.keys
            arguments += (b"%d" % len(block.keys), b"%d" % len(block.arguments), block.how)
            arguments += block.arguments
        if self._records is not None:
            keys.append(self._records)
        self._under_way += 1
        call = _Call(number, field, blocks, done, takes)
        self._link.call_script(keys, arguments, partial(self._received, call))

    def _received(self, call: _Call, reply: Any) -> None:
        self._under_way -= 1
        is_to_send, self._is_about_to_send = self._is_about_to_send, True
        try:
            self._share(call, reply)
        finally:
            if not is_to_send and self._ready:
                # Clients that have just been answered ask again: one turn of the loop later, more go in one
                # call. With 50 clients that is worth 20 %.
                self._loop.call_soon(self._loop.call_soon, self._send)
            elif not is_to_send:
                self._is_about_to_send = False

    def _share(self, call: _Call, reply: Any) -> None:
        """Hand the reply to the blocks of the call."""
        delivery: Delivery | None = None
        if type(reply) is list:
            replies = reply[len(Reply) :]
            if call.done:
                self._forget(call.done)
            if call.field and not reply[Reply.RECORDED]:
                self._forget([call.field])
            elif call.field and call.takes:
                delivery = Delivery(call.number, partial(self.done, call.field), self._owner.put_back)
            elif call.field:
                self.done(call.field)
            # The call was long enough without them.
            for block in reversed(call.blocks[len(replies) :]):
                self._ready.appendleft(partial(_same, block))
        else:
            replies = [reply] * len(call.blocks)
            self._done += call.done
            if call.done and self._dropping is None:
                self._dropping = self._loop.call_later(_DROP_AGAIN_AFTER, self.drop_done)
            if call.field and isinstance(reply, OutcomeUnknownError):
                self._owner.when_back(partial(self.recover, [call.field], partial(_resolve, call.blocks)))
            elif call.field:
                self._forget([call.field])
        for block, value in zip(call.blocks, replies, strict=False):
            try:
                block.received(value, delivery)
            except Exception:  # it must not keep the others from their replies
                logger.exception("a reply of the backend could not be used")
        if delivery is not None:
            delivery.release()
            if not delivery.is_complete:
                self._slow.add(delivery)

    def _cut(self, number: int, left: list[bytes]) -> None:
        key = self._records or b""
        arguments = [b"%d" % number, *left]
        self.call(Block((key,), CUT, arguments, lambda _reply, _delivery: None, changes=False))

    def _forget(self, fields: Sequence[bytes]) -> None:
        """There are no such records any longer."""
        self._kept.difference_update(fields)
        if not self._kept:
            self._owner.has_no_records()


def _same(block: Block) -> Block:
    return block


def _resolve(blocks: Sequence[Block], done: int) -> None:
    for number, block in enumerate(blocks):
        if block.resolved is not None:
            block.resolved(number < done)
