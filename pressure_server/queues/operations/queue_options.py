"""The options of PRESSURE.CREATE and PRESSURE.ALTER, which the configuration file has, too. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pressure_server.errors import CommandError
from pressure_server.queues.operations.creation import (
    FIFO,
    JOBS,
    LIFO,
    LOG,
    OVERWRITE,
    QUEUED,
    RANDOM,
    UNFINISHED,
    Alteration,
    Creation,
    Rate,
)
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

ALTER_OPTIONS = {
    b"BOUND": bound_of,
    b"OVERFLOW": CREATE_OPTIONS[b"OVERFLOW"],
    b"MAX-BYTES": bound_of,
    b"TTL": seconds_of,
    b"MAX-DELIVERIES": count_from_zero,
    b"DEAD-LETTER": bytes,
    b"ACK": CREATE_OPTIONS[b"ACK"],
    b"ACK-TTR": seconds_of,
    b"RETRY-DELAY": retry_delay_of,
    b"RETRY-DELAY-MAX": retry_delay_of,
    b"IN-FLIGHT": count_from_zero,
    b"RATE": rate_of,
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
    """Return the changes that the options of PRESSURE.ALTER mean. Raise CommandError."""
    alteration = Alteration(**_fields(options))
    if alteration.max_deliveries == 0 and alteration.dead_letter:
        raise CommandError("ERR DEAD-LETTER needs MAX-DELIVERIES")
    return alteration


def _fields(options: Mapping[bytes, Any]) -> dict[str, Any]:
    """Return the options by the names of their fields: MAX-BYTES is `max_bytes`."""
    return {
        name.decode().lower().replace("-", "_"): value for name, value in options.items() if value is not True
    }
