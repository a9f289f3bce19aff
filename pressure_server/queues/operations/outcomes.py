"""Outcomes of puts with a transaction id, which are done once however often they are sent. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from pressure_server.queues.policy import Policy

DONE, UNKNOWN, FORGOTTEN = b"done", b"unknown", b"forgotten"


def first_word(policy: Policy, transaction: bytes) -> bytes:
    """Return what a put with the option `once` has before its messages."""
    return b"%d %d %b" % (policy.outcome_ttl, policy.max_outcomes, transaction)


class Outcome(NamedTuple):
    """What became of a put with a transaction id.

    DONE: it has been done; if the queue is a log, its first message is at `offset`. UNKNOWN: it has not
    been done. FORGOTTEN: it is not among those that the queue remembers; it has not been done if it was sent
    less than `seconds` ago.
    """

    state: bytes
    offset: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, reply: list[Any]) -> Outcome:
        """Return the outcome that a reply of OUTCOME describes."""
        state = reply[0]
        if state == DONE:
            return cls(state, int(reply[1]) if reply[1] else None)
        return cls(state, seconds=reply[1] / 1000 if state == FORGOTTEN else None)
