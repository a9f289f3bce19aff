"""The report: what came of a run, as text; and what of it must not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.causes import Incident, at_the_time, cause
from tests.chaos.evidence import follow
from tests.chaos.run import Outcome
from tests.support.ledger import Doubled, Event, Lost, Strange

_EXAMPLES = 20


def failures(outcome: Outcome) -> list[str]:
    """Why the run has failed; nothing where it has not."""
    ledger, wanted = outcome.ledger, outcome.settings
    unexplained = [duplicate for duplicate, incident in explain(outcome) if incident is None]
    found = [
        (len(ledger.lost()), "messages lost"),
        (len(ledger.strange), "strange messages"),
        (len(unexplained), "duplicates without a cause"),
        (len(outcome.journal.complaints), "complaints"),
        (len(outcome.left), "queues that were not drained"),
        (wanted.messages - ledger.acknowledged, "messages fewer than asked for"),
        (len(wanted.faults) - len(outcome.incidents), "faults fewer than asked for"),
    ]
    return [f"{count} {what}" for count, what in found if count > 0]


def explain(outcome: Outcome) -> list[tuple[Doubled, Incident | None]]:
    """Each duplicate and its cause; None where it has none."""
    return [
        (duplicate, cause(duplicate, outcome.incidents, outcome.settings.timeouts.proxy))
        for duplicate in outcome.ledger.doubled()
    ]


def lines(outcome: Outcome) -> Iterator[str]:
    """The report, to be printed."""
    ledger, journal = outcome.ledger, outcome.journal
    duplicates = explain(outcome)
    lost = ledger.lost()
    rate = ledger.acknowledged / outcome.seconds if outcome.seconds else 0.0
    pause = journal.longest
    yield f"acknowledged    {ledger.acknowledged}"
    yield f"received        {ledger.received}"
    yield f"unsure          {ledger.unsure}, of which {ledger.unsure_received} were received"
    yield f"duplicated      {len(duplicates)}"
    for name, count in Counter(_name(incident) for _, incident in duplicates).most_common():
        yield f"  {count:5}  {name}"
    yield f"lost            {len(lost)}"
    for queue, count in sorted(Counter(one.sent.queue for one in lost).items()):
        yield f"  {count:5}  {queue}"
    yield f"strange         {len(ledger.strange)}"
    yield f"faults          {len(outcome.incidents)}"
    for kind, count in sorted(Counter(incident.kind.name for incident in outcome.incidents).items()):
        yield f"  {count:5}  {kind}"
    yield f"hang-ups        {sum(journal.hang_ups.values())}"
    for text, count in sorted(journal.hang_ups.items()):
        yield f"  {count:5}  {text}"
    yield f"seconds         {outcome.seconds:.0f}"
    yield f"messages/s      {rate:.0f}"
    yield (
        f"longest pause   {pause.seconds:.1f} s, of {pause.by} ({pause.command}), "
        f"at {pause.when - outcome.began:.1f} s"
    )
    yield f"error replies   {sum(journal.errors.values())}"
    for text, count in sorted(journal.errors.items()):
        yield f"  {count:5}  {text}"
    yield from _details(outcome, lost, duplicates)


def _details(
    outcome: Outcome, lost: list[Lost], duplicates: list[tuple[Doubled, Incident | None]]
) -> Iterator[str]:
    unexplained = [duplicate for duplicate, incident in duplicates if incident is None]
    names = [one.message for one in lost[:_EXAMPLES]] + [one.message for one in unexplained[:_EXAMPLES]]
    names += [_begin(one) for one in outcome.ledger.strange[:_EXAMPLES]]
    steps = follow(names, outcome.written)
    yield from _examples("lost", [_lost(one, outcome, steps) for one in lost])
    yield from _examples(
        "duplicated without a cause", [_unexplained(one, outcome, steps) for one in unexplained]
    )
    for incident in sorted({incident for _, incident in duplicates if incident}, key=lambda one: one.began):
        found = [_duplicate(duplicate, outcome) for duplicate, its in duplicates if its == incident]
        yield from _examples(f"duplicated by {_incident(incident, outcome)}", found)
    yield from _examples("strange", [_strange(one, outcome, steps) for one in outcome.ledger.strange])
    yield from _examples("complaints", outcome.journal.complaints)
    yield from _examples("not drained", [f"{queue}: {length}" for queue, length in outcome.left.items()])


def _name(incident: Incident | None) -> str:
    return "without a cause" if incident is None else incident.kind.name


def _examples(title: str, found: Sequence[str]) -> Iterator[str]:
    if found:
        yield ""
        yield f"{title}:"
        for text in found[:_EXAMPLES]:
            yield f"  {text}"
        if len(found) > _EXAMPLES:
            yield f"  and {len(found) - _EXAMPLES} more"


def _lost(one: Lost, outcome: Outcome, steps: Mapping[bytes, list[str]]) -> str:
    put = one.sent
    text = (
        f"{one.message.decode()}: put into {put.queue} by {put.by} through {put.proxy} at "
        f"{put.when - outcome.began:.2f} s"
    )
    return text + _around(put.when, put.when, outcome) + _steps(steps.get(one.message, []))


def _unexplained(one: Doubled, outcome: Outcome, steps: Mapping[bytes, list[str]]) -> str:
    around = _around(one.receipts[0].when, one.receipts[-1].when, outcome)
    return _duplicate(one, outcome) + around + _steps(steps.get(one.message, []))


def _strange(one: Strange, outcome: Outcome, steps: Mapping[bytes, list[str]]) -> str:
    flags = "" if one.flags is None else f" with flags {one.flags}"
    around = _around(one.receipt.when, one.receipt.when, outcome)
    text = f"{one.data[:60]!r}{flags}, {_receipt(one.receipt, outcome)}"
    return text + around + _steps(steps.get(_begin(one), []))


def _begin(one: Strange) -> bytes:
    """Its name, where it has one."""
    return one.data.partition(b":")[0]


def _duplicate(one: Doubled, outcome: Outcome) -> str:
    return f"{one.message.decode()}: {'; '.join(_receipt(receipt, outcome) for receipt in one.receipts)}"


def _steps(steps: list[str]) -> str:
    return "".join(f"\n      backend: {step}" for step in steps)


def _receipt(receipt: Event, outcome: Outcome) -> str:
    return (
        f"received from {receipt.queue} by {receipt.by} through {receipt.proxy} at "
        f"{receipt.when - outcome.began:.2f} s"
    )


def _around(began: float, ended: float, outcome: Outcome) -> str:
    found = at_the_time(began, ended, outcome.incidents)
    if not found:
        return "; nothing was broken then"
    return "; broken then: " + ", ".join(_incident(incident, outcome) for incident in found)


def _incident(incident: Incident, outcome: Outcome) -> str:
    proxy = f" of {incident.proxy}" if incident.proxy else ""
    return (
        f"{incident.kind.name}{proxy} {incident.began - outcome.began:.2f} to "
        f"{incident.ended - outcome.began:.2f} s"
    )
