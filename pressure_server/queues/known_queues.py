"""Known queues: which have no bound, and which are watched for deletion by native clients."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pressure_server.backend.watch import Watch
from pressure_server.queues.names import BOUND, base_key

# What the first value of a reply says of the bound (batch.lua). A positive value counts what is left undone.
_NO_BOUND, _BOUND, _NO_QUEUE = 0, -1, -2
# Slots of the table of hashes, 8 bytes each.
_SLOTS = 1 << 19
# At most this many queues are watched, with names of at most this many bytes.
_MAX_WATCHED = 20_000
_MAX_WATCHED_NAME = 256


class KnownQueues:
    """What is known of the queues of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, on_deleted: Callable[[bytes], None]) -> None:
        """`on_deleted` is called with a queue's name if the queue had been deleted when its watch began."""
        self._watch = watch
        self._gone = on_deleted
        self._number = number
        self._prefix = prefix
        self._watched: set[bytes] = set()
        # Hashes of the names of queues that had no bound at their last call. Each name has one slot, which
        # another name may overwrite.
        self._unbounded = array("q", [0])

    def may_be_bounded(self, name: bytes) -> bool:
        """Return whether the queue has a bound, or is not known."""
        hashed = hash(name) or 1  # 0 marks an empty slot
        return self._unbounded[hashed % len(self._unbounded)] != hashed

    def note_bound(self, name: bytes, bound_state: int) -> None:
        """Note what a call has reported about the queue's bound."""
        if bound_state > 0:
            return
        if bound_state == _NO_BOUND:
            if len(self._unbounded) == 1:
                self._unbounded *= _SLOTS
            hashed = hash(name) or 1  # 0 marks an empty slot
            self._unbounded[hashed % _SLOTS] = hashed
            if name in self._watched:
                return
        else:
            self._forget_unbounded(name)
        if bound_state == _NO_QUEUE:
            # The watch, if it is up, reports the deletion, and `forget` removes the name.
            if not self._watch.is_up:
                self._watched.discard(name)
        elif name not in self._watched and self._may_watch(name):
            self._watched.add(name)
            self._watch.arm(self._number, [self._key(name)], lambda there, _: self._armed(name, there))

    def _may_watch(self, name: bytes) -> bool:
        return len(self._watched) < _MAX_WATCHED and len(name) <= _MAX_WATCHED_NAME and self._watch.is_up

    def _key(self, name: bytes) -> bytes:
        return base_key(self._prefix, name) + BOUND

    def _armed(self, name: bytes, there: int | None) -> None:
        if there:
            # An earlier watch may have reported the creation of the queue after this one was asked for.
            self._watched.add(name)
        elif there == 0 and self.forget(name):
            self._gone(name)

    def _forget_unbounded(self, name: bytes) -> None:
        """Note that the queue has a bound, or does not exist."""
        if not self.may_be_bounded(name):
            self._unbounded[(hash(name) or 1) % _SLOTS] = 0

    def forget(self, name: bytes) -> bool:
        """Forget a queue whose `:bound` key has changed: it was deleted. Return whether it was watched."""
        self._forget_unbounded(name)
        if name in self._watched:
            self._watched.remove(name)
            return True
        return False

    def forget_all(self) -> None:
        """Forget which queues are watched, as the watch was lost.

        The backend still tracks their keys, so they are disarmed.
        """
        self._watch.disarm(self._number, map(self._key, self._watched))
        self._watched.clear()
