"""Batches: the operations that wait on one queue, as the arguments of one script call, and back.

Pure: the lane decides when, the channel carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from pressure_server.broker.names import printable
from pressure_server.broker.operation import Operation
from pressure_server.errors import (
    BackendError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
)

# A call of 2000 messages keeps the backend busy for about two milliseconds; a larger one gains nothing.
MAX_MESSAGES = 2000
MAX_BYTES = 1 << 20

_kind_of = attrgetter("kind")


def take(waiting: list[Operation]) -> list[Operation]:
    """Remove from the front of `waiting` what the next call carries: one, or more within the caps."""
    messages = size = count = 0
    for operation in waiting:
        messages += operation.wanted
        size += sum(map(len, operation.messages))
        if count and (messages > MAX_MESSAGES or size > MAX_BYTES):
            break
        operation.sealed = True
        count += 1
    batch = waiting[:count]
    del waiting[:count]
    return batch


def runs_of(batch: Sequence[Operation]) -> list[list[Operation]]:
    """Neighbours of one kind, together; kinds that do not fold, one by one."""
    if len(batch) == 1:
        return [list(batch)]
    runs: list[list[Operation]] = []
    for kind, group in groupby(batch, _kind_of):
        if kind.folds:
            runs.append(list(group))
        else:
            runs.extend([operation] for operation in group)
    return runs


def pack(runs: Sequence[Sequence[Operation]]) -> list[bytes]:
    """The runs as arguments for batch.lua: for each a name, a count, and as many arguments."""
    arguments: list[bytes] = []
    for run in runs:
        kind = run[0].kind
        packed = kind.pack(run)
        arguments.append(kind.name)
        arguments.append(b"%d" % len(packed))
        arguments += packed
    return arguments


def share(runs: Sequence[Sequence[Operation]], reply: list[Any]) -> tuple[list[Operation], list[Operation]]:
    """Share a reply of batch.lua out: the operations that have ended, and those to be sent again."""
    left = reply[0]
    ended: list[Operation] = []
    again: list[Operation] = []
    executed = len(reply) - 1
    for run, result in zip(runs, reply[1:], strict=False):
        if isinstance(result, Exception):
            error = refusal(run[0].name, str(result))
            for operation in run:
                operation.fail(error)
        else:
            run[0].kind.share(run, result)
        ended += run
    if left:
        # The last operations of the last run are those that lack something.
        while left > 0:
            operation = ended.pop()
            left -= operation.kind.rest(operation)
            again.insert(0, operation)
    for run in runs[executed:]:
        again += run
    return ended, again


def refusal(name: bytes, text: str) -> PressureError:
    """The exception for an error the script answered with: a code, and for some a word more."""
    queue = printable(name)
    code, _, rest = text.partition(" ")
    if code == "NOQUEUE":
        return QueueDoesNotExistError(queue)
    if code == "EXISTS":
        return QueueAlreadyExistsError(queue)
    if code == "CLOSED":
        return QueueClosedError(queue)
    if code == "INUSE":
        return QueueInUseError(queue, f"by '{rest}'" if rest else "by a client that is creating it")
    if code == "DELETING":
        return QueueInUseError(queue, "by a client that is deleting it")
    if code == "TOOLARGE":
        return PressureError(f"the reply for queue '{queue}' would exceed 64 MiB: ask for fewer messages")
    return BackendError(f"the backend answered for queue '{queue}': {text}")
