"""Options: how an operation does what its verb says; custody: how long the backend keeps what it takes.

Pure. The script's names of the options are in `name_of` and in lua/batch.lua.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import NamedTuple


class Room(Enum):
    """What a put does if the queue is full; the value is the script's word for it."""

    # Options are looked up by hash for each operation; the hash of Enum takes 0.2 microseconds.
    __hash__ = object.__hash__

    CONFIGURED = b""  # as the queue is configured
    WAIT = b"wait"
    NEVER_WAIT = b"now"
    NOT_NEEDED = b"overfill"


class Custody(Enum):
    """How long the backend keeps a record of what an operation has taken."""

    NONE = "none"  # it takes nothing, or moves it to another queue
    UNTIL_DELIVERED = "until delivered"
    UNTIL_ACKNOWLEDGED = "until acknowledged"


class Options(NamedTuple):
    """The options of an operation. Each is off by default, and applies to the verbs in brackets only.

    * `existing`: do not create the queue (put); do not wait for its creation (get, move)
    * `unique`: put only messages that are not queued yet (put, move)
    * `room`: what to do if the queue is full (put)
    * `flags`: messages have flags, and may expire (put, get)
    * `waits`: wait for a message (get, move)
    * `several`: one command wants up to this many messages, and waits for the first only (get)
    * `otherwise`: take nothing if an earlier run of the same take has taken something (get, in transactions)
    * `acknowledged`: the client acknowledges what it has taken (get)
    * `into_existing`: do not create the destination queue (move)
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
    """Return the script's name for a verb with these options: the verb, and a word for each option."""
    words = [word for option, word in _WORDS.items() if getattr(options, option)]
    return b" ".join([verb, *words, *([options.room.value] if options.room.value else [])])


@cache
def existing(options: Options) -> Options:
    """Return the same options, for a queue that must exist."""
    return options._replace(existing=True)


@cache
def into_existing(options: Options) -> Options:
    """Return the same options, for a destination queue that must exist."""
    return options._replace(into_existing=True)
