"""A kestrel client: it acknowledges a message and opens the next in a loop, and sometimes aborts a read."""

import time

from tests.chaos.consumers import Consumer
from tests.support.ledger import Event
from tests.support.replies import Item

# Milliseconds for which an open read waits.
_WAIT = 200
_MOST_IN_A_ROW = 50
# The shares of messages that the client gives back by an abort, and by hanging up; and of rounds with a peek.
_ABORTS = 0.08
_HANG_UPS = 0.02
_PEEKS = 0.1


class Kestrel(Consumer):
    """A consumer with open reads. Only the client itself breaks its connection.

    A message counts as received when the reply to its close has been read. If that does not come, or is an
    error, the message is doubtful: it is gone, or is delivered again.
    """

    async def round(self) -> bool:
        queue = self.chance.choice(self.queues)
        if self.chance.random() < _PEEKS:
            self.see(await self._get(f"{queue}/peek") or [])
        return await self._read_in_a_row(queue) > 0

    async def _read_in_a_row(self, queue: str) -> int:
        """Read messages of one queue while it has any. Return their number."""
        opened: list[bytes] = []
        for taken in range(self.chance.randint(1, _MOST_IN_A_ROW)):
            items = await self._get(f"{queue}/close/open/t={_WAIT}", waits=_WAIT / 1000)
            self._settle(queue, opened, is_closed=items is not None)
            opened = []
            if not items:
                return taken
            assert len(items) == 1
            names = self.see(items)
            end = self.chance.random()
            if end < _ABORTS:
                await self._get(f"{queue}/abort")
            elif end < _ABORTS + _HANG_UPS:
                self.caller.close()
            else:
                opened = names
        self._settle(queue, opened, is_closed=await self._get(f"{queue}/close") is not None)
        return taken + 1

    def _settle(self, queue: str, opened: list[bytes], *, is_closed: bool) -> None:
        """Note messages that were open, after the reply to a close."""
        if is_closed:
            self.ledger.receive(opened, Event(self.caller.name, queue, self.caller.proxy, time.monotonic()))
        else:
            self.ledger.doubt(opened)

    async def _get(self, key: str, waits: float = 0.0) -> list[Item] | None:
        """Return the items of the reply; None if the reply is an error or does not come."""
        replies = await self.caller.ask(("get", key), waits=waits)
        return replies[0] if replies and isinstance(replies[0], list) else None
