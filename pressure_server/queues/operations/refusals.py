"""Refusals: errors of the batch script as exceptions for clients, and as conditions to wait for."""

from __future__ import annotations

from typing import Any

from pressure_server.errors import (
    BackendError,
    GroupDoesNotExistError,
    OffsetAheadError,
    OffsetGoneError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueLimitError,
    QueueTypeError,
    TransactionIdError,
)
from pressure_server.queues.names import printable
from pressure_server.queues.operations.wait_condition import WaitCondition


def exception_for(name: bytes, text: str) -> PressureError:
    """Return the exception for an error of the script: a code, followed by details for some codes."""
    queue = printable(name)
    code, _, rest = text.partition(" ")
    if code == "NOQUEUE":
        return QueueDoesNotExistError(queue)
    if code == "EXISTS":
        return QueueAlreadyExistsError(queue)
    if code == "FULL":
        return QueueFullError(queue)
    if code == "CLOSED":
        return QueueClosedError(queue)
    if code == "INUSE":
        role, _, holder = rest.partition(" ")
        return QueueInUseError(
            queue, f"by its {role} '{holder}'" if holder else f"by a {role} without a name"
        )
    if code == "CREATING":
        return QueueInUseError(queue, "by a client that is creating it")
    if code == "DELETING":
        return QueueInUseError(queue, "by a client that is deleting it")
    if code == "QUEUES":
        return QueueLimitError(queue, rest)
    if code == "TYPE":
        return QueueTypeError(queue, rest)
    if code == "AHEAD":
        return OffsetAheadError(queue, rest)
    if code == "GONE":
        return OffsetGoneError(queue, rest)
    if code == "NOGROUP":
        return GroupDoesNotExistError(queue)
    if code == "TXN":
        return TransactionIdError(queue, rest)
    if code == "TOOLARGE":
        return PressureError(f"the reply for queue '{queue}' would exceed 64 MiB: ask for fewer messages")
    return BackendError(f"the backend answered for queue '{queue}': {text}")


def condition_for(error: Any) -> WaitCondition | None:
    """Return the condition to wait for after this error of the script; None if waiting does not help."""
    text = str(error)
    if text.startswith("OTHER "):
        text = text[6:]
    if text.startswith("INUSE producer"):
        return WaitCondition.PRODUCER_ROLE
    if text.startswith("INUSE consumer"):
        return WaitCondition.CONSUMER_ROLE
    return {"CREATING": WaitCondition.CREATED, "DELETING": WaitCondition.REMOVED}.get(text)
