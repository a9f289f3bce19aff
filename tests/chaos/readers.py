"""Readers: clients that look at queues of all types, and take nothing. Their reads share calls with takes."""

from dataclasses import dataclass

from tests.chaos.consumers import Consumer
from tests.chaos.tags import together
from tests.support.waiters import Words


@dataclass
class Reader(Consumer):
    """Reads parts of queues, whole queues, and several queues at once."""

    async def round(self) -> bool:
        await self.caller.ask(*(self._command() for _ in range(self.chance.choice((1, 1, 4)))))
        return False

    def _command(self) -> Words:
        queue = self.chance.choice(self.queues)
        one, another = self.chance.choices(self.chance.choice(together(self.queues)), k=2)
        forms: list[Words] = [
            ("LRANGE", queue, 0, self.chance.randint(0, 30)),
            ("LINDEX", queue, 0),
            ("SRANDMEMBER", queue, 3),
            ("SSCAN", queue, 0),
            ("SMEMBERS", queue),
            ("LLEN", queue),
            ("SINTER", one, another),
            ("SINTERCARD", 2, one, another, "LIMIT", 3),
        ]
        return self.chance.choice(forms)
