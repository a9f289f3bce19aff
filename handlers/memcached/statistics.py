"""Statistics: counts of a listener's commands, and a queue's numbers under kestrel's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pressure_server.queues.operations.operation import Operation


@dataclass(slots=True)
class Counts:
    """The counts of one listener's commands."""

    gets: int = 0
    hits: int = 0
    sets: int = 0
    peeks: int = 0
    touches: int = 0
    flushes: int = 0

    def got(self, hits: int, misses: int) -> None:
        """Count the reads of items: those found, and those not found."""
        self.gets += hits + misses
        self.hits += hits

    def add(self, operation: Operation) -> None:
        """Count the commands of an operation that has ended."""
        if operation.verb.puts:
            self.sets += len(operation.sizes)
        elif operation.verb.takes:
            self.got(len(operation.results), len(operation.sizes) - len(operation.results))

    def reset(self) -> None:
        """Set all counts to 0."""
        self.gets = self.hits = self.sets = self.peeks = self.touches = self.flushes = 0


def queue_statistics(about: list[Any], waiters: int, open_reads: int) -> dict[str, int]:
    """Return a queue's numbers under kestrel's names, in its order. `about` is the reply to verbs.INFO."""
    length, produced, produced_bytes, consumed_bytes = about[1], about[7], about[8], about[10]
    return {
        "items": length,
        "bytes": max(0, produced_bytes - consumed_bytes),
        "total_items": produced,
        "mem_items": length,
        "mem_bytes": max(0, produced_bytes - consumed_bytes),
        "waiters": waiters,
        "open_transactions": open_reads,
        "bound": int(about[0]),
        "closed": min(1, about[2]),
    }
