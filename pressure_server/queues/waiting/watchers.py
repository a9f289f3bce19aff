"""Watchers: commands that wait until one of very many queues changes, first come, first served. Pure.

An operation in the line of each queue costs fifty microseconds a queue, for each job that a worker waits for.
A watcher costs nothing for its queues. Those in the line of a queue are served first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


class Watcher:
    """A command that waits. `news` are the queues that have changed and of which it alone was told."""

    __slots__ = ("changed", "names", "news")

    def __init__(self, names: Iterable[bytes], changed: Callable[[], None]) -> None:
        self.names = frozenset(names)
        self.changed = changed
        self.news: set[bytes] = set()

    def tell(self, name: bytes) -> None:
        """Note that a queue has changed; wake the command up."""
        self.news.add(name)
        self.changed()


class Watchers:
    """The watchers of the queues of one shard."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def add(self, watcher: Watcher) -> None:
        """Add a watcher."""
        self._watchers[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher: it looks at its queues. If it then takes a job, tell others of its news."""
        self._watchers.pop(watcher, None)

    def tell(self, name: bytes) -> None:
        """Tell the first watcher that has not been told of anything else: there may be a job for it."""
        for watcher in self._watchers:
            if not watcher.news and name in watcher.names:
                watcher.tell(name)
                return
        for watcher in self._watchers:
            if name in watcher.names:
                watcher.tell(name)
                return

    def tell_all(self) -> None:
        """Wake all watchers up."""
        for watcher in list(self._watchers):
            watcher.changed()

    def have(self, name: bytes) -> bool:
        """Return whether a watcher waits for this queue."""
        return any(name in watcher.names for watcher in self._watchers)

    def count(self, names: Collection[bytes] | None) -> dict[bytes, int]:
        """Return how many wait for each of these queues, or for all. Those with none are left out."""
        found: dict[bytes, int] = {}
        for watcher in self._watchers:
            for name in watcher.names if names is None else watcher.names.intersection(names):
                found[name] = found.get(name, 0) + 1
        return found
