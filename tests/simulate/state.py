"""Compares what the backend has with the reference, where one command is done at a time."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any

from tests.simulate.native import Natives
from tests.simulate.stand import Keys
from tests.support.reference.jobs import BURIED, RESERVED, STATES, JobQueue
from tests.support.reference.log import Log
from tests.support.reference.queue import ERROR, Queue


def difference_in_keys(queues: Mapping[str, JobQueue], keys: dict[str, Keys]) -> str:
    """Return how the keys of the queues differ, or nothing."""
    for name, found in keys.items():
        queue = queues[name]
        if not found.queue.exists and not queue.exists:
            continue
        states = {state: [job.id for job in queue.in_state(state)] for state in STATES}
        found.states[RESERVED].sort()
        pairs = {
            "exists": (found.queue.exists, queue.exists),
            "is of jobs": (found.has_jobs, queue.has_jobs),
            "messages": (found.queue.messages, queue.messages),
            "closed": (found.queue.is_closed, queue.is_closed),
            "states": (found.states, states),
            "jobs": (found.jobs, {job.id: job.message for job in queue.jobs.values()}),
            "counters": (found.queue.counters, queue.counters),
        }
        for what, (is_, should_be) in pairs.items():
            if is_ != should_be:
                return f"{name}: {what}: {is_} should be {should_be}"
    return ""


def difference_in_list(
    queue: Queue, found: Queue, servers: Sequence[bytes], undefined: Collection[str]
) -> str:
    """Return which keys of the protocol differ, or nothing. `servers` are the identities of the servers."""
    expected = copy(queue)
    expected.tokens = copy(queue.tokens)
    if not queue.exists:
        expected.overflow, expected.counters = ERROR, replace(queue.counters, dropped=0)
        expected.max_bytes = 0
    # A server that has much of the mirror to make notes itself as the producer, even if nothing fitted.
    if found.producer == queue.actor in servers:
        expected.producer = found.producer
    # A second token does no harm to a queue that is never full; native Deletes push one.
    if undefined or (expected.tokens.not_full and found.tokens.not_full):
        expected.tokens.not_full = found.tokens.not_full
    for one in fields(Queue):
        is_, should_be = getattr(found, one.name), getattr(expected, one.name)
        if one.compare and is_ != should_be:
            return f"{one.name}: {is_} should be {should_be}"
    return ""


def difference_in_tokens(queues: Mapping[str, JobQueue], keys: dict[str, Keys], natives: Natives) -> str:
    """Return which tokens and statistics are wrong although no native operation has begun, or nothing."""
    for name, found in keys.items() if not natives else ():
        if not found.queue.exists or name in natives.undefined:
            continue
        queue, tokens, counters = queues[name], found.queue.tokens, found.queue.counters
        left = found.queue.messages + (list(found.jobs.values()) if queue.has_jobs else [])
        if tokens.not_full == int(queue.has_room):
            natives.tolerated.discard(name)
        is_right = (
            counters.produced - counters.consumed == len(left)
            and counters.produced_bytes - counters.consumed_bytes == sum(map(len, left))
            and (tokens.producer_free, tokens.consumer_free) == (1, 1)
            and (name in natives.tolerated or tokens.not_full == int(queue.has_room))
        )
        if not is_right:
            return f"{name}: {tokens} and {counters}, with {len(left)} messages"
    return ""


def difference_in_groups(log: Log, told: Any, pending: dict[str, Any], messages: list[bytes]) -> str:
    """Return how a log or its groups differ, or nothing. `told` and `pending` are replies."""
    if messages != log.messages:
        return f"the log has {messages}, should have {log.messages}"
    described = {}
    for one in told:
        name, *figures = one[1::2]
        described[name.decode()] = figures
    expected = {
        name: [
            group.passed, group.lag, *(len(group.in_state(one)) for one in (RESERVED, BURIED)), group.missed
        ]
        for name, group in log.groups.items()
    }  # fmt: skip
    if described != expected:
        return f"groups (passed, lag, reserved, buried, missed): {described} should be {expected}"
    for name, group in log.groups.items():
        found = []
        for first, last, offset, consumer, left, deliveries in pending[name]:
            if not 0 < left <= 60_000:
                return f"{name}: {left} milliseconds are left"
            some = range(last - first + 1)
            found += [(first + at, offset + at, consumer.decode(), deliveries) for at in some]
        jobs = group.in_state(RESERVED)
        if sorted(found) != [(job.id, job.offset, job.owner, job.counts["reserves"]) for job in jobs]:
            return f"{name}: pending are {sorted(found)}, should be {jobs}"
    return ""
