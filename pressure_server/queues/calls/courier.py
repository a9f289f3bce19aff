"""The courier: packs the blocks of many queues into few calls of the library, and sends them.

A call costs the backend 15 microseconds before it does anything, and each block 5. While `most_in_flight`
calls have no reply, ready blocks wait, and leave together in the next one.

The courier also keeps track of records (records.lua). It drops a call's record, along with a later call, when
all messages that the call brought have been delivered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import count
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pressure_server.backend.link import Link
from pressure_server.backend.requests import Channel
from pressure_server.backend.resp import wait_for_reply
from pressure_server.errors import BackendReplyError, OutcomeUnknownError
from pressure_server.lua.layout import CUT, RECOVER, Header, Reply
from pressure_server.queues.calls.call import Block, Call, Part
from pressure_server.queues.calls.slow_deliveries import SlowDeliveries
from pressure_server.queues.operations.operation import Delivery
from pressure_server.text import counted, printable

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Most calls in flight, so that the next ones are made while the backend does one. With 1000 queues, 3 handled
# 4 to 15 % more operations than 2, and 6 handled fewer. Shards of one database share them, as their calls are
# small: with 16 shards on three nodes, one each makes 24 operations a call instead of 10.
MOST_IN_FLIGHT = 3
# The calls that may leave share the ready blocks, but each gets at least so many: a call costs as much as two
# or three blocks.
_MIN_BLOCKS = 8
# Limits of one call: blocks, and bytes of their arguments. The library ends a call after about two
# milliseconds (call.lua).
_MAX_BLOCKS = 200
_MAX_BYTES = 1 << 20
# Records that one call drops: Redis's Lua can pass about 8000 values to one command.
_MAX_DROPPED = 1000
# Seconds before a call of its own drops records that are no longer needed; an earlier call does so at no
# cost. If the server dies before, the messages in these records are delivered twice.
_DROP_AFTER = 0.02
# The same, after the backend has refused to drop them.
_DROP_RETRY_AFTER = 1.0
# The most lost calls that are counted. A replica lags behind by a second at most, or serves no purpose.
_MOST_ANSWERED = 50_000
# The end of the field `last` of the records: the number of a call (records.lua).
_NUMBER = re.compile(rb"\d+\Z")
# The length of an IntEnum is a Python function.
_REPLY_SIZE = len(Reply)
# The most queues of a call that a line of the log names.
_MAX_LOGGED = 5


@dataclass(slots=True)
class CallStatistics:
    """Totals of the calls that have been answered: `seconds` from sending each until its reply came.

    `lost` calls had been answered, and are not in the data with which the backend came back.
    """

    calls: int = 0
    blocks: int = 0
    operations: int = 0
    seconds: float = 0.0
    failed: int = 0
    lost: int = 0

    @classmethod
    def total(cls, several: Iterable[CallStatistics]) -> CallStatistics:
        """Return the sums."""
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))


class Courier:
    """The courier of one shard."""

    def __init__(
        self,
        link: Link,
        shard: Shard,
        header: list[bytes],
        prefix: bytes,
        records: bytes,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        """`header` has the first arguments of each call; `prefix` begins all keys.

        The header may change later. `records` is the key of this server's records; if it is empty, none are
        kept.
        """
        self._link = link
        self._shard = shard
        self.header = header
        self._records = records
        self._numbers = count(1)
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
        # Fields of the records that may exist, and of those that are not needed any longer.
        self._kept: set[bytes] = set()
        self._unneeded: list[bytes] = []
        # The numbers of the latest calls that have changed something, and have been answered.
        self._answered: deque[int] = deque(maxlen=_MOST_ANSWERED)
        # Records of which messages went back lately: a new master may lack that (`count_lost`).
        self._went_back: deque[bytes] = deque(maxlen=_MOST_ANSWERED)
        self._dropping: asyncio.TimerHandle | None = None
        self._prefix_size = len(prefix) + 1
        self._is_logged = logger.isEnabledFor(logging.DEBUG)
        self._slow = SlowDeliveries(prefix, self._cut)
        self.statistics = CallStatistics()
        self._loop = asyncio.get_running_loop()
        if records:
            link.is_other_run = self.count_lost

    @property
    def has_records(self) -> bool:
        """Whether the backend may have records of this server."""
        return bool(self._kept)

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
        """Send the blocks that are ready after a client's read.

        If operations come one at a time, send at once: no other operation is likely to join the call.
        """
        if (self._ready or self._first) and not self._is_about_to_send:
            if not self._in_flight and self.submitted == self._submitted_before == 1:
                self._send_some()
            else:
                self.send_soon()

    def send_ahead(self, part: Part) -> None:
        """Send the ready blocks and the block of this part now, unless too many calls are in flight."""
        if self._in_flight < self._most_in_flight:
            self._ready.append(part)
            self._send_some()

    def flush(self) -> None:
        """Send all ready blocks at once, so that they are done before anything that is sent later."""
        while self._ready or self._first:
            self._send_some()

    def record_done(self, field: bytes) -> None:
        """Drop a record soon: all messages in it have been delivered, or are back in their queues."""
        self._unneeded.append(field)
        if self._dropping is None:
            self._dropping = self._loop.call_later(_DROP_AFTER, self.drop_records)

    def note_put_back(self, number: int) -> None:
        """Note that messages of the call with this number go back to their queues."""
        self._went_back.append(b"%d" % number)

    def drop_records(self) -> None:
        """Drop the records that are no longer needed, without waiting for another call."""
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None
        while self._unneeded:
            self._send_call(Call(self.header, self._records, self._share_out))

    def recover(self, fields: Sequence[bytes], follows: Callable[[int], None] = lambda _: None) -> None:
        """Put back the messages in records of this server. Keep trying while the backend is away.

        `fields` are the records, latest first. `follows` is called with the number of blocks that the call of
        the first record had done; 0 if there is no such record.
        """
        self.ready(self._recovery_of(fields, follows), goes_first=True)

    def _recovery_of(self, fields: Sequence[bytes], follows: Callable[[int], None] = lambda _: None) -> Block:
        def received(reply: Any, _delivery: Delivery | None) -> None:
            if isinstance(reply, Exception) or reply[2]:
                self._shard.when_back(partial(self.recover, fields, follows))
                return
            self._forget(fields)
            self._shard.messages_are_back(reply[4::2])
            follows(reply[1])

        return Block((self._records,), RECOVER, list(fields), received)

    def _send(self) -> None:
        self._is_about_to_send = False
        while (self._ready or self._first) and self._in_flight < self._most_in_flight:
            part = ceil((len(self._ready) + len(self._first)) / (self._most_in_flight - self._in_flight))
            self._send_some(min(max(part, _MIN_BLOCKS), _MAX_BLOCKS))

    def _send_some(self, most: int = _MAX_BLOCKS) -> None:
        ready, first, call = self._ready, self._first, Call(self.header, self._records, self._share_out)
        while (ready or first) and len(call.parts) < most and call.size < _MAX_BYTES:
            try:
                (first or ready).popleft().pack_into(call)
            except Exception:  # the other blocks must be sent all the same
                logger.exception("error while making a block: it is left out of the call")
        if call.parts:
            self._send_call(call)

    def _send_call(self, call: Call) -> None:
        if self.submitted:
            self.statistics.operations += self.submitted
            self._submitted_before, self.submitted = self.submitted, 0
        call.number = next(self._numbers)
        if self._records and call.has_changes:
            call.record = call.header[Header.NUMBER] = b"%d" % call.number
            self._kept.add(call.record)
        if call.record or not call.parts:
            # Calls that only read drop no records: if the backend refuses to drop them, the whole call fails.
            call.done = self._unneeded[:_MAX_DROPPED]
            call.header[Header.DONE] = b" ".join(call.done)
            del self._unneeded[:_MAX_DROPPED]
        self._in_flight += 1
        call.sent = perf_counter()
        self._link.send(call)

    def _log_call(self, call: Call, seconds: float, reply: Any) -> None:
        """Log a call that has been answered, with some of its queues."""
        bases = call.keys.unpacked()
        queues = ", ".join(printable(base[self._prefix_size :]) for base in bases[:_MAX_LOGGED])
        more = f" and {len(bases) - _MAX_LOGGED} more" if len(bases) > _MAX_LOGGED else ""
        logger.debug(
            "call %d: %s on %s %s%s took %.6f seconds%s",
            call.number,
            counted(len(call.parts), "block"),
            "queue" if len(bases) == 1 else "queues",
            queues,
            more,
            seconds,
            f": {reply}" if isinstance(reply, Exception) else "",
            extra={"queue": queues + more, "duration": round(seconds, 6)},
        )

    def _share_out(self, call: Call, reply: Any) -> None:
        self._in_flight -= 1
        statistics, seconds = self.statistics, perf_counter() - call.sent
        statistics.calls += 1
        statistics.blocks += len(call.parts)
        statistics.seconds += seconds
        statistics.failed += type(reply) is not list
        if self._is_logged:
            self._log_call(call, seconds, reply)
        is_to_send, self._is_about_to_send = self._is_about_to_send, True
        try:
            self._handle_reply(call, reply)
        finally:
            if not is_to_send and (self._ready or self._first):
                # Wait for the next commands of the clients just answered: two iterations of the loop later
                # they go in one call. With 50 clients that is worth 20 %.
                self._loop.call_soon(self._loop.call_soon, self._send)
            elif not is_to_send:
                self._is_about_to_send = False

    def _handle_reply(self, call: Call, reply: Any) -> None:
        """Hand the reply to the parts of the call."""
        delivery: Delivery | None = None
        if type(reply) is list:
            replies = reply[_REPLY_SIZE:]
            if call.done:
                self._forget(call.done)
            if call.record:
                if not reply[Reply.RECORDED]:
                    self._forget([call.record])
                else:
                    self._answered.append(call.number)
                    if call.takes:
                        done = partial(self.record_done, call.record)
                        delivery = Delivery(call.number, done, self._shard.put_back)
                    else:
                        self.record_done(call.record)
            # The script ended the call before these blocks: they go first in the next one.
            if len(replies) < len(call.parts):
                self._ready.extendleft(reversed(list(call.blocks_from(len(replies)))))
        else:
            replies = [reply] * len(call.parts)
            self._unneeded += call.done
            if call.done and self._dropping is None:
                self._dropping = self._loop.call_later(_DROP_RETRY_AFTER, self.drop_records)
            if call.record and isinstance(reply, OutcomeUnknownError):
                self._shard.when_back(partial(self.recover, [call.record], call.resolve))
            elif call.record:
                self._forget([call.record])
        self._shard.answers.begin()
        for part, value in zip(call.parts, replies, strict=False):
            try:
                part.received(value, delivery)
            except Exception:  # the other parts must get their replies all the same
                logger.exception("error while handling the reply to one block of a call")
        self._shard.answers.end()
        if delivery is not None:
            delivery.end_sharing_out()
            if not delivery.is_complete:
                self._slow.add(delivery)

    async def count_lost(self, channel: Channel) -> None:
        """Count the calls that another run of the backend lacks, although they had been answered.

        It may also have records that were dropped: messages in them are in no queue. If some had gone back,
        all go back again, before a call that is sent again drops the record; otherwise they had been
        delivered, and the record is dropped again. Raises BackendError.
        """
        fields = set(filter(bytes.isdigit, await channel.command(b"HKEYS", self._records)))
        went_back = fields & set(self._went_back)
        await self._recover_on(channel, sorted(went_back, key=int, reverse=True))
        delivered = fields - went_back - self._kept
        self._kept |= delivered
        for field in delivered:
            self.record_done(field)
        last = await channel.command(b"HGET", self._records, b"last")
        found = _NUMBER.search(last or b"")
        number = int(found[0]) if found else 0
        lost = sum(answered > number for answered in self._answered)
        self._answered.clear()
        if lost:
            self.statistics.lost += lost
            logger.warning(
                "%s lacks the last %s that it had answered: what was put and taken there is as before; "
                "see the page High availability of the documentation",
                self._link.name, counted(lost, "call"),
            )  # fmt: skip

    async def _recover_on(self, channel: Channel, fields: list[bytes]) -> None:
        """Put back the messages in records, in this order, before anything else is sent."""
        while fields:
            call = Call(self.header, self._records, lambda _call, _reply: None)
            for field in fields[:_MAX_BLOCKS]:
                self._recovery_of([field]).pack_into(call)
            try:
                reply = await wait_for_reply((b"FCALL",), partial(call.send, channel))
            except BackendReplyError:
                # What is held must not wait for that. Some messages may come only when this server ends.
                for field in reversed(fields):
                    self.recover([field])
                return
            done = reply[_REPLY_SIZE:]
            for part, value in zip(call.parts, done, strict=False):
                part.received(value, None)
            fields = fields[len(done) :]

    def _cut(self, number: int, left: list[bytes]) -> None:
        arguments = [b"%d" % number, *left]
        self.ready(Block((self._records,), CUT, arguments, lambda _reply, _delivery: None, changes=False))

    def _forget(self, fields: Sequence[bytes]) -> None:
        """Forget records that do not exist any longer."""
        self._kept.difference_update(fields)
        if not self._kept:
            self._shard.records_are_gone()
