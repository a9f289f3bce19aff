"""How late the machine itself is: what a PING takes at each server, and how late timers are."""

import asyncio
from collections import deque
from time import perf_counter

from tests.waiting.matrix.stand import SERVERS, Stand
from tests.waiting.matrix.wires import RESP

_EVERY = 0.02
_KEPT = 2000


class Machine:
    """Measures, until it is cancelled."""

    def __init__(self) -> None:
        # When a measurement began and ended.
        self._measured: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.worst = 0.0

    async def measure(self, stand: Stand) -> None:
        """Measure until cancelled."""
        wires = [await stand.connect(RESP, server) for server in SERVERS]
        while True:
            began = perf_counter()
            await asyncio.gather(*(wire.call("PING") for wire in wires))
            self._note(began, perf_counter())
            began = perf_counter() + _EVERY
            await asyncio.sleep(_EVERY)
            self._note(began, max(began, perf_counter()))

    def _note(self, began: float, ended: float) -> None:
        self._measured.append((began, ended))
        self.worst = max(self.worst, ended - began)

    def lateness(self, begin: float, end: float) -> float:
        """Return how late the machine was at most between two times."""
        times = [last - first for first, last in self._measured if last >= begin and first <= end]
        return max(times, default=0.0)
