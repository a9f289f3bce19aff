"""The report of a run as text, and the reasons for which a run has failed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from tests.chaos.causes import Incident, cause, cause_of_refusal, near, seconds_before_cut
from tests.chaos.evidence import follow
from tests.chaos.ledger import Refusal
from tests.chaos.reached import expected
from tests.chaos.run import Outcome
from tests.support.ledger import Doubled, Event, Lost, Strange

_EXAMPLES = 20

_StepTexts = Mapping[bytes, list[str]]


def failures(outcome: Outcome, *, all_reached: bool = False) -> list[str]:
    """Return why the run has failed; nothing if it has not. With `all_reached`, no rare state may be 0."""
    ledgers, logs, wanted = outcome.ledgers, outcome.logs.values(), outcome.settings
    unexplained = [duplicate for duplicate, incident in explain(outcome) if incident is None]
    # Changes that are lost are made again: with the same ids, offsets and numbers.
    contradictions = [
        (len(wrong_ids(outcome)), "wrong ids of jobs"),
        (sum(len(log.wrong_offsets) for log in logs), "wrong offsets"),
        (sum(len(log.repeated_deliveries) for log in logs), "deliveries with the number of another"),
        (sum(len(log.disordered) for log in logs), "first deliveries out of order"),
        (len(unexplained_refusals(outcome)), "reservations that ended early without a cause"),
        (len(outcome.journal.contradictions), "contradictions"),
    ]
    lost, _ = lost_messages(outcome)
    found = [
        (len(lost), "messages lost"),
        (sum(len(ledger.strange) for ledger in ledgers), "strange messages"),
        (len(unexplained), "duplicates without a cause"),
        *(() if wanted.may_lose else contradictions),
        (len(outcome.journal.complaints), "complaints"),
        (len(outcome.left), "queues that were not drained"),
        (wanted.messages - outcome.acknowledged, "messages fewer than asked for"),
        (len(wanted.faults) + bool(wanted.stays) - len(outcome.incidents), "faults fewer than asked for"),
        (all_reached * len(missing(outcome)), "rare states that were not reached"),
    ]
    return [f"{count} {what}" for count, what in found if count > 0]


def missing(outcome: Outcome) -> list[str]:
    """Return the rare states that the run could reach, and has not."""
    return [state for state in expected(outcome.settings.backend) if not outcome.reached[state]]


def lost_messages(outcome: Outcome) -> tuple[list[Lost], list[float]]:
    """Return the lost messages that no power cut explains.

    For each of the others, return how many seconds before the cut it was acknowledged.
    """
    lost: list[Lost] = []
    seconds: list[float] = []
    for one in [one for ledger in outcome.ledgers for one in ledger.lost()]:
        before_cut = seconds_before_cut(one.sent.when, one.acknowledged, outcome.cuts)
        if outcome.settings.may_lose and before_cut < inf and before_cut <= outcome.settings.may_lose:
            seconds.append(before_cut)
        else:
            lost.append(one)
    return lost, seconds


def explain(outcome: Outcome) -> list[tuple[Doubled, Incident | None]]:
    """Return each duplicate with its cause, or None. A job that workers have ended twice has none.

    Power cuts that may lose changes are a cause of that, too.
    """
    timeout, may_lose = outcome.settings.timeouts.proxy, outcome.settings.may_lose
    return [
        (
            duplicate,
            None
            if ledger.ends[duplicate.message] > 1 and not may_lose
            else cause(duplicate, outcome.incidents, timeout, may_lose),
        )
        for ledger in outcome.ledgers
        for duplicate in ledger.doubled()
    ]


def wrong_ids(outcome: Outcome) -> list[str]:
    """Return the wrong ids of jobs, with those that queues of two ledgers have given."""
    found: list[str] = []
    seen: dict[int, int] = {}
    for number, ledger in enumerate(outcome.ledgers):
        found += ledger.wrong_ids
        for job, name in ledger.ids.items():
            other = seen.setdefault(job, number)
            if other != number:
                its = outcome.ledgers[other].ids[job].decode()
                found.append(f"{job} is the id of {its}, and in another queue of {name.decode()}")
    return found


def unexplained_refusals(outcome: Outcome) -> list[Refusal]:
    """Return the reservations that ended early without a cause."""
    return [
        refusal
        for ledger in outcome.ledgers
        for refusal in ledger.refusals
        if refusal.is_detached
        or cause_of_refusal(refusal.reserved, refusal.refused, outcome.incidents) is None
    ]


def lines(outcome: Outcome) -> Iterator[str]:
    """Yield the lines of the report."""
    ledgers, journal = outcome.ledgers, outcome.journal
    duplicates = explain(outcome)
    lost, may_be_lost = lost_messages(outcome)
    rate = outcome.acknowledged / outcome.seconds if outcome.seconds else 0.0
    pause = journal.longest_pause
    queues = (outcome.ledger, outcome.once)
    yield f"acknowledged    {outcome.acknowledged}"
    yield f"received        {sum(ledger.received for ledger in queues)}, without those in logs"
    unsure, arrived = (
        sum(getattr(ledger, name) for ledger in ledgers) for name in ("unsure", "unsure_received")
    )
    yield f"unsure          {unsure}, of which {arrived} were received"
    causes = (incident.kind.name if incident else "without a cause" for _, incident in duplicates)
    yield from _counts("duplicated", causes)
    yield from _counts("lost", (one.sent.queue for one in lost))
    if may_be_lost:
        yield (
            f"lost by cuts    {len(may_be_lost)}, acknowledged at most {max(may_be_lost):.2f} s before one"
        )
    yield f"put as jobs     {sum(ledger.jobs for ledger in queues)}"
    yield f"put with an id  {outcome.once.acknowledged}, and {outcome.in_logs} into logs"
    yield from _counts("sent again", journal.resends.elements())
    yield from _logs(outcome)
    yield f"doubtful        {sum(ledger.doubtful for ledger in ledgers)}"
    yield from _counts("events of jobs", journal.jobs.elements())
    yield f"strange         {sum(len(ledger.strange) for ledger in ledgers)}"
    yield from _counts("faults", (incident.kind.name for incident in outcome.incidents))
    yield from _counts("hang-ups", journal.hang_ups.elements())
    yield f"seconds         {outcome.seconds:.0f}"
    yield f"messages/s      {rate:.0f}"
    yield (
        f"longest pause   {pause.seconds:.1f} s, of {pause.by} ({pause.command}), "
        f"at {pause.when - outcome.began:.1f} s"
    )
    yield from _counts("error replies", journal.errors.elements())
    yield from _counts("rare states", outcome.reached.elements())
    yield from (f"      0  {state}" for state in missing(outcome))
    yield from (f"while it stayed, {line}" for line in outcome.said)
    yield from _details(outcome, lost, duplicates)


def _logs(outcome: Outcome) -> Iterator[str]:
    yield f"logs            {len(outcome.logs)}"
    for log in outcome.logs.values():
        yield (
            f"  {log.acknowledged:5}  messages in {log.name}; READ delivered {log.first_deliveries} for the "
            f"first time, {log.later_deliveries} again"
        )
        for group, ledger in log.groups.items():
            yield f"  {ledger.received:5}  received from {log.queue_of(group)}"


def _counts(title: str, found: Iterable[str]) -> Iterator[str]:
    counts = Counter(found)
    yield f"{title:15} {counts.total()}"
    for text, count in sorted(counts.items()):
        yield f"  {count:5}  {text}"


def _details(
    outcome: Outcome, lost: list[Lost], duplicates: list[tuple[Doubled, Incident | None]]
) -> Iterator[str]:
    unexplained = [duplicate for duplicate, incident in duplicates if incident is None]
    strange = [one for ledger in outcome.ledgers for one in ledger.strange]
    names = [one.message for one in lost[:_EXAMPLES]] + [one.message for one in unexplained[:_EXAMPLES]]
    names += [_name_in(one) for one in strange[:_EXAMPLES]]
    refusals = unexplained_refusals(outcome)
    names += [one.message for one in refusals[:_EXAMPLES]]
    steps = follow(names, outcome.append_only_files)
    yield from _examples("lost", [_lost(one, outcome, steps) for one in lost])
    yield from _examples(
        "duplicated without a cause", [_unexplained(one, outcome, steps) for one in unexplained]
    )
    for incident in sorted({incident for _, incident in duplicates if incident}, key=lambda one: one.began):
        explained = [_duplicate(one, outcome) for one, its_cause in duplicates if its_cause == incident]
        yield from _examples(f"duplicated by {_incident(incident, outcome)}", explained)
    yield from _examples("strange", [_strange(one, outcome, steps) for one in strange])
    yield from _examples("wrong ids of jobs", wrong_ids(outcome))
    for log in outcome.logs.values():
        yield from _examples(f"wrong offsets in {log.name}", log.wrong_offsets)
        yield from _examples(f"deliveries of {log.name} with the number of another", log.repeated_deliveries)
        yield from _examples(f"first deliveries of {log.name} out of order", log.disordered)
    yield from _examples(
        "reservations that ended early without a cause", [_refusal(one, outcome, steps) for one in refusals]
    )
    yield from _examples("complaints", outcome.journal.complaints)
    yield from _examples("contradictions", outcome.journal.contradictions)
    yield from _examples("not drained", [f"{queue}: {length}" for queue, length in outcome.left.items()])


def _examples(title: str, found: Sequence[str]) -> Iterator[str]:
    if found:
        yield ""
        yield f"{title}:"
        for text in found[:_EXAMPLES]:
            yield f"  {text}"
        if len(found) > _EXAMPLES:
            yield f"  and {len(found) - _EXAMPLES} more"


def _lost(one: Lost, outcome: Outcome, steps: _StepTexts) -> str:
    put = one.sent
    return (
        f"{one.message.decode()}: put into {put.queue} by {put.by} through {put.proxy} at "
        f"{put.when - outcome.began:.2f} s, acknowledged at {one.acknowledged - outcome.began:.2f} s"
        f"{_context(one.message, put, put._replace(when=one.acknowledged), outcome, steps)}"
    )


def _unexplained(one: Doubled, outcome: Outcome, steps: _StepTexts) -> str:
    context = _context(one.message, one.receipts[0], one.receipts[-1], outcome, steps)
    return _duplicate(one, outcome) + context


def _strange(one: Strange, outcome: Outcome, steps: _StepTexts) -> str:
    flags = "" if one.flags is None else f" with flags {one.flags}"
    context = _context(_name_in(one), one.receipt, one.receipt, outcome, steps)
    return f"{one.data[:60]!r}{flags}, {_receipt(one.receipt, outcome)}{context}"


def _refusal(one: Refusal, outcome: Outcome, steps: _StepTexts) -> str:
    detached = ", detached" if one.is_detached else ""
    context = _context(one.message, one.reserved, one.refused, outcome, steps)
    return (
        f"{one.message.decode()} of {one.reserved.queue}: reserved by {one.reserved.by} through "
        f"{one.reserved.proxy} at {one.reserved.when - outcome.began:.2f} s{detached}; {one.event} refused "
        f"at {one.refused.when - outcome.began:.2f} s{context}"
    )


def _name_in(one: Strange) -> bytes:
    """Return the name that the message begins with, if it has one."""
    return one.data.partition(b":")[0]


def _duplicate(one: Doubled, outcome: Outcome) -> str:
    return f"{one.message.decode()}: {'; '.join(_receipt(receipt, outcome) for receipt in one.receipts)}"


def _receipt(receipt: Event, outcome: Outcome) -> str:
    return (
        f"received from {receipt.queue} by {receipt.by} through {receipt.proxy} at "
        f"{receipt.when - outcome.began:.2f} s"
    )


def _context(name: bytes, first: Event, last: Event, outcome: Outcome, steps: _StepTexts) -> str:
    """Return what was broken between the events, and the backend's steps that touched the message."""
    broken = ", ".join(
        _incident(incident, outcome) for incident in near(first.when, last.when, outcome.incidents)
    )
    text = f"; broken then: {broken}" if broken else "; nothing was broken then"
    return text + "".join(f"\n      backend: {step}" for step in steps.get(name, []))


def _incident(incident: Incident, outcome: Outcome) -> str:
    proxy = f" of {incident.proxy}" if incident.proxy else ""
    return (
        f"{incident.kind.name}{proxy} {incident.began - outcome.began:.2f} to "
        f"{incident.ended - outcome.began:.2f} s"
    )
