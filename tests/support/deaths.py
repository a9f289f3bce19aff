"""Dead native clients: a queue for each state in which a client of either version can stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.native import VERSIONS, NativeError, NativeSteps, Steps, run
from tests.support.programs import Client

PREFIX = "__pressure__"
SUFFIXES = (
    "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free", ":not_full", ":closed",
    ":stats:produced_messages", ":stats:produced_bytes", ":stats:consumed_messages", ":stats:consumed_bytes",
)  # fmt: skip


def copy_queue(direct: Client, queue: str, to: str) -> str:
    """Copy all keys of a queue to another queue, and return its name."""
    with direct.pipeline(transaction=False) as pipeline:
        for suffix in SUFFIXES:
            pipeline.copy(f"{PREFIX}:{queue}{suffix}", f"{PREFIX}:{to}{suffix}")
        pipeline.execute()
    return to


def drop_queue(direct: Client, queue: str) -> None:
    """Delete all keys of a queue, without taking its roles."""
    direct.delete(*[f"{PREFIX}:{queue}{suffix}" for suffix in SUFFIXES])


@dataclass(frozen=True)
class State:
    """A queue before an operation: its bound, how many messages were put and taken, whether it is closed."""

    name: str
    bound: int | None
    put: int = 0
    taken: int = 0
    closed: bool = False

    def make(self, direct: Client, queue: str) -> str:
        """Make a queue in this state, and return its name."""
        if self.bound is not None:
            earlier = NativeSteps(direct, queue, "earlier")
            run(earlier.create(self.bound))
            for number in range(self.put):
                run(earlier.put(b"message %d" % number))
                if number < self.taken:
                    run(earlier.get())
            if self.closed:
                run(earlier.close())
        return queue


NO_QUEUE = State("none", None)
STATES = (
    State("new", 0),
    State("empty", 0, 1, 1),
    State("no bound, 2 messages", 0, 2),
    State("bound 3, 1 message", 3, 1),
    State("one below its bound of 2", 2, 1),
    State("full, of 1", 1, 1),
    State("full, of 2", 2, 2),
    State("full, of 2, used before", 2, 3, 1),
    State("closed, 1 message", 0, 1, 0, True),
    State("closed, full", 2, 2, 0, True),
    State("closed, empty", 0, 1, 1, True),
)
OPERATIONS: dict[str, Callable[[NativeSteps], Steps[Any]]] = {
    "create": lambda native: native.create(2),
    "put": lambda native: native.put(b"native"),
    "put, non-blocking": lambda native: native.put_non_blocking(b"native"),
    "get": lambda native: native.get(),
    "get, non-blocking": lambda native: native.get_non_blocking(),
    "close": lambda native: native.close(),
    "delete": lambda native: native.delete(),
}
IN_BOTH_VERSIONS = ("create", "put", "get", "close", "delete")


@dataclass(frozen=True)
class Death:
    """A native client that has died in an operation, and its queue. `after` describes its last command."""

    operation: str
    version: str
    state: State
    after: str
    queue: str


def deaths(direct: Client) -> Iterator[Death]:
    """Yield a death after each step of each operation, in each state, until it ends or waits.

    A live client does the steps, and its queue is copied after each of them.
    """
    for operation in OPERATIONS:
        for version in VERSIONS if operation in IN_BOTH_VERSIONS else VERSIONS[:1]:
            for state in (NO_QUEUE,) if operation == "create" else STATES:
                yield from _deaths(direct, operation, version, state)


def _deaths(direct: Client, operation: str, version: str, state: State) -> Iterator[Death]:
    name = f"{operation} ({version}), {state.name}"
    native = NativeSteps(direct, state.make(direct, name), "victim", version=version)
    steps = OPERATIONS[operation](native)
    number = 0
    waits_for: str | None = None
    while waits_for is None:
        try:
            waits_for = next(steps)
        except (StopIteration, NativeError):
            break
        after = native.last if "non-blocking" in operation else native.last.replace("RPOP", "BRPOP")
        if waits_for:
            key = waits_for.removeprefix(f"{PREFIX}:{name}")
            after = f"it began to wait at BRPOP {key or 'the list'}"
        number += 1
        yield Death(operation, version, state, after, copy_queue(direct, name, f"{name}, step {number:02}"))
    steps.close()
    drop_queue(direct, name)
