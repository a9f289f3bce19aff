"""Results: samples, targets, and the tables made of them."""

import statistics
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass


class Samples:
    """The measurements of all rounds: a number for each thing and column."""

    def __init__(self) -> None:
        self._values: defaultdict[Hashable, defaultdict[str, list[float]]]
        self._values = defaultdict(lambda: defaultdict(list))

    def add(self, thing: Hashable, column: str, value: float) -> None:
        """Add one round's measurement."""
        self._values[thing][column].append(value)

    def of(self, thing: Hashable) -> dict[str, list[float]]:
        """Return all measurements of a thing, by column."""
        return dict(self._values[thing])

    def median(self, thing: Hashable, column: str) -> float:
        """Return the median of the rounds' measurements."""
        return statistics.median(self._values[thing][column])

    def ratio(self, thing: Hashable, column: str, other: str) -> float:
        """Return the median of each round's ratio of two columns.

        Both numbers of a round were measured under about the same load of the machine.
        """
        pairs = zip(self._values[thing][column], self._values[thing][other], strict=True)
        return statistics.median(value / to for value, to in pairs)


@dataclass(frozen=True)
class Target:
    """A measured number, and its least or greatest allowed value."""

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
    """A row of a table, with values in the order of the columns."""

    label: str
    values: tuple[float, ...]
    target: Target | None
    samples: dict[str, list[float]]


@dataclass(frozen=True)
class Table:
    """The results of one part of the benchmarks."""

    part: str
    unit: str
    columns: tuple[str, ...]
    rows: list[Row]
