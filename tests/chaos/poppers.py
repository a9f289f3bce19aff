"""Poppers: workers as people have them, which pop from queues with ACK NEXT, and die with messages in work.

A message counts as received when a later pop of its connection has brought another message. If that does not
happen, the message is doubtful: it may be acknowledged, or come again.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.consumers import Consumer, items_in
from tests.chaos.journal import Journal
from tests.support.ledger import Event
from tests.support.waiters import Words

# Seconds for which a blocking pop waits, and for which a popper works, at most.
_WAIT, _WORK = 0.2, 0.02
# The shares of messages with which a popper dies, and after which it quits.
_DEATHS, _QUITS = 0.08, 0.04


@dataclass
class Popper(Consumer):
    """Pops from one of its queues, works, and pops again."""

    journal: Journal

    def __post_init__(self) -> None:
        # What it has popped and not acknowledged, with the queue of each message.
        self._open: list[tuple[bytes, str]] = []

    async def round(self) -> bool:
        words = self._words(self.chance.choice(self.queues))
        self._ended(await self.caller.ask(words, waits=_WAIT), words)
        if not self._open:
            return False
        await asyncio.sleep(self.chance.uniform(0, _WORK))
        end = self.chance.random()
        if end < _DEATHS:
            self.caller.hang_up(reset=self.chance.random() < 0.5)
            self.journal.jobs["popped, then the client died"] += len(self._open)
            self._open = []
        elif end < _DEATHS + _QUITS:
            self._ended(await self.caller.ask(("QUIT",)), ("QUIT",))
            self.caller.close()
            self._open = []
        return True

    def _words(self, queue: str) -> Words:
        forms: list[Words] = [
            ("SPOP", queue),
            ("LPOP", queue, self.chance.randint(2, 20)),
            ("BLPOP", queue, _WAIT),
            ("BLPOP", *self.queues, _WAIT),
            ("BLMPOP", _WAIT, len(self.queues), *self.queues, "LEFT", "COUNT", 10),
        ]
        return self.chance.choice(forms)

    def _ended(self, replies: Sequence[Any], words: Words) -> None:
        """Note the reply to a pop or to QUIT.

        Without messages, what was popped before is doubtful: while the backend is away, a pop that waits ends
        without having acknowledged anything.
        """
        reply = replies[0] if replies else None
        is_error = not replies or isinstance(reply, Exception)
        found = (
            []
            if is_error
            else [(name, item.key) for item in items_in(words, reply) for name in self.see([item])]
        )
        if found:
            now = time.monotonic()
            for name, queue in self._open:
                self.ledger.receive([name], Event(self.caller.name, queue, self.caller.proxy, now))
        elif self._open:
            self.ledger.doubt(name for name, _ in self._open)
        self.journal.jobs["popped"] += len(found)
        if is_error and self._open:
            self.journal.jobs["popped, and the next pop failed"] += len(self._open)
            # A message may still be reserved, for as long as the connection stands.
            self.caller.close()
        self._open = found
