"""The connections to the backend, in memory: calls under way, watched keys, what is confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pressure_server.errors import BackendError, OutcomeUnknownError
from pressure_server.lua.layout import AGAIN, Header
from tests.model.backend import Backend

_NOTHING = object()


@dataclass
class _Call:
    keys: list[bytes]
    arguments: list[bytes]
    received: Callable[[Any], None]
    reply: Any = _NOTHING


class ModelLink:
    """Plays Link: calls are done in their order, and answered in it, each at some time."""

    number = 0
    run = ""
    pause_after_deaths = 0.0
    is_up = True
    heartbeats = object()

    def __init__(self, backend: Backend) -> None:
        self.is_back: Callable[[], None] | None = None
        self.calls = 0
        self._backend = backend
        self._under_way: deque[_Call] = deque()

    def call_script(
        self, keys: Sequence[bytes], arguments: list[bytes], received: Callable[[Any], None]
    ) -> None:
        """See Link."""
        self.calls += 1
        self._under_way.append(_Call(list(keys), arguments, received))

    def do_one(self) -> bool:
        """Do the next call; False if there is none."""
        for call in self._under_way:
            if call.reply is _NOTHING:
                call.reply = self._backend.call(call.keys, call.arguments)
                return True
        return False

    def answer_one(self) -> bool:
        """Answer the oldest call; False if it has not been done."""
        if not self._under_way or self._under_way[0].reply is _NOTHING:
            return False
        call = self._under_way.popleft()
        call.received(call.reply)
        return True

    def lose(self, *, for_good: bool) -> None:
        """Lose the connection: calls are sent again, or it is too late for that."""
        if for_good:
            lost, self._under_way = self._under_way, deque()
            for call in lost:
                call.received(OutcomeUnknownError())
            return
        for call in self._under_way:
            call.reply = _NOTHING
            call.arguments[Header.AGAIN] = AGAIN


class ModelWatch:
    """Plays Watch: a connection of its own, on which questions and news have their order."""

    is_up = True

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.told: Callable[[bytes], None] | None = None
        self._asked: deque[tuple[Sequence[bytes], Callable[[int | None], None]]] = deque()
        self._to_tell: deque[Callable[[], None]] = deque()
        self._watched: set[bytes] = set()

    def arm(self, _number: int, keys: Sequence[bytes], armed: Callable[[int | None], None]) -> None:
        """See Watch."""
        self._asked.append((keys, armed))

    def disarm(self, _number: int, keys: Iterable[bytes]) -> None:
        """See Watch."""

    def changed(self, key: bytes) -> None:
        """A key has changed."""
        if key in self._watched:
            self._watched.remove(key)
            self._to_tell.append(lambda: self._tell(key))

    def _tell(self, key: bytes) -> None:
        if self.told is not None:
            self.told(key)

    def do_one(self) -> bool:
        """Answer the next question; False if there is none."""
        if not self._asked or self.backend is None:
            return False
        keys, armed = self._asked.popleft()
        there = sum(map(self.backend.there, keys))
        self._watched.update(keys)
        self._to_tell.append(lambda: armed(there))
        return True

    def tell_one(self) -> bool:
        """Tell the next news; False if there is none."""
        if not self._to_tell:
            return False
        self._to_tell.popleft()()
        return True


class ModelTurns:
    """Plays Turns: our turn never comes, because those that hold a role give it up to all."""

    def wait_in_line(self, number: int, token: bytes, parked: bytes, ended: Callable[[bool], None]) -> None:
        """See Turns."""

    def withdraw(self, number: int, parked: bytes) -> None:
        """See Turns."""

    def forget_note(self, number: int, parked: bytes) -> None:
        """See Turns."""


class ModelDurability:
    """Plays Durability: what has been done is confirmed at some time."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._waiting: deque[Callable[[BackendError | None], None]] = deque()

    def when_durable(self, _run: str, follows: Callable[[BackendError | None], None]) -> None:
        """See Durability."""
        if self.is_enabled:
            self._waiting.append(follows)
        else:
            follows(None)

    def confirm_one(self) -> bool:
        """Confirm the oldest; False if there is none."""
        if not self._waiting:
            return False
        self._waiting.popleft()(None)
        return True
