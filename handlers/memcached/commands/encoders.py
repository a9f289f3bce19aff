"""Encoders: return the replies of an ended queue operation, one for each command that it stands for.

A queue that does not exist counts as empty.
"""

from functools import partial

from handlers.memcached.meta import Meta
from handlers.memcached.replies import END, NOT_STORED, STORED, server_error, value
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.operations.flagged import flags_of
from pressure_server.queues.operations.operation import Encode, Operation

_NO_UNIQUE = {"c": b"0"}


def _stored_or(done: bytes, not_done: bytes) -> Encode:
    """Return the encoder of puts: for each, whether the message was stored, or an error."""

    def encode(operation: Operation) -> bytes:
        if operation.error is not None:
            return server_error(operation.error) * len(operation.sizes)
        return b"".join(
            [
                server_error(result) if isinstance(result, PressureError) else done if result else not_done
                for result in operation.results
            ]
        )

    return encode


# The result of a put is the length of the queue, or with `unique` whether the message was not queued.
stored, stored_if_new = _stored_or(STORED, STORED), _stored_or(STORED, NOT_STORED)


def stored_meta(meta: Meta, is_unique: bool) -> Encode:
    """Return the encoder of ms. If it `is_unique`, a message that is queued already is not stored."""
    done, not_done = meta.outcome(b"STORED", _NO_UNIQUE), meta.outcome(b"NOT_STORED", _NO_UNIQUE)
    return _stored_or(done, not_done if is_unique else done)


def item(key: bytes, message: bytes, *, with_unique: bool = False) -> bytes:
    """Encode a message as an item, with its flags. The cas unique is always 0: queues have none."""
    return value(key, flags_of(message), message, b"0" if with_unique else None)


def _replies(operation: Operation, found: list[bytes], missing: bytes) -> bytes:
    """Return a reply for each command: `found` for the first ones, `missing` for the others; or errors."""
    if operation.error is not None and not isinstance(operation.error, QueueDoesNotExistError):
        return server_error(operation.error) * len(operation.sizes)
    return b"".join(found) + missing * (len(operation.sizes) - len(found))


def _items(operation: Operation, form: bytes) -> bytes:
    """Encode like `item`, without its two calls: 0.25 instead of 0.5 microseconds for 64 bytes."""
    name = operation.name
    items = [form % (name, flags_of(message), len(message), message) for message in operation.results]
    return _replies(operation, items, END)


# The message and END for each command of a get; END alone if there was no message. gets has a cas unique.
one_item = partial(_items, form=b"VALUE %b %b %d\r\n%b\r\nEND\r\n")
one_item_unique = partial(_items, form=b"VALUE %b %b %d 0\r\n%b\r\nEND\r\n")


def message_meta(meta: Meta, message: bytes) -> bytes:
    """Encode a message as mg returns it."""
    size = len(message)
    return meta.item(message, size, {**_NO_UNIQUE, "f": flags_of(message), "s": b"%d" % size})


def one_item_meta(meta: Meta) -> Encode:
    """Return the encoder of mg: a message, or its absence, for each command."""

    def encode(operation: Operation) -> bytes:
        return _replies(operation, [message_meta(meta, one) for one in operation.results], meta.miss())

    return encode


def number(operation: Operation) -> bytes:
    """Return a number or an error for each command; 0 if the queue does not exist."""
    return _replies(operation, [b"%d\r\n" % result for result in operation.results], b"0\r\n")
