"""Groups: what operations on groups say to the library, and what it replies (lua/kinds/groups.lua). Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from pressure_server.queues.names import base_key

CREATE, DELETE, SEEK, LIST = b"create", b"delete", b"seek", b"list"
HEAD, TAIL = b"head", b"tail"


def queue_of(log: bytes, group: bytes) -> bytes:
    """Return the name of a group's queue, as kestrel names its fan-out queues."""
    return b"%b+%b" % (log, group)


def arguments(
    prefix: bytes, action: bytes, log: bytes, group: bytes = b"", start: bytes = HEAD
) -> list[bytes]:
    """Return the arguments of the verb GROUP; `start` is HEAD, TAIL or an offset. Raise QueueNameError."""
    return [action, base_key(prefix, queue_of(log, group)), start]


class Group(NamedTuple):
    """A group: the `offset` of the first message that it has not passed, and how many it has in which state.

    `lag` counts those that nobody has taken yet, `pending` the reserved ones, and `missed` those that the
    log dropped before the group came to them.
    """

    name: bytes
    offset: int
    lag: int
    pending: int
    buried: int
    missed: int

    @classmethod
    def of(cls, prefix: bytes, log: bytes, reply: list[Any]) -> Group:
        """Return the group that an entry of the reply to LIST describes."""
        return cls(reply[0].removeprefix(base_key(prefix, log) + b"+"), *reply[1:])
