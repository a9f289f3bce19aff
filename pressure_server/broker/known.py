"""Queues that are known: which have no bound, and which are watched for being deleted natively."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pressure_server.backend.watch import Watch
from pressure_server.broker.names import BOUND, base_key

# What a reply says of a queue's bound (batch.lua); more is the number of commands that are left.
_NO_BOUND, _BOUND, _NO_QUEUE = 0, -1, -2
# Places for hashes of names, of 8 bytes each.
_PLACES = 1 << 19
# Of so many queues, with names up to so long, it is watched whether they are deleted.
_MOST_WATCHED = 20_000
_LONGEST_WATCHED = 256


class UnboundedQueues:
    """Names of queues that had no bound when a call came to them last. It may forget any.

    Each name has one place, which it may lose to another name.
    """

    def __init__(self) -> None:
        self._places = 1
        self._hashes = array("q", [0])

    def __contains__(self, name: bytes) -> bool:
        hashed = hash(name)
        return self._hashes[hashed % self._places] == hashed

    def add(self, name: bytes) -> None:
        """The queue has no bound."""
        if self._places == 1:
            self._places = _PLACES
            self._hashes *= _PLACES
        hashed = hash(name)
        self._hashes[hashed % self._places] = hashed

    def discard(self, name: bytes) -> None:
        """The queue has a bound, or there is none of that name."""
        hashed = hash(name)
        if self._hashes[hashed % self._places] == hashed:
            self._hashes[hashed % self._places] = 0


class KnownQueues:
    """Those of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, gone: Callable[[bytes], None]) -> None:
        """`gone` is called with the name of one that was watched, and turns out to be deleted at once."""
        self._watch = watch
        self._gone = gone
        self._number = number
        self._prefix = prefix
        self._unbounded = UnboundedQueues()
        self._watched: set[bytes] = set()

    def may_be_bounded(self, name: bytes) -> bool:
        """Whether the queue has a bound, or is not known."""
        return name not in self._unbounded

    def learn(self, name: bytes, found: int) -> None:
        """Note what a call has found."""
        if found > 0:
            return
        if found == _NO_BOUND:
            self._unbounded.add(name)
            if name in self._watched:
                return
        else:
            self._unbounded.discard(name)
        if found == _NO_QUEUE:
            # The watch will tell, and then what we have kept of it is cleaned up.
            if not self._watch.is_up:
                self._watched.discard(name)
        elif name not in self._watched and self._may_watch(name):
            self._watched.add(name)
            self._watch.arm(self._number, [self._key(name)], lambda there: self._armed(name, there))

    def _may_watch(self, name: bytes) -> bool:
        return len(self._watched) < _MOST_WATCHED and len(name) <= _LONGEST_WATCHED and self._watch.is_up

    def _key(self, name: bytes) -> bytes:
        return base_key(self._prefix, name) + BOUND

    def _armed(self, name: bytes, there: int | None) -> None:
        if there == 0 and self.forget(name):
            self._gone(name)

    def forget(self, name: bytes) -> bool:
        """The bound has changed, which is to say that the queue is gone. Returns whether it was watched."""
        self._unbounded.discard(name)
        if name in self._watched:
            self._watched.remove(name)
            return True
        return False

    def forget_all(self) -> None:
        """The watch has forgotten, too, but the backend still has a note of each key."""
        self._watch.disarm(self._number, map(self._key, self._watched))
        self._watched.clear()
