"""The report of a run: what was missed, late or wrong, by event and waiter."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.waiting.matrix.run import LATE, MISSED, OK, WRONG, Result

_EXAMPLES = 2


class Report:
    """The results of a run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._pairs: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._events: defaultdict[str, dict[str, list[Result]]] = defaultdict(dict)
        self.slowest = 0.0

    def add(self, result: Result) -> None:
        """Add a result."""
        self.counts[result.kind] += 1
        event, waiter = result.cell.event.name, result.cell.waiter.name
        self._pairs[event, waiter][result.kind] += 1
        if result.kind == OK:
            self.slowest = max(self.slowest, result.lateness)
            return
        examples = self._events[event].setdefault(f"{waiter}: {result.kind}", [])
        if len(examples) < _EXAMPLES:
            examples.append(result)

    @property
    def total(self) -> int:
        """How many cells were run."""
        return self.counts.total()

    @property
    def is_clean(self) -> bool:
        """Whether all answers came in time."""
        return self.counts[OK] == self.total

    def summary(self) -> str:
        """Return the sums."""
        sums = ", ".join(f"{kind} {self.counts[kind]}" for kind in (MISSED, LATE, WRONG))
        return f"{self.total} cells: {sums}; the slowest of the others {self.slowest * 1000:.0f} ms late"

    def lines(self) -> Iterator[str]:
        """Yield a table of the pairs with failures, with the name of a cell for each."""
        for event in sorted(self._events):
            yield f"{event}"
            for (name, waiter), counts in sorted(self._pairs.items()):
                if name != event or counts[OK] == counts.total():
                    continue
                sums = ", ".join(f"{kind} {counts[kind]}" for kind in (MISSED, LATE, WRONG) if counts[kind])
                yield f"    {waiter:<28} {sums} of {counts.total()}"
                for kind in (MISSED, LATE, WRONG):
                    for one in self._events[event].get(f"{waiter}: {kind}", []):
                        yield f"        {one.cell}: {kind}, {one.lateness * 1000:.0f} ms; {one.why}"
