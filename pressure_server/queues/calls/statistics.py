"""Statistics of calls. Processes of one server send them to each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass


@dataclass(slots=True)
class CallStatistics:
    """Totals of the calls that have been answered: `seconds` from sending each until its reply came.

    `lost` calls had been answered, and are not in the data with which the backend came back.
    """

    calls: int = 0
    blocks: int = 0
    operations: int = 0
    seconds: float = 0.0
    failed: int = 0
    lost: int = 0

    @classmethod
    def total(cls, several: Iterable[CallStatistics]) -> CallStatistics:
        """Return the sums."""
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))
