"""The queues in the order that a console asks for, sorted a few at a time."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Any

from pressure_server.queues.survey import Surveyed

# Queues between two pauses: these take a millisecond or two.
_AT_ONCE = 1000
Key = tuple[int, bytes]


class SortedQueues:
    """The keys of queues in an order; `count` is their number.

    Some queues at a time become a sorted run. Runs are merged only as far as a page needs it, as one merge of
    100 000 queues would block the event loop for 50 ms.
    """

    def __init__(self) -> None:
        self.count = 0
        self._found: list[Key] = []
        self._rest: Iterator[Key] = iter(())

    @classmethod
    async def of(
        cls,
        queues: Mapping[Key, Surveyed],
        value_of: Callable[[Surveyed], Any],
        wants: Callable[[bytes], bool],
        *,
        descending: bool,
    ) -> SortedQueues:
        """Sort the queues whose names are wanted."""
        everything = list(queues)
        keys: list[Key] = []
        values: list[Any] = []
        # Numbers in arrays instead of tuples: the garbage collector would look at each tuple.
        runs: list[array[int]] = []
        for first in range(0, len(everything), _AT_ONCE):
            begin = len(keys)
            for key in everything[first : first + _AT_ONCE]:
                queue = queues.get(key)
                if queue is not None and wants(key[1]):
                    keys.append(key)
                    values.append(value_of(queue))
            if len(keys) > begin:
                run = range(begin, len(keys))
                runs.append(array("L", sorted(run, key=values.__getitem__, reverse=descending)))
            await asyncio.sleep(0)
        found = cls()
        found.count = len(keys)
        found._rest = map(keys.__getitem__, merge(*runs, key=values.__getitem__, reverse=descending))
        return found

    async def between(self, first: int, last: int) -> list[Key]:
        """Return the keys from the position `first` to before `last`. Only one task may do so at a time."""
        while len(self._found) < min(last, self.count):
            self._found += islice(self._rest, min(_AT_ONCE, last - len(self._found)))
            await asyncio.sleep(0)
        return self._found[first:last]
