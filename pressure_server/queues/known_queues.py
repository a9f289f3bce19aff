"""Queues that are known: which have no bound, and which are watched for being deleted natively."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pressure_server.backend.watch import Watch
from pressure_server.queues.names import BOUND, base_key

# What a reply says of a queue's bound (batch.lua); more is the number of commands that are left.
_NO_BOUND, _BOUND, _NO_QUEUE = 0, -1, -2
# Places for hashes of names, of 8 bytes each.
_PLACES = 1 << 19
# Of so many queues, with names up to so long, it is watched whether they are deleted.
_MOST_WATCHED = 20_000
_LONGEST_WATCHED = 256


class KnownQueues:
    """Those of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, gone: Callable[[bytes], None]) -> None:
        """`gone` is called with the name of one that was watched, and turns out to be deleted at once."""
        self._watch = watch
        self._gone = gone
        self._number = number
        self._prefix = prefix
        self._watched: set[bytes] = set()
        # The hashes of names of queues that had no bound when a call came to them last. Each name has one
        # place, which it may lose to another.
        self._unbounded = array("q", [0])

    def may_be_bounded(self, name: bytes) -> bool:
        """Whether the queue has a bound, or is not known."""
        hashed = hash(name) or 1  # 0 is an empty place
        return self._unbounded[hashed % len(self._unbounded)] != hashed

    def learn(self, name: bytes, found: int) -> None:
        """Note what a call has found."""
        if found > 0:
            return
        if found == _NO_BOUND:
            if len(self._unbounded) == 1:
                self._unbounded *= _PLACES
            hashed = hash(name) or 1  # 0 is an empty place
            self._unbounded[hashed % _PLACES] = hashed
            if name in self._watched:
                return
        else:
            self._is_not_unbounded(name)
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

    def _is_not_unbounded(self, name: bytes) -> None:
        """It has a bound, or there is none of that name."""
        if not self.may_be_bounded(name):
            self._unbounded[(hash(name) or 1) % _PLACES] = 0

    def forget(self, name: bytes) -> bool:
        """The bound has changed, which is to say that the queue is gone. Returns whether it was watched."""
        self._is_not_unbounded(name)
        if name in self._watched:
            self._watched.remove(name)
            return True
        return False

    def forget_all(self) -> None:
        """The watch has forgotten, too, but the backend still has a note of each key."""
        self._watch.disarm(self._number, map(self._key, self._watched))
        self._watched.clear()
