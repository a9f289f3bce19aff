"""Memcached clients that put and take."""

import time

from tests.chaos.consumers import Consumer
from tests.chaos.messages import message
from tests.chaos.producers import Producer, Put
from tests.support.waiters import Words

_MAX_FLAGS = 2**32 - 1
# Expiry times in seconds, later than the end of any run: relative, and (over 30 days) for a Unix time.
_HOUR = 3600
_QUARTER = 90 * 24 * 3600


class Setter(Producer):
    """Puts by `set` and `add`. In one write, consecutive commands often differ only in their data.

    A full queue refuses these puts at once.
    """

    batches = (1, 1, 5, 20)

    def _puts(self, count: int) -> list[Put]:
        puts: list[Put] = []
        form = self._form()
        for _ in range(count):
            if self.chance.random() < 0.3:
                form = self._form()
            command, queue, flags, expires = form
            names = self.sender.new(queue, 1, flags)
            puts.append(((command, queue, flags, expires, message(names[0])), names))
        return puts

    def _form(self) -> tuple[str, str, int, int]:
        """Return a command, a queue, flags, and an expiry time: none, or later than the run."""
        return (
            self.chance.choice(("set", "set", "add")),
            self.chance.choice(self.queues),
            self.chance.choice((0, 1, self.chance.randint(2, _MAX_FLAGS))),
            self.chance.choice((0, _HOUR, int(time.time()) + _QUARTER)),
        )


class Getter(Consumer):
    """Takes by `get` of one queue or several, one command or several in one write."""

    async def round(self) -> bool:
        commands = [self._command()] * self.chance.choice((1, 1, 4))
        if self.chance.random() < 0.5:
            commands.append(self._command())
        return self.receive_replies(commands, await self.caller.ask(*commands)) > 0

    def _command(self) -> Words:
        return ("get", *self.chance.sample(self.queues, self.chance.choice((1, 1, 2, 3))))
