"""The deletion watch: which queues are watched for deletion by native clients, which leave keys of ours."""

from __future__ import annotations

from collections.abc import Callable

from pressure_server.backend.watch import Watch
from pressure_server.queues.names import BOUND, base_key

# At most this many queues are watched, with names of at most this many bytes.
_MAX_WATCHED = 20_000
_MAX_WATCHED_NAME = 256


class DeletionWatch:
    """The watched queues of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, on_deleted: Callable[[bytes], None]) -> None:
        """`on_deleted` is called with a queue's name if the queue had been deleted when its watch began."""
        self._watch = watch
        self._on_deleted = on_deleted
        self._number = number
        self._prefix = prefix
        self._watched: set[bytes] = set()

    def note(self, name: bytes, *, exists: bool) -> bool:
        """Note that a queue exists or not. Return False if this must be noted again: the watch is down."""
        if not self._watch.is_up:
            if not exists:
                self._watched.discard(name)
            return False
        # If the queue does not exist, the watch reports the deletion, and `forget` removes the name.
        if exists and name not in self._watched and self._has_room_for(name):
            self._watched.add(name)
            self._watch.arm(self._number, [self._key(name)], lambda there, _: self._armed(name, there))
        return True

    def _has_room_for(self, name: bytes) -> bool:
        return len(self._watched) < _MAX_WATCHED and len(name) <= _MAX_WATCHED_NAME

    def _key(self, name: bytes) -> bytes:
        return base_key(self._prefix, name) + BOUND

    def _armed(self, name: bytes, there: int | None) -> None:
        if there:
            # An earlier watch may have reported the creation of the queue after this one was asked for.
            self._watched.add(name)
        elif there == 0 and self.forget(name):
            self._on_deleted(name)

    def forget(self, name: bytes) -> bool:
        """Forget a queue whose `:bound` key has changed: it was deleted. Return whether it was watched."""
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
