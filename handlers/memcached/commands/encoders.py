"""Encoders: return the replies of an ended queue operation, one for each command that it stands for.

A queue that does not exist counts as empty.
"""

from __future__ import annotations

from handlers.memcached.meta import Meta
from handlers.memcached.replies import END, NOT_STORED, STORED, server_error, value
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.operations.operation import Encode, Operation
from pressure_server.queues.operations.runs import flags_of

_NO_UNIQUE = {"c": b"0"}


def stored(operation: Operation) -> bytes:
    """Return STORED or an error for each command."""
    if operation.error is not None:
        return server_error(operation.error) * len(operation.sizes)
    return b"".join([_unless_error(STORED, result) for result in operation.results])


def stored_if_new(operation: Operation) -> bytes:
    """Return STORED, NOT_STORED if the message was queued already, or an error for each command."""
    if operation.error is not None:
        return server_error(operation.error) * len(operation.sizes)
    return b"".join([_unless_error(STORED if result else NOT_STORED, result) for result in operation.results])


def stored_meta(meta: Meta, is_unique: bool) -> Encode:
    """Return the encoder of ms. If it `is_unique`, a message that is queued already is not stored."""
    done, not_done = meta.outcome(b"STORED", _NO_UNIQUE), meta.outcome(b"NOT_STORED", _NO_UNIQUE)

    def encode(operation: Operation) -> bytes:
        if operation.error is not None:
            return server_error(operation.error) * len(operation.sizes)
        return b"".join(
            [
                _unless_error(done if result or not is_unique else not_done, result)
                for result in operation.results
            ]
        )

    return encode


def _unless_error(reply: bytes, result: object) -> bytes:
    return server_error(result) if isinstance(result, PressureError) else reply


def item(key: bytes, message: bytes, *, with_unique: bool = False) -> bytes:
    """Encode a message as an item, with its flags. The cas unique is always 0: queues have none."""
    return value(key, flags_of(message), message, b"0" if with_unique else None)


def one_item(operation: Operation) -> bytes:
    """Return the message and END for each command of a get; END alone if there was no message."""
    return _items(operation, b"VALUE %b %b %d\r\n%b\r\nEND\r\n")


def one_item_unique(operation: Operation) -> bytes:
    """Return the same for a gets, with a cas unique."""
    return _items(operation, b"VALUE %b %b %d 0\r\n%b\r\nEND\r\n")


def _items(operation: Operation, form: bytes) -> bytes:
    """Encode like `item`, without its two calls: 0.25 instead of 0.5 microseconds for 64 bytes."""
    messages = operation.results
    missing = len(operation.sizes) - len(messages)
    if operation.error is not None and not isinstance(operation.error, QueueDoesNotExistError):
        return server_error(operation.error) * len(operation.sizes)
    name = operation.name
    items = [form % (name, flags_of(message), len(message), message) for message in messages]
    return b"".join(items) + END * missing


def message_meta(meta: Meta, message: bytes) -> bytes:
    """Encode a message as mg returns it."""
    size = len(message)
    return meta.item(message, size, {**_NO_UNIQUE, "f": flags_of(message), "s": b"%d" % size})


def one_item_meta(meta: Meta) -> Encode:
    """Return the encoder of mg: a message, or its absence, for each command."""

    def encode(operation: Operation) -> bytes:
        messages = operation.results
        missing = len(operation.sizes) - len(messages)
        if operation.error is not None and not isinstance(operation.error, QueueDoesNotExistError):
            return server_error(operation.error) * len(operation.sizes)
        return b"".join([message_meta(meta, message) for message in messages]) + meta.miss() * missing

    return encode


def number(operation: Operation) -> bytes:
    """Return a number or an error for each command; 0 if the queue does not exist."""
    if operation.error is None:
        return b"".join([b"%d\r\n" % result for result in operation.results])
    if isinstance(operation.error, QueueDoesNotExistError):
        return b"0\r\n" * len(operation.sizes)
    return server_error(operation.error) * len(operation.sizes)
