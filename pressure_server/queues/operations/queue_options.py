"""The options of PRESSURE.CREATE and ALTER and of the configuration file, and the settings that they mean.

Pure. lua/core/life.lua stores the settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pressure_server.errors import CommandError
from pressure_server.queues.names import base_key
from pressure_server.queues.policy import BLOCK, ERROR
from pressure_server.words import (
    MAX_UINT32,
    bound_of,
    count_from_zero,
    integer_from,
    one_of,
    positive_count,
    seconds_of,
)

# A put on a full queue drops the oldest messages.
OVERWRITE = b"overwrite"
FIFO, JOBS, LOG, LIFO, RANDOM = b"fifo", b"jobs", b"log", b"lifo", b"random"
# What makes jobs unique: no equal one is queued; or, in addition, reserved or buried.
QUEUED, UNFINISHED = b"queued", b"unfinished"


class Rate(NamedTuple):
    """How many jobs may be taken in a time, on average. 0 jobs stand for no limit."""

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Alteration:
    """Settings to change; None for those that stay, 0 or empty for none.

    `max_bytes` limits the bytes of the queue's messages. It is deleted when it has been empty and unused for
    `ttl` seconds. A job that has been reserved `max_deliveries` times goes to the queue `dead_letter` instead
    of back, or is buried if there is none. With `ack` b"next", what a client pops stays reserved until its
    next pop, for at most `ack_ttr` seconds.

    Policies (lua/kinds/policy.lua): a job whose reservation fails is tried again after `retry_delay` seconds,
    then after twice as many, up to `retry_delay_max`; at most `in_flight` jobs are reserved at the same time;
    jobs are taken at most at the `rate`. These and `max_deliveries` are for JOBS, LIFO and RANDOM.
    """

    bound: int | None = None
    overflow: bytes | None = None
    max_bytes: int | None = None
    ttl: float | None = None
    max_deliveries: int | None = None
    dead_letter: bytes | None = None
    ack: bytes | None = None
    ack_ttr: float | None = None
    retry_delay: float | None = None
    retry_delay_max: float | None = None
    in_flight: int | None = None
    rate: Rate | None = None

    def settings(self, prefix: bytes) -> dict[bytes, bytes | None]:
        """Return the settings as the script has them: None stays, and empty is none."""
        rate = self.rate
        return {
            b"bound": None if self.bound is None else b"%d" % self.bound,
            b"overflow": self.overflow,
            b"max_bytes": _number(self.max_bytes),
            b"ttl": _number(self.ttl),
            b"max_deliveries": _number(self.max_deliveries),
            b"dead_letter": self.dead_letter and base_key(prefix, self.dead_letter),
            b"ack": self.ack,
            b"ack_ttr": _milliseconds(self.ack_ttr),
            b"retry_delay": _milliseconds(self.retry_delay),
            b"retry_delay_max": _milliseconds(self.retry_delay_max),
            b"in_flight": _number(self.in_flight),
            b"rate": rate and (b"%d %d" % (rate.jobs, round(rate.seconds * 1000)) if rate.jobs else b""),
        }

    def arguments(self, prefix: bytes) -> list[bytes]:
        """Return the arguments of the verb ALTER; all keys of the database begin with `prefix`."""
        return _words_of(self.settings(prefix))


@dataclass(frozen=True, slots=True)
class Creation(Alteration):
    """The settings of a new queue; None for those that the server's configuration decides, or for none.

    0 for `max_bytes` and `ttl` is none, also if the server has one. `unique` is for JOBS, LIFO and RANDOM.
    """

    bound: int | None = 0
    type: bytes | None = None
    unique: bytes | None = None

    def arguments(self, prefix: bytes) -> list[bytes]:
        """Return the arguments of the verb CREATE; all keys of the database begin with `prefix`."""
        settings = {b"type": self.type, b"unique": self.unique, **self.settings(prefix)}
        bound, overflow = settings.pop(b"bound") or b"0", settings.pop(b"overflow") or b""
        decided = {name: value for name, value in settings.items() if value or name in _OF_SERVER}
        return [bound, overflow, b"", *_words_of(decided)]


# Settings that the server's configuration has, too.
_OF_SERVER = (b"max_bytes", b"ttl")


def _number(value: float | None) -> bytes | None:
    if value is None:
        return None
    return (b"%d" if value == int(value) else b"%.3f") % value if value else b""


def _milliseconds(seconds: float | None) -> bytes | None:
    return _number(None if seconds is None else round(seconds * 1000))


def _words_of(settings: dict[bytes, bytes | None]) -> list[bytes]:
    return [word for name, value in settings.items() if value is not None for word in (name, value)]


# The longest retry delay: ten years, in seconds.
_LONGEST_DELAY = 10 * 365 * 86400


def retry_delay_of(word: bytes) -> float:
    """Return the delay before a job is tried again, in seconds, rounded up to milliseconds."""
    seconds = seconds_of(word)
    if seconds > _LONGEST_DELAY:
        raise CommandError(f"ERR a retry delay is at most ten years: {_LONGEST_DELAY} seconds")
    return seconds


def rate_of(word: bytes) -> Rate:
    """Return a rate `count/seconds`; `count` alone is for one second, and 0 is no limit."""
    count, slash, seconds = word.partition(b"/")
    number, time = integer_from(count), seconds_of(seconds) if slash else 1.0
    if number is None or not 0 <= number <= MAX_UINT32 or not time:
        raise CommandError("ERR a rate is count/seconds, such as 10/1, or 0 for no limit")
    return Rate(number, time if number else 1.0)


IF_NOT_EXISTS = b"IF NOT EXISTS"

CREATE_OPTIONS = {
    IF_NOT_EXISTS: None,
    b"BOUND": bound_of,
    b"OVERFLOW": one_of(BLOCK=BLOCK.encode(), ERROR=ERROR.encode(), OVERWRITE=OVERWRITE),
    b"MAX-BYTES": bound_of,
    b"TTL": seconds_of,
    b"TYPE": one_of(FIFO=FIFO, JOBS=JOBS, LOG=LOG, LIFO=LIFO, RANDOM=RANDOM),
    b"UNIQUE": one_of(QUEUED=QUEUED, UNFINISHED=UNFINISHED),
    b"MAX-DELIVERIES": positive_count,
    b"DEAD-LETTER": bytes,
    b"ACK": one_of(NEXT=b"next", FINAL=b""),
    b"ACK-TTR": seconds_of,
    b"RETRY-DELAY": retry_delay_of,
    b"RETRY-DELAY-MAX": retry_delay_of,
    b"IN-FLIGHT": positive_count,
    b"RATE": rate_of,
}

_OF_CREATION_ONLY = (IF_NOT_EXISTS, b"TYPE", b"UNIQUE")
ALTER_OPTIONS = {
    **{name: value_of for name, value_of in CREATE_OPTIONS.items() if name not in _OF_CREATION_ONLY},
    b"MAX-DELIVERIES": count_from_zero,
    b"IN-FLIGHT": count_from_zero,
}

_OPTIONS_OF_JOBS = {
    b"UNIQUE", b"MAX-DELIVERIES", b"DEAD-LETTER", b"RETRY-DELAY", b"RETRY-DELAY-MAX", b"IN-FLIGHT", b"RATE",
}  # fmt: skip


def creation_of(options: Mapping[bytes, Any]) -> Creation:
    """Return the settings that the options of PRESSURE.CREATE mean. Raise CommandError."""
    creation = Creation(**_fields(options))
    if of_jobs := options.keys() & _OPTIONS_OF_JOBS:
        if creation.type in (FIFO, LOG):
            raise CommandError(f"ERR {sorted(of_jobs)[0].decode()} needs TYPE JOBS, LIFO or RANDOM")
        creation = replace(creation, type=creation.type or JOBS)
    has_limit = creation.bound or creation.max_bytes
    if creation.overflow == OVERWRITE and not has_limit:
        raise CommandError("ERR OVERFLOW OVERWRITE needs a BOUND or MAX-BYTES")
    if creation.retry_delay_max is not None and not creation.retry_delay:
        raise CommandError("ERR RETRY-DELAY-MAX needs RETRY-DELAY")
    if creation.ack_ttr is not None and not creation.ack:
        raise CommandError("ERR ACK-TTR needs ACK NEXT")
    if creation.ack and creation.type == LOG:
        raise CommandError("ERR ACK NEXT is not for TYPE LOG: its groups reserve messages")
    if creation.dead_letter is not None and not creation.max_deliveries:
        raise CommandError("ERR DEAD-LETTER needs MAX-DELIVERIES")
    return creation


def alteration_of(options: Mapping[bytes, Any]) -> Alteration:
    """Return the changes that the options of PRESSURE.ALTER mean. The library knows what they need."""
    return Alteration(**_fields(options))


def _fields(options: Mapping[bytes, Any]) -> dict[str, Any]:
    """Return the options by the names of their fields: MAX-BYTES is `max_bytes`."""
    return {
        name.decode().lower().replace("-", "_"): value for name, value in options.items() if value is not True
    }
