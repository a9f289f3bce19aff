"""Creation: what a queue may be created with, and what of it may change (lua/core/life.lua). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pressure_server.queues.names import base_key

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
