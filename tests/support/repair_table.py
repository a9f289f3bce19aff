"""The table of the states in which a native client can die, with the doctor's findings and repairs.

`python -m tests.support.repair_table docs/guides/repair.md` writes the table into the document.
"""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.native import VERSIONS, NativeSteps, run
from tests.support.programs import Valkey
from tests.support.ward import (
    IN_BOTH_VERSIONS,
    OPERATIONS,
    PREFIX,
    STATES,
    Keys,
    Report,
    Ward,
    deaths,
    naming,
)

MARKER = "<!-- made by `python -m tests.support.repair_table docs/guides/repair.md` -->\n"


LONE_LIST = "a list alone"


class Outcome(NamedTuple):
    """The doctor's findings and repairs in a queue in which a client died, as text for the table."""

    findings: str
    repairs: str
    afterwards: str


def outcomes(ward: Ward, queues: Iterable[str]) -> dict[str, Outcome]:
    """Repair all queues together, and return the outcomes. Raises AssertionError unless all queues work."""
    before = {queue: Keys.read(ward.direct, queue) for queue in queues}
    told = ward.repair()
    reported = {queue: _reported(ward, queue, told.get(queue, Report())) for queue in before}
    assert not ward.examine()
    afterwards = {}
    for queue, keys in before.items():
        with naming(queue):
            afterwards[queue] = _after_repair(ward, queue, keys)
    later = ward.repair()
    kept = {queue for queue, keys in before.items() if keys.producer_may_wait or keys.consumer_may_wait}
    assert set(later) == kept
    for queue in kept:
        with naming(queue):
            assert not later[queue].left
            afterwards[queue] += f": {later[queue].summary}, repaired, works"
    ward.assert_all_work(before)
    return {queue: Outcome(*reported[queue], afterwards[queue]) for queue in before}


def _reported(ward: Ward, queue: str, told: Report) -> tuple[str, str]:
    """Return the findings and the repairs. Name the queue to the doctor if it is repaired only then."""
    with naming(queue):
        if not told.left:
            return told.summary, ", ".join(told.done) or "nothing"
        assert [finding.name for finding in told.left] == [LONE_LIST]
        assert not told.done
        by_name = ward.repair(named=queue)[queue]
        assert not by_name.left
        return LONE_LIST, f"nothing; if the queue is named: {', '.join(by_name.done)}"


def _after_repair(ward: Ward, queue: str, before: Keys) -> str:
    """Check the queue after its repair, and bring what a live client in its state would wait for."""
    direct = ward.direct
    after = Keys.read(direct, queue)
    if before.bound is None:
        assert direct.keys(f"{PREFIX}:{queue}*") == []
        run(NativeSteps(direct, queue, "survivor").create(0))
        return "the queue is gone and can be created again"
    assert (after.messages, after.bound) == (before.messages, before.bound)
    assert after.producer_free == (0 if before.producer_may_wait else 1)
    assert after.consumer_free == (0 if before.consumer_may_wait else 1)
    assert (after.producer, after.consumer) == (before.producer, before.consumer)
    if before.producer_may_wait:
        assert run(NativeSteps(direct, queue, "other").get()) == before.messages[0]
        return "role kept: a producer may wait for room; after a get"
    if before.consumer_may_wait:
        run(NativeSteps(direct, queue, "other").put(b"for the consumer"))
        return "role kept: a consumer may wait for a message; after a put"
    return "works"


def table(backend: Valkey) -> str:
    """Return the table in Markdown. A row has all steps and states with the same outcome."""
    ward = Ward(backend)
    try:
        died = list(deaths(ward.direct))
        outcome_of = outcomes(ward, [death.queue for death in died])
    finally:
        ward.close()
    # By operation, step and outcome: the client's versions by state.
    found: dict[tuple[str, str, Outcome], dict[str, list[str]]] = {}
    for death in died:
        states = found.setdefault((death.operation, death.after, outcome_of[death.queue]), {})
        states.setdefault(death.state.name, []).append(death.version)
    lines = []
    for operation in OPERATIONS:
        lines += [
            f"\n### {operation.capitalize()}\n",
            "| the client died after | state of the queue | `doctor` reports | `--repair` | afterwards |",
            "|---|---|---|---|---|",
        ]
        rows: dict[tuple[str, Outcome], list[str]] = {}
        for (died_in, step, outcome), states in found.items():
            if died_in == operation:
                rows.setdefault((_describe(states, operation), outcome), []).append(step)
        lines += [
            f"| {' | '.join([', '.join(steps), states, *outcome])} |"
            for (states, outcome), steps in rows.items()
        ]
    return "\n".join(lines) + "\n"


def _describe(states: dict[str, list[str]], operation: str) -> str:
    possible = len(VERSIONS) if operation in IN_BOTH_VERSIONS else 1
    if len(states) == len(STATES) and all(len(versions) == possible for versions in states.values()):
        return "any"
    return "; ".join(
        name if len(versions) == possible else f"{name} ({versions[0]})" for name, versions in states.items()
    )


def main(document: Path) -> None:
    """Write the current table into the document."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Valkey(Path(folder))
        try:
            current = table(backend)
        finally:
            backend.stop()
    text = document.read_text(encoding="utf-8")
    document.write_text(text[: text.index(MARKER) + len(MARKER)] + current, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
