"""Native clients that are stopped between any two of their steps, and what the reference learns of them.

What they have done to the protocol's keys is the truth for the reference.
"""

from __future__ import annotations

from typing import Any

from tests.simulate.stand import Keys
from tests.simulate.world import Words, World
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.programs import Client
from tests.support.reference.queue import Marked

_MOST = 3
# An operation has ended after this number of steps.
_MANY = 20
# Commands on a log that may not come while a native client is putting.
_PUTS = ("PUT OFFSET", "RPUSH", "SADD", "PUT ONCE", "ADD ONCE", "PRESSURE.TXN")


class AnyNumber(int):
    """A number that is not known: it equals any other."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __add__(self, other: int) -> AnyNumber:
        return self


class Natives:
    """The native operations of a program that have begun; they may wait for a key."""

    def __init__(self, direct: Client) -> None:
        self._direct = direct
        self._begun: list[tuple[Steps[Any], str, bytes]] = []
        # Native clients alone can leave a token for room on a full queue. It is tolerated until it is right.
        self.tolerated: set[str] = set()

    def __len__(self) -> int:
        """Return how many have not ended."""
        return len(self._begun)

    def allow(self, commands: list[Words], world: World) -> bool:
        """Return whether it is specified what the commands do beside the operations that have begun."""
        if not self._begun:
            return True
        if world.logs:
            return not any(words[0] in _PUTS for words in commands)
        # A Delete may leave anything, a transaction needs all roles, a flush reckons with statistics.
        return (len(commands) == 1 and commands[0][0] not in ("DEL", "flush")) or "use" in commands[0]

    def do(self, words: Words, world: World) -> bool:
        """Begin an operation or go on with some. Return whether anything was done."""
        match words:
            case "native begin", name, kind, message, count:
                if len(self._begun) == (1 if world.logs else _MOST):
                    return False
                steps = NativeSteps(self._direct, name, f"native-{kind}").begin(kind, message)
                self._begun.append((steps, name, message))
                self._advance(-1, count, world)
            case "native step", place, count if self._begun:
                self._advance(place % len(self._begun), count, world)
            case ("native finish",) if self._begun:
                for place in reversed(range(len(self._begun))):
                    self._advance(place, _MANY, world)
            case _:
                return False
        self.tolerated.update(world.names())
        return True

    def _advance(self, place: int, count: int, world: World) -> None:
        """Take this number of steps of an operation, or fewer: a step that waits is the last."""
        steps, name, message = self._begun[place]
        for _ in range(count):
            before = self._length(name) if world.logs else 0
            try:
                waits_for = next(steps)
            except (StopIteration, NativeError):
                waits_for = ""
            if world.logs and self._length(name) > before:
                world.logs[name].put_natively(message)
            if waits_for == "":
                del self._begun[place]
                return
            if waits_for is not None:
                return

    def _length(self, name: str) -> int:
        return int(self._direct.llen(f"__pressure__:{name}"))

    def note(self, world: World, keys: dict[str, Keys]) -> None:
        """Tell the reference what native clients have done."""
        for name, found in keys.items():
            queue, now = world.home.by_name[name], found.queue
            queue.tokens, queue.counters = now.tokens, now.counters
            if now.messages != queue.messages:
                # Equal messages may swap what is known of them (marks.lua).
                is_list = not queue.has_jobs
                queue.messages = [
                    Marked(one, deliveries=AnyNumber()) if is_list else one for one in now.messages
                ]
