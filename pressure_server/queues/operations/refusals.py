"""Refusals: errors of the library as exceptions for clients, and as conditions to wait for."""

from collections.abc import Callable
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
from pressure_server.queues.operations.wait import WaitCondition
from pressure_server.text import printable


def exception_for(name: bytes, text: str) -> PressureError:
    """Return the exception for an error of the library: a code, followed by details for some codes."""
    queue = printable(name)
    code, _, detail = text.partition(" ")
    if code in _OF_CODE:
        return _OF_CODE[code](queue, detail)
    if code == "TOOLARGE":
        return PressureError(f"the reply for queue '{queue}' would exceed 64 MiB: ask for fewer messages")
    if code == "TOOLONG":
        return PressureError(
            f"not done on queue '{queue}': the transaction keeps the backend busy for too long"
        )
    return BackendError(f"the backend answered for queue '{queue}': {text}")


def _in_use(queue: str, holder: str) -> PressureError:
    """Return the exception for a role that a native client holds: 'role name'."""
    role, _, name = holder.partition(" ")
    return QueueInUseError(queue, f"by its {role} '{name}'" if name else f"by a {role} without a name")


def _of_another_queue(_queue: str, detail: str) -> PressureError:
    """Return the exception for an error of another queue: 'length error name'."""
    length, _, rest = detail.partition(" ")
    return exception_for(rest[int(length) + 1 :].encode(), rest[: int(length)])


# By the code of an error of the library: the exception for a queue, and the detail that follows the code.
_OF_CODE: dict[str, Callable[[str, str], PressureError]] = {
    "NOQUEUE": QueueDoesNotExistError,
    "EXISTS": QueueAlreadyExistsError,
    "QUEUES": QueueLimitError,
    "FULL": QueueFullError,
    "CLOSED": QueueClosedError,
    "INUSE": _in_use,
    "CREATING": lambda queue, _: QueueInUseError(queue, "by a client that is creating it"),
    "DELETING": lambda queue, _: QueueInUseError(queue, "by a client that is deleting it"),
    "TYPE": QueueTypeError,
    "NOGROUP": GroupDoesNotExistError,
    "AHEAD": OffsetAheadError,
    "GONE": OffsetGoneError,
    "TXN": TransactionIdError,
    "REDRIVE": _of_another_queue,
}


def condition_for(error: Any) -> WaitCondition | None:
    """Return the condition to wait for after this error of the library; None if waiting does not help."""
    text = str(error)
    if text.startswith("OTHER "):
        text = text[6:]
    if text.startswith("INUSE producer"):
        return WaitCondition.PRODUCER_ROLE
    if text.startswith("INUSE consumer"):
        return WaitCondition.CONSUMER_ROLE
    return {"CREATING": WaitCondition.CREATED, "DELETING": WaitCondition.REMOVED}.get(text)
