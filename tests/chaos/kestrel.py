"""A kestrel client: it closes a message and opens the next, in a loop, and sometimes gives one back."""

from __future__ import annotations

import asyncio

from tests.chaos.consumers import IDLE
from tests.chaos.memcached import Item
from tests.chaos.memcached_clients import Reader

# Milliseconds for which an open read waits.
_WAIT = 200
# How many messages of one queue in a row; how often one of them is given back, how often by hanging up.
_MOST_IN_A_ROW = 50
_ABORTS = 0.08
_HANGS_UP = 0.02
_PEEKS = 0.1


class Kestrel(Reader):
    """On a connection that is not cut, unless by itself.

    A message has been received when it has been read and is not given back on purpose. It is closed at once,
    by the next command: what is open when the proxy is killed comes again.
    """

    async def work(self) -> None:
        """One queue after the other, until cancelled."""
        while True:
            queue = self._chance.choice(self._queues)
            if self._chance.random() < _PEEKS:
                for item in await self._get(f"{queue}/peek"):
                    self._receiver.see_item(item, queue)
            if not await self._loop(queue):
                await asyncio.sleep(IDLE)

    async def _loop(self, queue: str) -> int:
        """Take messages of one queue, while there are any; how many there were."""
        for taken in range(self._chance.randint(1, _MOST_IN_A_ROW)):
            items = await self._get(f"{queue}/close/open/t={_WAIT}", waits=_WAIT / 1000)
            if not items:
                return taken
            (item,) = items
            end = self._chance.random()
            if end < _ABORTS + _HANGS_UP:
                self._receiver.see_item(item, queue)
                if end < _ABORTS:
                    await self._get(f"{queue}/abort")
                else:
                    self._caller.close()
            else:
                self._receiver.receive_item(item, queue)
        await self._get(f"{queue}/close")
        return taken + 1

    async def _get(self, key: str, waits: float = 0.0) -> list[Item]:
        """What is there; nothing where there was an error, or no reply."""
        replies = await self._caller.ask(("get", key), waits=waits)
        return replies[0] if replies and isinstance(replies[0], list) else []
