"""Native clients that are stopped between any two of their steps, and what the reference learns of them.

What they have done to the protocol's keys is the truth for the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tests.simulate.stand import Keys, Stand
from tests.simulate.world import Words, World
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.reference.jobs import JobQueue
from tests.support.reference.queue import Marked, Queue

_MOST = 4
# An operation has ended after this number of steps.
_MANY = 20
_FIELDS = [one.name for one in fields(Queue) if one.name != "actor"]
# Commands on a log that may not come while a native client is putting.
_PUTS = ("PUT OFFSET", "RPUSH", "SADD", "PUT ONCE", "ADD ONCE", "PRESSURE.TXN")


class AnyNumber(int):
    """A number that is not known: it equals any other."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __add__(self, other: int) -> AnyNumber:
        return self


@dataclass(eq=False)
class _Begun:
    """A native operation that has begun; it may wait for a key."""

    kind: str
    name: str
    message: bytes
    steps: Steps[Any]
    waits: bool = False


class Natives:
    """The native operations of a program that have begun."""

    def __init__(self, stand: Stand, *, follows_lives: bool) -> None:
        """With `follows_lives`, they create and delete queues, too."""
        self._stand = stand
        self._follows_lives = follows_lives
        self._begun: list[_Begun] = []
        # Queues whose token for room native clients alone have made wrong. It is tolerated until it is right.
        self.tolerated: set[str] = set()
        # Queues of which a native Delete or Create has met other operations, or a server's Delete native
        # ones: the protocol then promises nothing for tokens and statistics, until all keys are gone.
        self.undefined: set[str] = set()

    def __len__(self) -> int:
        """Return how many have not ended."""
        return len(self._begun)

    def allow(self, commands: list[Words], world: World) -> bool:
        """Return whether it is specified what the commands do beside the operations that have begun."""
        if not self._begun:
            return True
        if world.logs:
            return not any(words[0] in _PUTS for words in commands)
        if self._follows_lives:
            # What comes after a Delete may finish it.
            return all(words[0] != "DEL" for words in commands[:-1])
        # A Delete may leave anything, a transaction needs all roles, a flush reckons with statistics.
        return (len(commands) == 1 and commands[0][0] not in ("DEL", "flush")) or "use" in commands[0]

    def note_commands(self, commands: list[Words]) -> None:
        """Note what a server is about to do."""
        if self._begun:
            self.undefined.update(words[1] for words in commands if words[0] == "DEL")

    def do(self, words: Words, world: World) -> bool:
        """Begin an operation or go on with some. Return whether anything was done."""
        match words:
            case "native begin", name, kind, message, count, *client:
                if len(self._begun) == (1 if world.logs else _MOST):
                    return False
                steps = NativeSteps(self._stand.direct, name, *(client or (f"native-{kind}",)))
                # The bound of a Create is the length of the message.
                self._begun.append(_Begun(kind, name, message, steps.begin(kind, message, len(message))))
                self._advance(self._begun[-1], count, world)
            case "native step", place, count if self._begun:
                self._advance(self._begun[place % len(self._begun)], count, world)
            case ("native finish",) if self._begun:
                for begun in self._begun[:] * 3:
                    self._advance(begun, _MANY, world)
            case "native clean up", name if name in self.undefined and all(one.waits for one in self._begun):
                self._begun.clear()
                self._stand.forget_protocol(name)
                self.note(world, self._stand.read([name]))
            case _:
                return False
        return True

    def _advance(self, begun: _Begun, count: int, world: World) -> None:
        """Take this number of steps of an operation, or fewer: a step that waits is the last."""
        for _ in range(count):
            if begun not in self._begun:
                return
            log = world.logs.get(begun.name)
            length, before = self._stand.length(begun.name), world.home.as_it_is(begun.name).copy()
            try:
                begun.waits = next(begun.steps) is not None
            except (StopIteration, NativeError):
                self._begun.remove(begun)
                # It need not see the room that reservations have made meanwhile; a server does, when it acts.
                if world.home.as_it_is(begun.name).has_jobs:
                    self.tolerated.add(begun.name)
            if log is None:
                self.note(world, self._stand.read([begun.name]))
                self._note_step(begun, before, world.home.as_it_is(begun.name))
            elif self._stand.length(begun.name) > length:
                log.put_natively(begun.message)
            if begun.waits:
                return

    def _note_step(self, begun: _Begun, before: JobQueue, after: JobQueue) -> None:
        """Note what the step has left to chance."""
        tokens = after.tokens.not_full
        # It has pushed a token for a full queue, or filled a queue that had another one's token.
        if tokens > 1 or (not after.has_room and tokens > (0 if before.has_room else before.tokens.not_full)):
            self.tolerated.add(begun.name)
        is_changed = any(getattr(before, name) != getattr(after, name) for name in _FIELDS)
        meets_others = begun.kind == "delete" or (
            begun.kind == "create" and after.has_keys and len(self._begun) > 1
        )
        if self._begun and is_changed and meets_others:
            self.undefined.add(begun.name)

    def note(self, world: World, keys: dict[str, Keys]) -> None:
        """Tell the reference what the keys of the protocol say."""
        for name, found in keys.items():
            queue, now = world.home.as_it_is(name), found.queue
            # Equal messages may swap what is known of them (marks.lua).
            if now.messages == queue.messages:
                now.messages = queue.messages
            elif not queue.has_jobs:
                now.messages = [Marked(one, deliveries=AnyNumber()) for one in now.messages]
            # The roles of a queue of jobs tell nothing.
            for one in _FIELDS if not queue.has_jobs else ("messages", "tokens", "counters"):
                setattr(queue, one, getattr(now, one))
            if not (self._begun or now.exists or now.has_keys):
                self.undefined.discard(name)
