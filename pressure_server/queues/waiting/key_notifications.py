"""Key notifications: tell listeners when a queue changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from pressure_server.backend.watch import Watch
from pressure_server.queues.names import DUE, base_key
from pressure_server.queues.operations.wait import (
    WaitCondition,
    may_proceed,
    watched_keys,
    watched_suffixes,
)


class KeyListener(Protocol):
    """An object that is told when a queue changes."""

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, due: bytes | None) -> None:
        """Note that keys with the suffixes `watched` are watched; `mask` says which exist, see `may_proceed`.

        If the backend cannot watch, it is None, after a pause: try again now. `due` is the value of DUE.
        """

    def changed(self, name: bytes) -> None:
        """Note that the queue has changed. It is not watched any longer."""


class KeyNotifications:
    """The listeners to queues of one shard. A lane is told of its own queue directly."""

    def __init__(self, watch: Watch, number: int, prefix: bytes) -> None:
        self._watch = watch
        self._number = number
        self._prefix = prefix
        # By queue; in the order in which they came.
        self._listeners: dict[bytes, dict[KeyListener, None]] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        """Return how many queues have listeners."""
        return len(self._listeners)

    def arm(self, listener: KeyListener, name: bytes, watched: list[bytes], *, own: bool = False) -> None:
        """Tell the listener, once, of a change of these keys. A lane is told of its `own` queue anyway."""
        if not own:
            self._listeners.setdefault(name, {})[listener] = None
        base = base_key(self._prefix, name)
        self._watch.arm(
            self._number,
            watched_keys(base, watched),
            lambda mask, due: listener.armed(name, watched, mask, due),
            base + DUE,
        )

    def leave(self, listener: KeyListener, name: bytes, watched: Iterable[bytes] = ()) -> None:
        """Stop telling the listener of a queue. `watched` are the suffixes still watched for it."""
        base = base_key(self._prefix, name)
        if watched:
            self._watch.disarm(self._number, [base + suffix for suffix in (*watched, DUE)])
        listeners = self._listeners.get(name)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._listeners[name]

    def notify(self, name: bytes) -> None:
        """Tell all listeners that a queue has changed."""
        for listener in self._listeners.pop(name, ()):
            listener.changed(name)

    def watch_lost(self) -> None:
        """Tell all listeners: no key is watched any longer, so every queue may have changed."""
        for name in list(self._listeners):
            self.notify(name)

    async def wait_for(self, name: bytes, condition: WaitCondition, timeout: float) -> bool:
        """Wait until `condition` may be satisfied on a queue; return False after `timeout` seconds."""
        if timeout <= 0:
            return False
        news = _ConditionListener(condition, self._loop.create_future())
        self.arm(news, name, watched_suffixes([condition]))
        try:
            async with asyncio.timeout(timeout):
                await news.reached
        except TimeoutError:
            return False
        finally:
            self.leave(news, name, watched_suffixes([condition]))
        return True


class _ConditionListener:
    """A listener for a coroutine that waits for a condition of a queue."""

    def __init__(self, condition: WaitCondition, come: asyncio.Future[None]) -> None:
        self._condition = condition
        self.reached = come

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, _due: bytes | None) -> None:
        if mask is None or may_proceed([self._condition], watched, mask, existed=True):
            self.changed(name)

    def changed(self, _name: bytes) -> None:
        if not self.reached.done():
            self.reached.set_result(None)
