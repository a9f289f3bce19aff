"""Diagnosis: finds the problems of a queue by comparing two snapshots of it.

Pure. A slow or suspended client looks the same as a dead one, so the caller chooses the time between the
snapshots. docs/guides/repair.md has the reasoning, and every state in which a native client can die.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pressure_server.queues.names import CONSUMER_FREE, NOT_FULL, PRODUCER_FREE
from pressure_server.queues.repair import problems
from pressure_server.queues.repair.problems import Problem
from pressure_server.queues.repair.queue_snapshot import QueueSnapshot, Role
from pressure_server.text import counted, printable


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a queue, and the evidence for it, in words."""

    problem: Problem
    evidence: str


def diagnose(before: QueueSnapshot, after: QueueSnapshot) -> list[Finding]:
    """Return the problems that both snapshots show, except those that a live client is about to end."""
    return [
        Finding(problem, evidence)
        for problem, rule in _rules(before, after)
        if (evidence := rule(before, after))
    ]


def suspicions(snapshot: QueueSnapshot) -> list[Finding]:
    """Return the problems that one snapshot shows. A live client is about to end most of them."""
    return diagnose(snapshot, snapshot)


# A rule returns the evidence for a problem, in words; "" if the snapshots do not show it.
_Rule = Callable[[QueueSnapshot, QueueSnapshot], str]
_Rules = Sequence[tuple[Problem, _Rule]]


def _rules(before: QueueSnapshot, after: QueueSnapshot) -> _Rules:
    """Return the rules for this state of the queue; none if the queue was in another state before."""
    if after.bound is None:
        return _WITHOUT_A_QUEUE if before.view == after.view else ()
    if before.bound is None:
        return ()
    return _NEVER_USED if after.is_unused and _half_created(before, after) else _RULES


def _half_created(before: QueueSnapshot, after: QueueSnapshot) -> str:
    pushed = (after.producer.free, after.consumer.free, after.not_full)
    # Create pushes the tokens in this order.
    if before.view != after.view or pushed not in ((0, 0, 0), (1, 0, 0), (1, 1, 0)):
        return ""
    names = (PRODUCER_FREE, CONSUMER_FREE, NOT_FULL)
    missing = [printable(name) for name, tokens in zip(names, pushed, strict=True) if not tokens]
    return f"the queue has a bound, but {_listed(missing)} never had a token, and no client has used it"


def _stuck(pick: Callable[[QueueSnapshot], Role]) -> _Rule:
    def rule(before: QueueSnapshot, after: QueueSnapshot) -> str:
        earlier, role = pick(before), pick(after)
        if earlier.view != role.view or not role.is_held:
            return ""
        if not before.could_go_on(earlier) or not after.could_go_on(role):
            return ""
        return f"the {role.name} role is held{_by(role)}, but its holder is inactive; {_why(role, after)}"

    return rule


def _why(role: Role, queue: QueueSnapshot) -> str:
    """Return why the holder cannot be waiting."""
    if role.is_held and role.holder is None:
        return "it has not written its name, as clients do before they wait"
    if queue.closed:
        return "the queue is closed, so it is not waiting"
    if role.name == "producer":
        return f"there is a {printable(NOT_FULL)} token, so it is not waiting for room"
    return f"there {_are(queue.listed, 'message')}, so it is not waiting for a message"


def _parked(pick: Callable[[QueueSnapshot], Role]) -> _Rule:
    def rule(before: QueueSnapshot, after: QueueSnapshot) -> str:
        earlier, role = pick(before), pick(after)
        if earlier.view != role.view or not role.parked or role.free:
            return ""
        # In its turn a server waits for the same as a native client, but does not write its name before.
        if not before.is_condition_met(earlier) or not after.is_condition_met(role):
            return ""
        return (
            f"the {role.name}'s token is parked for the turn of a pressure-server, but that server is "
            f"inactive; {_why(role, after)}"
        )

    return rule


def _no_not_full(before: QueueSnapshot, after: QueueSnapshot) -> str:
    if after.not_full or not after.has_room or before.view != after.view:
        return ""
    held = f"; the producer role is held{_by(after.producer)}" if after.producer.is_held else ""
    return f"there is room, but no {printable(NOT_FULL)} token{held}"


def _too_many_in_a_role(before: QueueSnapshot, after: QueueSnapshot) -> str:
    lists = zip((PRODUCER_FREE, CONSUMER_FREE), before.roles, after.roles, strict=True)
    names = [printable(suffix) for suffix, then, now in lists if then.tokens > 1 and now.tokens > 1]
    return f"{_listed(names)} {'has' if len(names) == 1 else 'have'} more than one token" if names else ""


def _too_many_not_full(before: QueueSnapshot, after: QueueSnapshot) -> str:
    if before.not_full <= 1 or after.not_full <= 1:
        return ""
    return f"{printable(NOT_FULL)} has more than one token"


def _not_full_on_full(before: QueueSnapshot, after: QueueSnapshot) -> str:
    def is_so(queue: QueueSnapshot) -> bool:
        return queue.not_full > 0 and not queue.has_room and queue.consumer.free > 0

    if not is_so(before) or not is_so(after):
        return ""
    return f"the queue is full ({after.length} of {after.bound}), but there is a {printable(NOT_FULL)} token"


def _statistics(before: QueueSnapshot, after: QueueSnapshot) -> str:
    if after.invalid and after.invalid == before.invalid:
        names = _listed([name.decode() for name in after.invalid])
        return f"invalid value in {names}: not a number, or too large"
    # A client that holds a role may be about to count.
    lasts = before.view == after.view or (before.is_at_rest and after.is_at_rest)
    if not after.uncounted or after.uncounted != before.uncounted or not lasts:
        return ""
    difference = after.producer.messages - after.consumer.messages
    return f"produced - consumed is {difference}, but there {_are(after.length + after.held, 'message')}"


def _left_behind(_before: QueueSnapshot, after: QueueSnapshot) -> str:
    if not after.keys or not all(key.startswith(b":ext:") for key in after.keys):
        return ""
    return f"the queue does not exist, but keys added by pressure-server do: {_suffixes(after.keys)}"


def _lone_list(_before: QueueSnapshot, after: QueueSnapshot) -> str:
    if after.keys != (b"",):
        return ""
    return f"there is a list with {counted(after.length, 'message')}, but no other key of a queue"


def _half_deleted(*, awake: bool) -> _Rule:
    """Return a rule. `awake`: all tokens are there, so no client waits, but the Delete has not continued."""

    def rule(before: QueueSnapshot, after: QueueSnapshot) -> str:
        tokens = (after.closed, after.not_full, after.producer.free, after.consumer.free)
        if not after.keys or _left_behind(before, after) or _lone_list(before, after) or all(tokens) != awake:
            return ""
        lost = f", with {counted(after.length, 'message')}" if after.length else ""
        return f"the queue does not exist, but keys of it do{lost}: {_suffixes(after.keys)}"

    return rule


_RULES: _Rules = (
    (problems.PRODUCER_STUCK, _stuck(attrgetter("producer"))),
    (problems.PRODUCER_PARKED, _parked(attrgetter("producer"))),
    (problems.CONSUMER_STUCK, _stuck(attrgetter("consumer"))),
    (problems.CONSUMER_PARKED, _parked(attrgetter("consumer"))),
    (problems.NO_NOT_FULL, _no_not_full),
    (problems.TOO_MANY_IN_A_ROLE, _too_many_in_a_role),
    (problems.TOO_MANY_NOT_FULL, _too_many_not_full),
    (problems.NOT_FULL_ON_FULL, _not_full_on_full),
    (problems.STATISTICS, _statistics),
)
_NEVER_USED: _Rules = ((problems.HALF_CREATED, _half_created),)
_WITHOUT_A_QUEUE: _Rules = (
    (problems.LEFT_BEHIND, _left_behind),
    (problems.LONE_LIST, _lone_list),
    (problems.HALF_DELETED, _half_deleted(awake=False)),
    (problems.DELETE_ABANDONED, _half_deleted(awake=True)),
)


def _by(role: Role) -> str:
    return "" if role.holder is None else f" by '{printable(role.holder)}'"


def _suffixes(keys: Sequence[bytes]) -> str:
    return _listed([printable(key) or "the list of messages" for key in keys])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _are(count: int, what: str) -> str:
    return f"{'is' if count == 1 else 'are'} {counted(count, what) if count else f'no {what}s'}"
