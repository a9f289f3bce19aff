"""The courier: packs the blocks of many queues into few calls of the library, and sends them.

A call costs the backend 15 microseconds before it does anything, and each block 5. While `most_in_flight`
calls have no reply, ready blocks wait, and leave together in the next one.

records.py says what the calls leave in the backend.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from pressure_server.backend.link import Link
from pressure_server.backend.requests import Caller
from pressure_server.compiled import mypyc_attr
from pressure_server.lua.layout import REPLY_SIZE, Reply
from pressure_server.queues.calls.call import MAX_BLOCKS, Call, Part
from pressure_server.queues.calls.records import Records
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.operations.operation import Delivery
from pressure_server.text import counted, printable

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Most calls in flight, so that the next ones are made while the backend does one. With 1000 queues, 3 handled
# 4 to 15 % more operations than 2, and 6 handled fewer. Shards of one database share them, as their calls are
# small: with 16 shards on three nodes, one each makes 24 operations a call instead of 10.
MOST_IN_FLIGHT: Final = 3
# The calls that may leave share the ready blocks, but each gets at least this number: a call costs as much as
# two or three blocks.
_MIN_BLOCKS: Final = 8
# The most bytes of a call's arguments. The library ends a call after about two milliseconds (call.lua).
_MAX_BYTES: Final = 1 << 20
# The most operations of a call that leaves at once, if the last one had as many.
_OF_ONE_CLIENT: Final = 2
# The most queues of a call that a line of the log names.
_MAX_LOGGED: Final = 5


@mypyc_attr(allow_interpreted_subclasses=True)
class Courier:
    """The courier of one shard."""

    def __init__(
        self, link: Link, shard: Shard, caller: Caller, most_in_flight: int = MOST_IN_FLIGHT
    ) -> None:
        """`caller` goes with each call, and may be replaced later."""
        self._link = link
        self._shard = shard
        self.caller = caller
        self._ready: deque[Part] = deque()
        # Put-backs and recoveries: they go before all others, also before blocks that a call has left over.
        # Otherwise takes of large messages would fill the memory with messages that have to go back.
        self._first: deque[Part] = deque()
        self._in_flight = 0
        self._most_in_flight = most_in_flight
        self._is_about_to_send = False
        # Operations submitted since the last call was sent, and between the last call and the one before.
        self.submitted = 0
        self._submitted_before = 0
        # The same as `ready`, without `send_soon`.
        self.add = self._ready.append
        self._prefix_size = len(shard.prefix) + 1
        self._is_logged = logger.isEnabledFor(logging.DEBUG)
        self.statistics = CallStatistics()
        self._loop = asyncio.get_running_loop()
        self.records = Records(self, shard, link, caller.records)

    def ready(self, part: Part, *, goes_first: bool = False) -> None:
        """Ask the part for a block when the next call is sent; if it `goes_first`, before all others."""
        if goes_first:
            self._first.appendleft(part)
        else:
            self._ready.append(part)
        self.send_soon()

    def send_soon(self) -> None:
        """Send the ready blocks in the next iteration of the event loop, or when a call returns."""
        if not self._is_about_to_send and self._in_flight < self._most_in_flight:
            self._is_about_to_send = True
            self._loop.call_soon(self._send)

    def end_of_read(self) -> None:
        """Send the blocks that are ready after a client's read: at once if operations come from one client.

        A client that is alone sends one at a time; a worker two, an acknowledgement and a reserve.
        """
        if (self._ready or self._first) and not self._is_about_to_send:
            if not self._in_flight and self.submitted == self._submitted_before <= _OF_ONE_CLIENT:
                self.send_some()
            else:
                self.send_soon()

    def send_ahead(self, part: Part) -> None:
        """Send the ready blocks and the block of this part now, unless too many calls are in flight."""
        if self._in_flight < self._most_in_flight:
            self._ready.append(part)
            self.send_some()

    def flush(self) -> None:
        """Send all ready blocks at once, so that they are done before anything that is sent later."""
        while self._ready or self._first:
            self.send_some()

    def _send(self) -> None:
        self._is_about_to_send = False
        while (self._ready or self._first) and self._in_flight < self._most_in_flight:
            part = ceil((len(self._ready) + len(self._first)) / (self._most_in_flight - self._in_flight))
            self.send_some(min(max(part, _MIN_BLOCKS), MAX_BLOCKS))

    def send_some(self, most: int = MAX_BLOCKS) -> None:
        """Send a call with up to `most` of the ready blocks. Without any, it drops records."""
        ready, first, call = self._ready, self._first, Call(self)
        while (ready or first) and len(call.parts) < most and call.size < _MAX_BYTES:
            try:
                (first or ready).popleft().pack_into(call)
            except Exception:  # the other blocks must be sent all the same
                logger.exception("error while making a block: it is left out of the call")
        if most and not call.parts:
            return
        if self.submitted:
            self.statistics.operations += self.submitted
            self._submitted_before, self.submitted = self.submitted, 0
        self.records.attach(call)
        self._in_flight += 1
        call.sent = perf_counter()
        self._link.send(call)

    def _log_call(self, call: Call, seconds: float, reply: Any) -> None:
        """Log a call that has been answered, with some of its queues."""
        queues = ", ".join(printable(base[self._prefix_size :]) for base in call.keys[:_MAX_LOGGED])
        more = f" and {len(call.keys) - _MAX_LOGGED} more" if len(call.keys) > _MAX_LOGGED else ""
        logger.debug(
            "call %d: %s on %s %s%s took %.6f seconds%s",
            call.number,
            counted(len(call.parts), "block"),
            "queue" if len(call.keys) == 1 else "queues",
            queues,
            more,
            seconds,
            f": {reply}" if isinstance(reply, Exception) else "",
            extra={"queue": queues + more, "duration": round(seconds, 6)},
        )

    def answered(self, call: Call, reply: Any) -> None:
        """Hand the reply to the parts of the call."""
        self._in_flight -= 1
        statistics, seconds = self.statistics, perf_counter() - call.sent
        statistics.calls += 1
        statistics.blocks += len(call.parts)
        statistics.seconds += seconds
        if self._is_logged:
            self._log_call(call, seconds, reply)
        is_to_send, self._is_about_to_send = self._is_about_to_send, True
        try:
            delivery: Delivery | None = None
            if type(reply) is list:
                delivery = self.records.answered(call, is_recorded=reply[Reply.RECORDED] == 1)
                replies = reply[REPLY_SIZE:]
                # The script ended the call before these blocks: they go first in the next one.
                if len(replies) < len(call.parts):
                    self._ready.extendleft(reversed(list(call.blocks_from(len(replies)))))
            else:
                statistics.failed += 1
                self.records.failed(call, reply)
                replies = [reply] * len(call.parts)
            answers = self._shard.answers
            # Not a method of Answers: each reply of the backend would take one more function call.
            if answers.clients is None:
                answers.clients = {}
            for part, value in zip(call.parts, replies, strict=False):
                try:
                    part.received(value, delivery)
                except Exception:  # the other parts must get their replies all the same
                    logger.exception("error while handling the reply to one block of a call")
            answers.end()
            if delivery is not None:
                self.records.shared_out(delivery)
        finally:
            if not is_to_send and (self._ready or self._first):
                # Wait for the next commands of the clients just answered: two iterations of the loop later
                # they go in one call. With 50 clients that is worth 20 %.
                self._loop.call_soon(self._loop.call_soon, self._send)
            elif not is_to_send:
                self._is_about_to_send = False
