"""Records: what this server's calls have left in one shard's backend, until it is not needed (records.lua).

A record is dropped, along with a later call, when all its messages have been delivered. If it is not known
whether a call was done, its record is recovered: that tells, and puts the messages back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pressure_server.backend.link import Link
from pressure_server.backend.requests import Channel
from pressure_server.backend.resp import wait_for_reply
from pressure_server.errors import BackendReplyError, OutcomeUnknownError
from pressure_server.lua.layout import CUT, RECOVER, REPLY_SIZE
from pressure_server.queues.calls.call import MAX_BLOCKS, Block, Call
from pressure_server.queues.operations.operation import Delivery
from pressure_server.text import counted

if TYPE_CHECKING:
    from pressure_server.queues.calls.courier import Courier
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Records that one call drops: Redis's Lua can pass about 8000 values to one command.
_MAX_DROPPED: Final = 1000
# Seconds before a call of its own drops records that are no longer needed; an earlier call does so at no
# cost. If the server dies before, the messages in these records are delivered twice.
_DROP_AFTER: Final = 0.02
# The same, after the backend has refused to drop them.
_DROP_RETRY_AFTER: Final = 1.0
# The most lost calls that are counted. A replica lags behind by a second at most, or serves no purpose.
_MOST_ANSWERED: Final = 50_000
# Seconds between two looks at deliveries that are not complete.
_CHECK_EVERY: Final = 1.0
# The end of the field `last` of the records: the number of a call (records.lua).
_NUMBER: Final = re.compile(rb"\d+\Z")


class Records:
    """The records of one shard's calls."""

    def __init__(self, courier: Courier, shard: Shard, link: Link, key: bytes) -> None:
        """`key` has this server's records; if it is empty, none are kept."""
        self.key = key
        self._courier = courier
        self._shard = shard
        self._link = link
        self._numbers = 0
        # Fields: the records that may exist, and the records that are not needed any longer.
        self._kept: set[bytes] = set()
        self._unneeded: list[bytes] = []
        # The numbers of the latest calls that have changed something, and have been answered.
        self._answered: deque[int] = deque(maxlen=_MOST_ANSWERED)
        # Records of which messages went back lately: a new master may lack that (`count_lost`).
        self._went_back: deque[bytes] = deque(maxlen=_MOST_ANSWERED)
        self._dropping: asyncio.TimerHandle | None = None
        self._slow = SlowDeliveries(shard.prefix, self._cut)
        self._loop = asyncio.get_running_loop()
        if key:
            link.is_other_run = self.count_lost

    def __len__(self) -> int:
        """Return how many records the backend may have."""
        return len(self._kept)

    def attach(self, call: Call) -> None:
        """Number a call that is about to be sent. Name its record, and those that it drops."""
        self._numbers += 1
        call.number = self._numbers
        if self.key and call.has_changes:
            call.record = b"%d" % call.number
            self._kept.add(call.record)
        if call.record or not call.parts:
            # Calls that only read drop no records: if the backend refuses to drop them, the whole call fails.
            call.done = self._unneeded[:_MAX_DROPPED]
            call.dropped = b" ".join(call.done)
            del self._unneeded[:_MAX_DROPPED]

    def answered(self, call: Call, *, is_recorded: bool) -> Delivery | None:
        """Note that a call has been done. Return the delivery of the messages in its record, if any."""
        if call.done:
            self._forget(call.done)
        if not call.record:
            return None
        if not is_recorded:
            self._forget([call.record])
            return None
        self._answered.append(call.number)
        if call.takes:
            return Delivery(call.number, partial(self._done, call.record), self._shard.put_back)
        self._done(call.record)
        return None

    def shared_out(self, delivery: Delivery) -> None:
        """Note that all operations with messages of the delivery are registered."""
        if not delivery.end_sharing_out():
            self._slow.add(delivery)

    def failed(self, call: Call, error: Exception) -> None:
        """Note that a call has not been done, or that this is not known: then recover its record."""
        self._unneeded += call.done
        if call.done and self._dropping is None:
            self._dropping = self._loop.call_later(_DROP_RETRY_AFTER, self.drop)
        if call.record and isinstance(error, OutcomeUnknownError):
            self._shard.when_back(partial(self._recover, [call.record], call.resolve))
        elif call.record:
            self._forget([call.record])

    def _done(self, field: bytes) -> None:
        """Drop a record soon: all messages in it have been delivered, or are back in their queues."""
        self._unneeded.append(field)
        if self._dropping is None:
            self._dropping = self._loop.call_later(_DROP_AFTER, self.drop)

    def drop(self) -> None:
        """Drop the records that are no longer needed, without waiting for another call."""
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None
        while self._unneeded:
            self._courier.send_some(0)

    def _forget(self, fields: Sequence[bytes]) -> None:
        """Forget records that do not exist any longer."""
        self._kept.difference_update(fields)

    def _cut(self, number: int, left: list[bytes]) -> None:
        arguments = [b"%d" % number, *left]
        self._courier.ready(Block((self.key,), CUT, arguments, lambda _reply, _delivery: None, changes=False))

    # Recovery

    def note_put_back(self, number: int) -> None:
        """Note that messages of the call with this number go back to their queues."""
        self._went_back.append(b"%d" % number)

    def _recover(self, fields: Sequence[bytes], follows: Callable[[int], None] = lambda _: None) -> None:
        """Put back the messages in these records, latest first. Keep trying while the backend is away.

        `follows` is called with how many blocks the call of the first had done; 0 if there is no such record.
        """
        self._courier.ready(self._recovery_of(fields, follows), goes_first=True)

    def _recovery_of(self, fields: Sequence[bytes], follows: Callable[[int], None] = lambda _: None) -> Block:
        def received(reply: Any, _delivery: Delivery | None) -> None:
            if isinstance(reply, Exception) or reply[2]:
                self._shard.when_back(partial(self._recover, fields, follows))
                return
            self._forget(fields)
            self._shard.messages_are_back(reply[4::2])
            follows(reply[1])

        return Block((self.key,), RECOVER, list(fields), received)

    async def count_lost(self, channel: Channel) -> None:
        """Count the answered calls that another run of the backend lacks. Raises BackendError.

        If it lacks any, it may also have records that were dropped. If messages in one had gone back, all go
        back again, before a call that is sent again drops the record; otherwise the record is dropped again.
        Reservations that clients had ended are given up.
        """
        fields = set(filter(bytes.isdigit, await channel.command(b"HKEYS", self.key)))
        last = await channel.command(b"HGET", self.key, b"last")
        found = _NUMBER.search(last or b"")
        number = int(found[0]) if found else 0
        lost = sum(answered > number for answered in self._answered)
        went_back = fields.intersection(self._went_back) if lost else set()
        await self._recover_on(channel, sorted(went_back, key=int, reverse=True))
        delivered = fields - went_back - self._kept
        self._kept |= delivered
        for field in delivered:
            self._done(field)
        self._answered.clear()
        if lost:
            self._courier.statistics.lost += lost
            self._shard.revived.search()
            logger.warning(
                "%s lacks the last %s that it had answered: what was put and taken there is as before; "
                "see the page High availability of the documentation",
                self._link.name, counted(lost, "call"),
            )  # fmt: skip

    async def _recover_on(self, channel: Channel, fields: list[bytes]) -> None:
        """Put back the messages in records, in this order, before anything else is sent."""
        while fields:
            call = Call(self._courier)
            for field in fields[:MAX_BLOCKS]:
                self._recovery_of([field]).pack_into(call)
            try:
                reply = await wait_for_reply(b"FCALL", partial(call.send, channel))
            except BackendReplyError:
                # What is held must not wait for that. Some messages may come only when this server ends.
                for field in reversed(fields):
                    self._recover([field])
                return
            done = reply[REPLY_SIZE:]
            for part, value in zip(call.parts, done, strict=False):
                part.received(value, None)
            fields = fields[len(done) :]


class SlowDeliveries:
    """The deliveries of one shard that are not complete: their records are cut down to what is missing.

    Otherwise a client that does not read would keep whole records, which come again if the server dies.
    """

    def __init__(self, prefix: bytes, cut: Callable[[int, list[bytes]], None]) -> None:
        """`cut(number, left)` cuts the record of a call down to what is left, as recovery.lua knows it.

        `left` has for each queue its base key, the number of its messages, and the messages.
        """
        self._prefix = prefix
        self._cut = cut
        # For each delivery, how many operations have messages in the record, and how many of them had not
        # received theirs at the last check.
        self._slow: dict[Delivery, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, delivery: Delivery) -> None:
        """Check the delivery from now on, until it is complete."""
        missing = len(delivery.undelivered)
        self._slow[delivery] = missing, missing
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_EVERY, self._check)

    def _check(self) -> None:
        before, self._slow = self._slow, {}
        for delivery, (recorded, seen) in before.items():
            missing = len(delivery.undelivered)
            if not missing:
                continue
            if missing > recorded:
                recorded = seen = missing
            # While deliveries go on, each cut at least halves the record, so all cuts together stay cheap.
            if missing < recorded and (2 * missing <= recorded or seen == missing):
                self._cut(delivery.number, list(self._left_of(delivery)))
                recorded = missing
            self._slow[delivery] = recorded, missing
        self._timer = self._loop.call_later(_CHECK_EVERY, self._check) if self._slow else None

    def _left_of(self, delivery: Delivery) -> Iterator[bytes]:
        for operation, returning in delivery.undelivered.items():
            words = dict(operation.taken_by_delivery()).get(delivery, []) if returning is None else returning
            yield self._prefix + b":" + operation.name
            yield b"%d" % len(words)
            yield from words
