"""Which queues are known to exist, and whether they have a bound: who puts on one without never waits."""

from __future__ import annotations

from collections.abc import Callable

from pressure_server.backend.watch import Watch
from pressure_server.broker.names import BOUND, base_key

# Of so many queues, with names up to so long, it is remembered, and watched whether they are deleted.
_MOST = 20_000
_LONGEST = 256


class KnownQueues:
    """Those of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, gone: Callable[[bytes], None]) -> None:
        """`gone` is called with the name of one that was known, and turns out to be deleted at once."""
        self._watch = watch
        self._gone = gone
        self._number = number
        self._prefix = prefix
        self._bounded: dict[bytes, bool] = {}

    def may_be_bounded(self, name: bytes) -> bool:
        """Whether the queue has a bound, or is not known."""
        return self._bounded.get(name, True)

    def learn(self, name: bytes, found: int) -> None:
        """What a call has found: 0 no bound, -1 a bound, -2 no queue; more: it was not said (batch.lua)."""
        known = self._bounded.get(name)
        if found > 0 or known is (found == -1):
            return
        if found == -2:
            # The watch will tell, and then what we have kept of it is cleaned up.
            if not self._watch.is_up:
                self._bounded.pop(name, None)
            return
        if known is None:
            if len(name) > _LONGEST:
                return
            if len(self._bounded) >= _MOST:
                oldest = next(iter(self._bounded))
                del self._bounded[oldest]
                self._watch.disarm(self._number, [self._key(oldest)])
            if self._watch.is_up:
                self._watch.arm(self._number, [self._key(name)], lambda there: self._armed(name, there))
        self._bounded[name] = found == -1

    def _key(self, name: bytes) -> bytes:
        return base_key(self._prefix, name) + BOUND

    def _armed(self, name: bytes, there: int | None) -> None:
        if there == 0 and self.forget(name):
            self._gone(name)

    def forget(self, name: bytes) -> bool:
        """Its bound has changed, which is to say that it is gone. Returns whether it was known."""
        return self._bounded.pop(name, None) is not None

    def forget_all(self) -> None:
        """The watch has forgotten, too, but the backend still has a note of each key."""
        self._watch.disarm(self._number, map(self._key, self._bounded))
        self._bounded.clear()
