"""Every state in which a native client can die: what the doctor says, and what is true after its repair.

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
    """What has become of a queue in which a client died; as the table has it."""

    said: str
    done: str
    afterwards: str


def outcomes(ward: Ward, queues: Iterable[str]) -> dict[str, Outcome]:
    """Repair all queues at once, and see that each works; what has become of them.

    Raises AssertionError where anything is wrong.
    """
    before = {queue: Keys.read(ward.direct, queue) for queue in queues}
    told = ward.repair()
    found = {queue: _what_was_told(ward, queue, told.get(queue, Told())) for queue in before}
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
    return {queue: Outcome(*found[queue], afterwards[queue]) for queue in before}


def _what_was_told(ward: Ward, queue: str, told: Told) -> tuple[str, str]:
    """What the doctor said and did, by the queue's name where only that helps."""
    with about(queue):
        if not told.left:
            return told.in_words, ", ".join(told.done) or "nothing"
        assert [finding.problem for finding in told.left] == [LONE_LIST]
        assert not told.done
        by_name = ward.repair(named=queue)[queue]
        assert not by_name.left
        return LONE_LIST.name, f"nothing; where the queue is named: {', '.join(by_name.done)}"


def _after_repair(ward: Ward, queue: str, before: Keys) -> str:
    """Check what the repair has left; let what somebody may wait for come: had it lived, it would go on."""
    direct = ward.direct
    after = Keys.read(direct, queue)
    if before.bound is None:
        assert direct.keys(f"{PREFIX}:{queue}*") == []
        run(NativeSteps(direct, queue, "survivor").create(0))
        return "the queue is gone, and can be made anew"
    assert (after.messages, after.bound) == (before.messages, before.bound)
    assert after.producer_free == (0 if before.producer_may_wait else 1)
    assert after.consumer_free == (0 if before.consumer_may_wait else 1)
    assert (after.producer, after.consumer) == (before.producer, before.consumer)
    if before.producer_may_wait:
        assert run(NativeSteps(direct, queue, "other").get()) == before.messages[0]
        return "role kept, for a producer may wait for room; after a get"
    if before.consumer_may_wait:
        run(NativeSteps(direct, queue, "other").put(b"for the waiting"))
        return "role kept, for a consumer may wait for a message; after a put"
    return "works"


def table(backend: Valkey) -> str:
    """The table, in Markdown: steps and states of equal outcome together."""
    ward = Ward(backend)
    try:
        died = list(deaths(ward.direct))
        became = outcomes(ward, [death.queue for death in died])
    finally:
        ward.close()
    # By operation, step and outcome: the states, and for each the versions of the client.
    found: dict[tuple[str, str, Outcome], dict[str, list[str]]] = {}
    for death in died:
        states = found.setdefault((death.operation, death.after, became[death.queue]), {})
        states.setdefault(death.state.name, []).append(death.version)
    lines = []
    for operation in OPERATIONS:
        lines += [
            f"\n### {operation.capitalize()}\n",
            "| it died after | the queue was | `doctor` says | `--repair` | afterwards |",
            "|---|---|---|---|---|",
        ]
        rows: dict[tuple[str, Outcome], list[str]] = {}
        for (of, after, what), states in found.items():
            if of == operation:
                rows.setdefault((_in_words(states, operation), what), []).append(after)
        lines += [
            f"| {', '.join(after)} | {states} | {what.said} | {what.done} | {what.afterwards} |"
            for (states, what), after in rows.items()
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
    """Put the table into the document."""
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
