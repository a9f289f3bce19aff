"""What an operation on a queue that has ended replies, for each of the commands it stands for.

A queue that does not exist is empty to who reads or takes.
"""

from __future__ import annotations

from handlers.memcached.replies import END, NOT_STORED, STORED, server_error, value
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.operations.flagged import flags_of
from pressure_server.queues.operations.operation import Operation


def stored(operation: Operation) -> bytes:
    """STORED, or why not, a command."""
    if operation.error is not None:
        return server_error(operation.error) * len(operation.sizes)
    return b"".join([_unless_error(STORED, result) for result in operation.results])


def stored_if_new(operation: Operation) -> bytes:
    """STORED where it was not queued, else NOT_STORED, or why not, a command."""
    if operation.error is not None:
        return server_error(operation.error) * len(operation.sizes)
    return b"".join([_unless_error(STORED if result else NOT_STORED, result) for result in operation.results])


def _unless_error(reply: bytes, result: object) -> bytes:
    return server_error(result) if isinstance(result, PressureError) else reply


def nothing(_operation: Operation) -> bytes:
    """Nothing: the client wants no reply."""
    return b""


def item(key: bytes, message: bytes, *, with_unique: bool = False) -> bytes:
    """A message as an item, with the flags that it may have. A queue has no cas unique: 0."""
    return value(key, flags_of(message), message, b"0" if with_unique else None)


def one_item(operation: Operation) -> bytes:
    """The message of each command; END alone where there is none."""
    return _items(operation, b"VALUE %b %b %d\r\n%b\r\nEND\r\n")


def one_item_unique(operation: Operation) -> bytes:
    """The same, for gets."""
    return _items(operation, b"VALUE %b %b %d 0\r\n%b\r\nEND\r\n")


def _items(operation: Operation, form: bytes) -> bytes:
    """As `item` with END, but without two calls: 0.25 microseconds for 64 bytes, and not 0.5."""
    messages = operation.results
    missing = len(operation.sizes) - len(messages)
    if operation.error is not None and not isinstance(operation.error, QueueDoesNotExistError):
        return server_error(operation.error) * len(operation.sizes)
    name = operation.name
    items = [form % (name, flags_of(message), len(message), message) for message in messages]
    return b"".join(items) + END * missing


def number(operation: Operation) -> bytes:
    """A number a command; 0 where there is no such queue."""
    if operation.error is None:
        return b"".join([b"%d\r\n" % result for result in operation.results])
    if isinstance(operation.error, QueueDoesNotExistError):
        return b"0\r\n" * len(operation.sizes)
    return server_error(operation.error) * len(operation.sizes)
