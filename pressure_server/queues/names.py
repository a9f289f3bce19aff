"""Queue names and the keys they stand for: which names are allowed, and which keys are queues.

Scripts alone touch the other keys of a queue. Here are their suffixes, because a name must not end in one
(its keys would then be another queue's), and because those who wait watch them.
"""

from __future__ import annotations

from pressure_server.errors import QueueNameError

BOUND = b":bound"
PRODUCER_FREE = b":producer_free"
CONSUMER_FREE = b":consumer_free"
NOT_FULL = b":not_full"
CLOSED = b":closed"
PRODUCER_TURN = b":ext:producer_turn"
CONSUMER_TURN = b":ext:consumer_turn"
PROTOCOL_SUFFIXES = (
    BOUND,
    b":producer",
    b":consumer",
    PRODUCER_FREE,
    CONSUMER_FREE,
    NOT_FULL,
    CLOSED,
    b":stats:produced_messages",
    b":stats:produced_bytes",
    b":stats:consumed_messages",
    b":stats:consumed_bytes",
)
_WATCHED = (BOUND, PRODUCER_FREE, CONSUMER_FREE, NOT_FULL, CLOSED)
_NO_ENDS = (*PROTOCOL_SUFFIXES, b":ext")


def is_queue_name(name: bytes) -> bool:
    """Whether no key of a queue of this name can be a key of another queue."""
    return not (name.endswith(_NO_ENDS) or b":ext:" in name)


def base_key(prefix: bytes, name: bytes) -> bytes:
    """The key of the queue's list, from which a script derives all others.

    Raises QueueNameError where the name would alias another queue's keys.
    """
    if not is_queue_name(name):
        raise QueueNameError(
            f"'{printable(name)}' cannot be a queue's name: names that end in :ext or in the suffix of "
            "a pressure key (:bound, :producer, …), or contain :ext:, are keys of other queues"
        )
    return prefix + b":" + name


def split_key(prefix: bytes, key: bytes) -> tuple[bytes, bytes]:
    """The queue's name and the suffix of a key that is watched."""
    name = key[len(prefix) + 1 :]
    for suffix in _WATCHED:
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, b""


def records_key(prefix: bytes, identity: bytes) -> bytes:
    """The key of a server's records (records.lua). No queue's begins with the prefix and a `!`."""
    return prefix + b"!calls:" + identity


def keys_pattern(prefix: bytes, suffix: bytes) -> bytes:
    """The glob that matches every queue's key of that suffix."""
    escaped = b"".join(b"\\" + c if c in b"*?[]^-\\" else c for c in (bytes([b]) for b in prefix))
    return escaped + b":*" + suffix


def existence_pattern(prefix: bytes) -> bytes:
    """The glob that matches the key by which a queue exists, for every queue."""
    return keys_pattern(prefix, BOUND)


def queue_name(prefix: bytes, existence_key: bytes) -> bytes | None:
    """The queue whose existence the key shows; None where the key shows none that can be named."""
    name = existence_key[len(prefix) + 1 : -len(BOUND)]
    return name if is_queue_name(name) else None


def printable(name: bytes) -> str:
    """A name as text for messages to people: at most 128 characters, undecodable bytes escaped."""
    text = name[:128].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text + "…" if len(name) > 128 else text
