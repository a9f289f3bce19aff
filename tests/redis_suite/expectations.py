"""Which tests of Redis's suite pass, and why the others cannot: the table in expected.tsv."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("expected.tsv")
PASSES = "passes"
# By the word in the table: why a test cannot pass.
REASONS = {
    "end": "It takes from the newest end of a list, or puts at its oldest end.",
    "type": "It needs a key of another type, or lists and sets that are different types.",
    "empty": "It expects that an empty list or set does not exist.",
    "place": "It needs `LINSERT` or `LSET`, which put or change a message in the middle.",
    "keys": "It needs `RENAME`, `SORT`, `SWAPDB`, `DUMP` or `RESTORE`.",
    "debug": "It needs `DEBUG`: it tests how Redis keeps lists and sets in memory.",
    "replica": "It reads what Redis sends to replicas.",
    "memory": "It needs messages of more than 4 GB.",
    "continues": "It continues another test that cannot pass.",
}


class Test(NamedTuple):
    """A test of the suite. `occurrence` counts tests of the same unit and name, from 1."""

    unit: str
    name: str
    occurrence: int = 1

    def __str__(self) -> str:
        again = f" ({self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.unit}: {self.name}{again}"


def numbered(rows: list[tuple[str, str, str]]) -> dict[Test, str]:
    """Return the last value of each row of unit, name and value, by test."""
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[Test, str] = {}
    for unit, name, value in rows:
        seen[unit, name] += 1
        found[Test(unit, name, seen[unit, name])] = value
    return found


def expected() -> dict[Test, str]:
    """Return PASSES or a word of REASONS for each test. Raise ValueError for another word."""
    rows = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        unit, word, name = line.split("\t")
        if word != PASSES and word not in REASONS:
            raise ValueError(f"{TABLE.name} has the unknown word {word}")
        rows.append((unit, name, word))
    return numbered(rows)


def markdown() -> str:
    """Return the tables of docs/internals/redis-tests.md."""
    table = expected()
    units = list(dict.fromkeys(test.unit for test in table))
    words = Counter((test.unit, word) for test, word in table.items())
    lines = ["| file | tests | pass | cannot |", "|---|---|---|---|"]
    totals = Counter(test.unit for test in table)
    for unit in units:
        passing = words[unit, PASSES]
        lines.append(f"| `{unit}` | {totals[unit]} | {passing} | {totals[unit] - passing} |")
    passing = sum(words[unit, PASSES] for unit in units)
    lines.append(f"| all | {len(table)} | {passing} | {len(table) - passing} |")
    lines += ["", f"| why it cannot pass | {' | '.join(f'`{unit}`' for unit in units)} | word |"]
    lines.append("|---" * (len(units) + 2) + "|")
    for word, reason in REASONS.items():
        counts = " | ".join(str(words[unit, word]) for unit in units)
        lines.append(f"| {reason} | {counts} | `{word}` |")
    return "\n".join(lines) + "\n"
