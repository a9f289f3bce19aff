"""The courier: packs calls on queues that are made at about the same time into one call of the batch script.

A call of the script costs the backend 15 microseconds before it has done anything, and a block in it 5. While
so many calls are under way as are useful, what is to be done waits, and goes together in the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pressure_server.backend.link import Link
from pressure_server.backend.resp import Received

logger = logging.getLogger(__name__)

# How a block says that its arguments are slots whose answers have arrived. It is the same when sent again.
ACKNOWLEDGE = b"acknowledge"
# While the backend does one call, the next one is made.
_MOST_UNDER_WAY = 2
# Of one call, which blocks.lua ends after some two milliseconds: blocks, and bytes of their arguments.
_MOST_BLOCKS = 200
_MOST_BYTES = 1 << 20


class Block(NamedTuple):
    """A call on one queue, or on some together.

    `slot`, `number` and `how` are those of calls.lua, `arguments` its runs. `received` gets the reply, an
    error reply as an exception, or a BackendError.
    """

    keys: Sequence[bytes]
    slot: bytes
    number: int
    how: bytes
    arguments: list[bytes]
    received: Received


# What makes a block when a call is about to be sent, or None if there is nothing to do any longer.
Source = Callable[[], Block | None]


class Courier:
    """To one database of the backend. `header` are the first arguments of each call."""

    def __init__(self, link: Link, header: Sequence[bytes]) -> None:
        self._link = link
        self._header = header
        self._ready: deque[Source] = deque()
        self._under_way = 0
        # How many operations have been submitted since the last call, and before it.
        self.submitted = 0
        self._submitted_before = 0
        self._is_about_to_send = False
        self._loop = asyncio.get_running_loop()

    def call(self, block: Block) -> None:
        """Send the block with the next call."""
        self.ready(partial(_same, block))

    def ready(self, source: Source, *, goes_first: bool = False) -> None:
        """Ask the source for a block when the next call is sent; if it `goes_first`, before all others."""
        if goes_first:
            self._ready.appendleft(source)
        else:
            self._ready.append(source)
        if not self._is_about_to_send and self._under_way < _MOST_UNDER_WAY:
            self._is_about_to_send = True
            self._loop.call_soon(self._send)

    def end_of_read(self) -> None:
        """Send at once if operations come one at a time: then none is likely to join before the next turn."""
        if self._is_about_to_send and not self._under_way and self.submitted == self._submitted_before == 1:
            self._send_some()

    def flush(self) -> None:
        """Send what is ready at once, so that it is done before anything that is sent after this."""
        while self._ready:
            self._send_some()

    def _send(self) -> None:
        self._is_about_to_send = False
        while self._ready and self._under_way < _MOST_UNDER_WAY:
            self._send_some()

    def _send_some(self) -> None:
        ready = self._ready
        blocks: list[Block] = []
        keys: list[bytes] = []
        arguments = [*self._header]
        positions: list[int] = []
        size = 0
        while ready and len(blocks) < _MOST_BLOCKS and size < _MOST_BYTES:
            block = ready.popleft()()
            if block is None:
                continue
            size += sum(map(len, block.arguments))
            blocks.append(block)
            keys += block.keys
            positions.append(len(arguments) + 4)
            arguments += (
                b"%d" % len(block.keys), b"%d" % len(block.arguments),
                block.slot, b"%d" % block.number, block.how,
            )  # fmt: skip
            arguments += block.arguments
        if not blocks:
            return
        if self.submitted:
            self._submitted_before, self.submitted = self.submitted, 0
        self._under_way += 1
        hows = [at for at, block in zip(positions, blocks, strict=True) if block.how != ACKNOWLEDGE]
        received = partial(self._received, blocks, arguments, positions)
        self._link.call_script(keys, arguments, hows, received)

    def _received(
        self, blocks: list[Block], arguments: list[bytes], positions: list[int], reply: Any
    ) -> None:
        self._under_way -= 1
        replies = reply if type(reply) is list else [reply] * len(blocks)
        # The call was long enough without them. If it was sent again, they may have been done the first time.
        for block, at in zip(reversed(blocks[len(replies) :]), reversed(positions), strict=False):
            left = block._replace(how=arguments[at])
            self._ready.appendleft(partial(_same, left))
        for block, value in zip(blocks, replies, strict=False):
            try:
                block.received(value)
            except Exception:  # it must not keep the others from their replies
                logger.exception("a reply of the backend could not be used")
        if self._ready and not self._is_about_to_send:
            # Clients that have just been answered ask again: one turn of the loop later, more go in one call.
            # With 50 clients that is worth 20 %.
            self._is_about_to_send = True
            self._loop.call_soon(self._loop.call_soon, self._send)


def _same(block: Block) -> Block:
    return block
