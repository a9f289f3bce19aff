"""Options: how an operation does what its verb says.

Pure. The heads of get.lua, put.lua and move.lua in lua/core/ explain the library's words for the options.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Final


class OnFull(Enum):
    """What a put does if the queue is full; the value is the script's word for it."""

    CONFIGURED = b""  # as the queue is configured
    WAIT = b"wait"
    FAIL = b"now"
    EXCEED_BOUND = b"overfill"
    OVERWRITE = b"overwrite"  # drop the oldest messages


_WORDS: Final = {
    "must_exist": b"existing",
    "unique": b"unique",
    "has_flags": b"flags",
    "waits": b"waits",
    "wait_for_first": b"several",
    "if_none_taken": b"otherwise",
    "is_job": b"job",
    "has_key": b"by",
    "has_offset": b"offset",
    "once": b"once",
    "destination_must_exist": b"into",
    "final": b"final",
}


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an operation. Each is off by default, and applies to the verbs in brackets only.

    * `must_exist`: do not create the queue (put); do not wait for its creation (get, move)
    * `unique`: put only messages that are not queued yet (put, move)
    * `on_full`: what to do if the queue is full (put)
    * `has_flags`: messages have flags, and may expire (put, get)
    * `waits`: wait for a message (get, reserve, move, peek)
    * `wait_for_first`: one command wants up to this many messages, and waits for the first only (get)
    * `if_none_taken`: take nothing if an earlier run of the take has taken something (get, in transactions)
    * `is_job`: the messages are jobs, with a priority, a delay and a time to run (put)
    * `has_key`: each job follows a key, which makes it unique instead of its message (put)
    * `has_offset`: the results are the offsets of the messages in a log (put)
    * `once`: the first message is a transaction id; see outcomes.py (put)
    * `destination_must_exist`: do not create the destination queue (move)
    * `final`: take the messages for good, also from a queue with ACK NEXT (get)

    `words` are the script's words for those that are on, each after a space.
    """

    must_exist: bool = False
    unique: bool = False
    on_full: OnFull = OnFull.CONFIGURED
    has_flags: bool = False
    waits: bool = False
    wait_for_first: bool = False
    if_none_taken: bool = False
    is_job: bool = False
    has_key: bool = False
    has_offset: bool = False
    once: bool = False
    destination_must_exist: bool = False
    final: bool = False
    words: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the words."""
        words = [word for option, word in _WORDS.items() if getattr(self, option)]
        words += filter(None, [self.on_full.value])
        object.__setattr__(self, "words", b"".join([b" " + word for word in words]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)


DEFAULT: Final = Options()
UNIQUE: Final = Options(unique=True)
WAITS: Final = Options(waits=True)


@cache
def requiring_queue(options: Options) -> Options:
    """Return the same options, for a queue that must exist."""
    return replace(options, must_exist=True)


@cache
def taking_for_good(options: Options) -> Options:
    """Return the same options, for a get that does not reserve."""
    return replace(options, final=True)


@cache
def requiring_destination(options: Options) -> Options:
    """Return the same options, for a destination queue that must exist."""
    return replace(options, destination_must_exist=True)
