"""The table of all states in which a native client can die: the doctor's report, and the repair.

`python -m tests.support.repair_table docs/guides/repair.md` writes the table into the document.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pressure_server.queues.repair.problem import LONE_LIST
from tests.support.deaths import IN_BOTH_VERSIONS, OPERATIONS, PREFIX, STATES, VERSIONS, deaths
from tests.support.native import NativeSteps, run
from tests.support.programs import Valkey
from tests.support.ward import Keys, Told, Ward, about

MARKER = "<!-- made by `python -m tests.support.repair_table docs/guides/repair.md` -->\n"


@dataclass(frozen=True)
class Outcome:
    """The last three columns of a row: the doctor's report, its repairs, and the queue after them."""

    reported: str
    done: str
    afterwards: str


def outcomes(ward: Ward, queues: Iterable[str]) -> dict[str, Outcome]:
    """Repair all queues together, and return their outcomes. Raise AssertionError if one does not work."""
    before = {queue: Keys.read(ward.direct, queue) for queue in queues}
    told = ward.repair()
    reports = {queue: _report(ward, queue, told.get(queue, Told())) for queue in before}
    assert not ward.examine()
    afterwards = {}
    for queue, keys in before.items():
        with about(queue):
            afterwards[queue] = _after_repair(ward, queue, keys)
    later = ward.repair()
    kept = {queue for queue, keys in before.items() if keys.producer_may_wait or keys.consumer_may_wait}
    assert set(later) == kept
    for queue in kept:
        with about(queue):
            assert not later[queue].left
            afterwards[queue] += f" {later[queue].in_words}: repaired, works"
    ward.assert_all_work(before)
    return {queue: Outcome(*reports[queue], afterwards[queue]) for queue in before}


def _report(ward: Ward, queue: str, told: Told) -> tuple[str, str]:
    """Return the doctor's report and repairs. Repair a lone list by its name, as the doctor requires."""
    with about(queue):
        if not told.left:
            return told.in_words, ", ".join(told.done) or "nothing"
        assert [finding.problem for finding in told.left] == [LONE_LIST]
        assert not told.done
        by_name = ward.repair(named=queue)[queue]
        assert not by_name.left
        return LONE_LIST.name, f"nothing; if the queue is named: {', '.join(by_name.done)}"


def _after_repair(ward: Ward, queue: str, before: Keys) -> str:
    """Check the keys, and describe the queue. Put or get for a client that may be waiting."""
    direct = ward.direct
    after = Keys.read(direct, queue)
    if before.bound is None:
        assert direct.keys(f"{PREFIX}:{queue}*") == []
        run(NativeSteps(direct, queue, "survivor").create(0))
        return "the queue is gone, and can be created again"
    assert (after.messages, after.bound) == (before.messages, before.bound)
    assert after.producer_free == (0 if before.producer_may_wait else 1)
    assert after.consumer_free == (0 if before.consumer_may_wait else 1)
    assert (after.producer, after.consumer) == (before.producer, before.consumer)
    if before.producer_may_wait:
        assert run(NativeSteps(direct, queue, "other").get()) == before.messages[0]
        return "role kept, because a producer may be waiting for room; after a get"
    if before.consumer_may_wait:
        run(NativeSteps(direct, queue, "other").put(b"more"))
        return "role kept, because a consumer may be waiting for a message; after a put"
    return "works"


def table(backend: Valkey) -> str:
    """Return the table in Markdown. Steps and states with the same outcome share a row."""
    ward = Ward(backend)
    try:
        died = list(deaths(ward.direct))
        found = outcomes(ward, [death.queue for death in died])
    finally:
        ward.close()
    # By operation, last command and outcome: the states, and for each the versions of the client.
    grouped: dict[tuple[str, str, Outcome], dict[str, list[str]]] = {}
    for death in died:
        states = grouped.setdefault((death.operation, death.after, found[death.queue]), {})
        states.setdefault(death.state.name, []).append(death.version)
    lines = []
    for operation in OPERATIONS:
        lines += [
            f"\n### {operation.capitalize()}\n",
            "| it died after | the queue was | `doctor` says | `--repair` | afterwards |",
            "|---|---|---|---|---|",
        ]
        rows: dict[tuple[str, Outcome], list[str]] = {}
        for (its_operation, after, outcome), states in grouped.items():
            if its_operation == operation:
                rows.setdefault((_in_words(states, operation), outcome), []).append(after)
        lines += [
            f"| {', '.join(after)} | {states} | {outcome.reported} | {outcome.done} | {outcome.afterwards} |"
            for (states, outcome), after in rows.items()
        ]
    return "\n".join(lines) + "\n"


def _in_words(states: dict[str, list[str]], operation: str) -> str:
    possible = len(VERSIONS) if operation in IN_BOTH_VERSIONS else 1
    if len(states) == len(STATES) and all(len(versions) == possible for versions in states.values()):
        return "any"
    return "; ".join(
        name if len(versions) == possible else f"{name} ({versions[0]})" for name, versions in states.items()
    )


def main(document: Path) -> None:
    """Write the table into the document."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Valkey(Path(folder))
        try:
            made = table(backend)
        finally:
            backend.stop()
    text = document.read_text(encoding="utf-8")
    document.write_text(text[: text.index(MARKER) + len(MARKER)] + made, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
