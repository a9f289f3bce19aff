"""Options: how an operation does what its verb says; and custody, which says who keeps what it takes.

Pure. The names of options that the script reads are in `name_of`, and in lua/batch.lua.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import NamedTuple


class Room(Enum):
    """What a put does if there is no room; the value is the script's word for it."""

    # Options are looked up by their hash for each operation, and that of Enum is slow: 0.2 microseconds.
    __hash__ = object.__hash__

    CONFIGURED = b""  # what the queue is set to do
    WAIT = b"wait"
    NEVER_WAIT = b"now"
    NOT_NEEDED = b"overfill"


class Custody(Enum):
    """Until when the backend keeps a record of what an operation has taken."""

    NONE = "none"  # it takes nothing, or what it takes is in another queue
    UNTIL_DELIVERED = "until delivered"
    UNTIL_ACKNOWLEDGED = "until acknowledged"


class Options(NamedTuple):
    """Each is off unless it is given, and only for the verbs named.

    `existing`: do not make the queue (put), and do not wait for it to be made (get, move).
    `unique`: put only what is not queued (put, move).
    `room`: what to do if there is no room (put).
    `flags`: messages have flags, and may expire (put, get).
    `waits`: wait for a message (get, move).
    `several`: one command wants up to so many messages, and waits for the first (get).
    `otherwise`: take nothing if the run before has taken something (get, in transactions).
    `acknowledged`: the client says when it is done with what it has taken (get).
    `into_existing`: do not make the other queue (move).
    """

    existing: bool = False
    unique: bool = False
    room: Room = Room.CONFIGURED
    flags: bool = False
    waits: bool = False
    several: bool = False
    otherwise: bool = False
    acknowledged: bool = False
    into_existing: bool = False


DEFAULT = Options()
UNIQUE = Options(unique=True)
WAITS = Options(waits=True)

_WORDS = {
    "existing": b"existing",
    "unique": b"unique",
    "flags": b"flags",
    "waits": b"waits",
    "several": b"several",
    "otherwise": b"otherwise",
    "acknowledged": b"acknowledged",
    "into_existing": b"into",
}


@cache
def name_of(verb: bytes, options: Options) -> bytes:
    """Return how the script is told of a verb with these options: the verb, and a word for each option."""
    words = [word for option, word in _WORDS.items() if getattr(options, option)]
    return b" ".join([verb, *words, *([options.room.value] if options.room.value else [])])


@cache
def existing(options: Options) -> Options:
    """Return the same for a queue that must exist."""
    return options._replace(existing=True)


@cache
def into_existing(options: Options) -> Options:
    """Return the same for another queue that must exist."""
    return options._replace(into_existing=True)
