"""What was measured, and what it is compared with."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass


class Samples:
    """What each round measured: a number for each thing in each column."""

    def __init__(self) -> None:
        self._values: defaultdict[Hashable, defaultdict[str, list[float]]]
        self._values = defaultdict(lambda: defaultdict(list))

    def add(self, thing: Hashable, column: str, value: float) -> None:
        """Note what a round measured."""
        self._values[thing][column].append(value)

    def of(self, thing: Hashable) -> dict[str, list[float]]:
        """All of a thing's numbers, by column."""
        return dict(self._values[thing])

    def median(self, thing: Hashable, column: str) -> float:
        """The middle one of the rounds' numbers."""
        return statistics.median(self._values[thing][column])

    def ratio(self, thing: Hashable, column: str, other: str) -> float:
        """The middle one of the rounds' ratios: both numbers of each are of one time, thus of one load."""
        pairs = zip(self._values[thing][column], self._values[thing][other], strict=True)
        return statistics.median(value / to for value, to in pairs)


@dataclass(frozen=True)
class Target:
    """A number, and what it should be at least or at most."""

    unit: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g} {self.unit}"
        return f"<= {self.at_most:g} {self.unit}"

    @property
    def verdict(self) -> str:
        """PASS or MISS."""
        too_small = self.at_least is not None and self.measured < self.at_least
        too_large = self.at_most is not None and self.measured > self.at_most
        return "MISS" if too_small or too_large else "PASS"


@dataclass(frozen=True)
class Row:
    """A line of a table; the values are in the order of its columns."""

    label: str
    values: tuple[float, ...]
    target: Target | None
    samples: dict[str, list[float]]


@dataclass(frozen=True)
class Table:
    """What one part of the benchmark found."""

    part: str
    unit: str
    columns: tuple[str, ...]
    rows: list[Row]
