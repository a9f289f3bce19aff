"""Queue names and their keys: which names are allowed, and which keys belong to queues.

Only scripts touch a queue's keys. Their suffixes are listed here because a name must not end in one (its keys
would be those of another queue), and because waiting operations watch some of the keys.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pressure_server.errors import QueueNameError
from pressure_server.text import printable

_Item = TypeVar("_Item")

BOUND = b":bound"
PRODUCER_FREE = b":producer_free"
CONSUMER_FREE = b":consumer_free"
NOT_FULL = b":not_full"
CLOSED = b":closed"
PRODUCER_TURN = b":ext:producer_turn"
CONSUMER_TURN = b":ext:consumer_turn"
SETTINGS = b":ext:settings"
# Jobs by state (lua/kinds/jobs.lua).
READY = b":ext:ready"
DELAYED = b":ext:delayed"
RESERVED = b":ext:reserved"
# When servers try operations that wait for a job again (lua/kinds/jobs.lua).
DUE = b":ext:due"
# When the queue was made; ends in one of NO_PLAIN_LIST if the list alone does not show what is queued
# (lua/core/queue.lua).
MADE = b":ext:made"
NO_PLAIN_LIST = (b" jobs", b" log", b" lifo", b" random")
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
# The same as `of_extensions` in lua/core/keys.lua.
EXTENSION_SUFFIXES = tuple(
    b":ext:" + suffix
    for suffix in (
        b"members", b"copies", b"index", b"settings", b"producer_turn", b"consumer_turn", b"made", b"marks",
        b"waiting", b"jobs", b"due", b"ready", b"delayed", b"reserved", b"buried", b"unadopted", b"equal",
        b"single", b"blocks", b"outcomes", b"outcome_times", b"groups", b"offsets",
    )
)  # fmt: skip
# Ends of keys that belong to no queue: the set of queues that servers have created (registry.lua); the set
# of those with dead letters, by the time of their next job (jobs.lua); the set of collections that deleted
# queues have left (garbage.lua); and a key that never exists, in the slot of the queues' keys.
QUEUES, DUE_QUEUES, GARBAGE, ABSENT = b"!queues", b"!due", b"!garbage", b"!absent"
# Queues in one call: they keep the backend busy for about two milliseconds.
MAX_AT_ONCE = 200
# Watched for commands on many queues only (first_jobs.py).
UNAWAITED = (DELAYED, RESERVED, SETTINGS)
_WATCHED = (BOUND, PRODUCER_FREE, CONSUMER_FREE, NOT_FULL, CLOSED, READY, DUE, *UNAWAITED)
_RESERVED_ENDS = (*PROTOCOL_SUFFIXES, b":ext")


def is_queue_name(name: bytes) -> bool:
    """Return whether a queue can have this name: none of its keys can be a key of another queue."""
    return not (name.endswith(_RESERVED_ENDS) or b":ext:" in name)


def base_key(prefix: bytes, name: bytes) -> bytes:
    """Return the key of the queue's list, from which scripts derive the others. Raises QueueNameError."""
    if not is_queue_name(name):
        raise QueueNameError(
            f"'{printable(name)}' cannot be a queue's name: a name must not contain :ext:, or end in :ext "
            "or in the suffix of a pressure key (:bound, :producer, …)"
        )
    return prefix + b":" + name


def split_key(prefix: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Split a watched key into the queue's name and the suffix."""
    name = key[len(prefix) + 1 :]
    for suffix in _WATCHED:
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, b""


def records_key(prefix: bytes, identity: bytes) -> bytes:
    """Return the key of a server's records (records.lua). No queue's key begins with the prefix and `!`."""
    return prefix + b"!calls:" + identity


def keys_pattern(prefix: bytes, suffix: bytes) -> bytes:
    """Return the glob that matches, for every queue, the key with that suffix."""
    escaped = b"".join(b"\\" + c if c in b"*?[]^-\\" else c for c in (bytes([b]) for b in prefix))
    return escaped + b":*" + suffix


def queue_name(prefix: bytes, existence_key: bytes) -> bytes | None:
    """Return the name of the queue with this :bound key; None if it is not a valid name."""
    name = existence_key[len(prefix) + 1 : -len(BOUND)]
    return name if is_queue_name(name) else None


def portions(items: Sequence[_Item], most: int = MAX_AT_ONCE) -> Iterator[Sequence[_Item]]:
    """Yield the items in portions, such as the names of queues for one call each."""
    for first in range(0, len(items), most):
        yield items[first : first + most]
