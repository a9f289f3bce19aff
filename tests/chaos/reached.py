"""The rare states that servers distinguish, and how often a run has reached each.

They are counted in the servers' logs and in the error replies of clients.
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.chaos.backends import ClusterBackend, FailoverBackend, MakeBackend, SingleBackend
from tests.chaos.journal import Journal


class State(NamedTuple):
    """A state, the backends that lead to it, and what a line of a log or an error reply then says."""

    name: str
    backend: type
    text: re.Pattern[str]


STATES = [
    State(name, backend, re.compile(text))
    for name, backend, text in (
        ("a connection to the backend ended", object, r"the connection to \S+ was lost \("),
        ("the backend did not answer in time", object, r"was lost \(it has not answered for"),
        ("the backend was back", object, r"is back after"),
        ("a dead server's messages went back", object, r"has died: \d[\d ,]* messages?, not"),
        ("a client of ACK NEXT has left", object, "unacknowledged message of queue"),
        ("a wait ended by a close", object, "^CLOSED queue"),
        ("a put into a full queue", object, "^FULL queue"),
        ("a request held for too long", SingleBackend, "^BACKEND the backend is away"),
        ("an unknown outcome", SingleBackend, "this may or may not have been done"),
        ("the backend was loading", SingleBackend, "LOADING"),
        ("a change that no replica confirmed", FailoverBackend, "not known to be safe"),
        ("too few replicas", FailoverBackend, "needs . connected replicas"),
        ("queues on another node", FailoverBackend, r"(is|are) on \S+ now, no longer on"),
        ("a master that lacks answered calls", FailoverBackend, "lacks the last"),
        ("a slot half moved", ClusterBackend, "are being moved to another node"),
        ("a redirection", ClusterBackend, r"was lost \(MOVED "),
    )
]


def expected(make: MakeBackend) -> list[str]:
    """Return the names of the states to which this backend leads."""
    made = make.func if isinstance(make, partial) else make
    assert isinstance(made, type)
    return [state.name for state in STATES if issubclass(made, state.backend)]


def reached(folder: Path, journal: Journal) -> Counter[str]:
    """Return how often each state is in the servers' logs in the folder and in the clients' error replies."""
    found: Counter[str] = Counter()
    lines = Counter(line for log in folder.glob("proxy-*.log") for line in log.read_text().splitlines())
    for line, times in (lines + journal.errors).items():
        for state in STATES:
            if state.text.search(line):
                found[state.name] += times
    return found
