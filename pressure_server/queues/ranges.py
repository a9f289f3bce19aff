"""Ranges: the messages of several queues of one shard at one moment, without taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from pressure_server.errors import BackendReplyError
from pressure_server.lua.layout import READ
from pressure_server.queues.calls.direct import call_directly
from pressure_server.queues.names import BOUND, DUE, MADE, NO_PLAIN_LIST, base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.block_reply import Refused

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

# Ranges of fewer messages, of fewer queues, may be read at the same time.
_SHORT_RANGE, _FEW_QUEUES = 1000, 100
# Messages that the script reads in the first call, and in each later one; bytes, if they are large; and
# messages of each queue, at least.
_READ_FIRST, _READ_AT_ONCE, _BYTES_AT_ONCE, _READ_OF_EACH = 1000, 2000, 1 << 20, 25
# Messages of the first call if the queues have more bytes than this: the messages may be large.
_READ_FIRST_OF_LARGE, _MANY_BYTES = 10, 4 << 20
# How often queues are read in portions.
_ATTEMPTS = 3


def _due(names: Sequence[bytes], time: Any, about: Sequence[Any]) -> list[bytes]:
    """Return the queues that are lists, and of which reservations have ended by the backend's time."""
    now = int(time[0]) * 1000 + int(time[1]) // 1000
    found: list[bytes] = []
    for name, (_, made, due, *_) in zip(names, about, strict=True):
        if due is not None and int(due) <= now and not (made or b"").endswith(NO_PLAIN_LIST):
            found.append(name)
    return found


class Ranges:
    """The reads of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._long_read = asyncio.Lock()

    async def read(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """See QueueOperations.ranges. Plain commands take the backend a fifth of the time of a script."""
        commands: list[tuple[bytes, ...]] = [(b"TIME",)]
        for name in names:
            base = base_key(self._shard.prefix, name)
            counts = (base + b":stats:produced_bytes", base + b":stats:consumed_bytes")
            commands.append((b"MGET", base + BOUND, base + MADE, base + DUE, *counts))
            commands.append((b"LRANGE", base, b"%d" % (-1 - last), b"%d" % (-1 - first)))
        # Read long replies one at a time: they are in memory before the memory account counts them.
        is_short = 0 <= last - first < _SHORT_RANGE and (first < 0) == (last < 0) and len(names) < _FEW_QUEUES
        async with nullcontext() if is_short else self._long_read:
            self._shard.flush_put_backs(names)
            time, *replies = await self._shard.link.read_together(commands)
            if due := _due(names, time, replies[::2]):
                # Messages whose reservation has ended go back first, as any call lets them.
                await self._ask([(name, verbs.LENGTH) for name in due])
                _, *replies = await self._shard.link.read_together(commands)
        ranges: list[list[bytes] | None] = []
        about = [one for one in replies[::2] if isinstance(one, list)]
        if any(one[1] is not None and one[1].endswith(NO_PLAIN_LIST) for one in about):
            size = sum(int(produced or 0) - int(consumed or 0) for *_, produced, consumed in about)
            return await self._by_script(names, first, last, size)
        for (exists, *_), newest_first in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(newest_first, Exception):
                raise BackendReplyError(f"the backend answered: {newest_first}") from newest_first
            newest_first.reverse()
            ranges.append(newest_first if exists else None)
        return ranges

    async def _by_script(
        self, names: Sequence[bytes], first: int, last: int, size: int
    ) -> list[list[bytes] | None]:
        """Do what `read` does by the script, in portions unless they keep changing; `size` is their bytes."""
        room = _READ_FIRST if size < _MANY_BYTES else _READ_FIRST_OF_LARGE
        if first >= 0 and (last == -1 or last - first >= room):
            for _ in range(_ATTEMPTS):
                if (found := await self._in_portions(names, first, last, room)) is not None:
                    return found
        return await self._ask([(name, verbs.RANGE, first, last) for name in names])

    async def _in_portions(
        self, names: Sequence[bytes], first: int, last: int, room: int
    ) -> list[list[bytes] | None] | None:
        """Do what `read` does by several calls; None if a queue has changed between them.

        `first` is not negative, nor is `last`, other than -1. The first call reads `room` messages.
        """
        found: dict[bytes, list[bytes] | None] = {name: [] for name in names}
        left = dict.fromkeys(names, first)  # the position of each queue from which on it is not read yet
        ask_versions = [(name, verbs.VERSION) for name in found]
        versions: list[Any] = []
        calls = count = size = 0
        while left:
            some = list(islice(left.items(), max(1, room // _READ_OF_EACH)))
            portion = max(1, room // len(some))
            ends = [at + portion - 1 if last < 0 else min(at + portion - 1, last) for _, at in some]
            runs = [(name, verbs.RANGE, at, end) for (name, at), end in zip(some, ends, strict=True)]
            replies = await self._ask(runs if calls else [*runs, *ask_versions])
            calls += 1
            versions = versions or replies[len(some) :]
            for (name, at), end, messages in zip(some, ends, replies, strict=False):
                if messages is None:
                    found[name] = None
                else:
                    found[name] += messages
                    count += len(messages)
                    size += sum(map(len, messages))
                left[name] = end + 1
                if messages is None or len(messages) <= end - at or end == last:
                    del left[name]
            room = min(_READ_AT_ONCE, _BYTES_AT_ONCE * (count + 1) // (size + 1))
        if calls > 1 and await self._ask(ask_versions) != versions:
            return None
        return [found[name] for name in names]

    async def _ask(self, runs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to runs (queue, verb, numbers) in one call; None if there is no such queue."""
        keys = [base_key(self._shard.prefix, name) for name, *_ in runs]
        arguments: list[bytes] = []
        for key, (_, verb, *numbers) in zip(keys, runs, strict=True):
            words = [b"%d" % number for number in numbers]
            arguments += (b"on", b"1", key, verb.name, b"%d" % len(words), *words)
        while True:
            reply = await call_directly(self._shard, keys, arguments, changes=False, how=READ)
            if not isinstance(reply, Refused):
                break
            # Many jobs are due, or must be made: each call does some of that first.
        for one in reply[1:]:
            if isinstance(one, Exception) and not str(one).startswith("NOQUEUE"):
                raise BackendReplyError(f"the backend answered: {one}") from one
        return [None if isinstance(one, Exception) else one for one in reply[1:]]
