"""Parsing of a command's words: integers, counts, positions, timeouts, keys, options.

Each function raises CommandError, with Redis's text if Redis has such an argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from handlers.resp.parser import integer_from
from handlers.resp.replies import (
    CommandError,
    invalid_cursor,
    must_be_positive,
    not_an_integer,
    shown_word,
    syntax_error,
)
from pressure_server.queues.operations.creation import Rate

# The largest integer that Lua represents exactly. No queue is that long.
_MAX_NUMBER = 2**53
# The ends of a list. A queue is first in, first out, whichever end is named.
ENDS = (b"LEFT", b"RIGHT")

# The numbers that strtold reads, except hexadecimal ones and infinity.
_SECONDS = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_MAX_WAIT = Decimal(2**53) / 1000
# strtold reads a number nearer to 0 than this as 0, which would mean forever. Redis refuses it.
_SHORTEST_WAIT = Decimal("1.83e-4951")
# The limits of beanstalkd: priorities, delays and times to run are below 2^32.
_MAX_UINT32 = 2**32 - 1
# The longest retry delay: ten years, in seconds.
_LONGEST_DELAY = 10 * 365 * 86400
# By name, one or more words in upper case: the parser of the option's value, or None if it has no value.
Parsers = Mapping[bytes, Callable[[bytes], Any] | None]


def integer_of(word: bytes) -> int:
    """Return a signed 64-bit integer."""
    number = integer_from(word)
    if number is None:
        raise not_an_integer()
    return number


def count_from_zero(word: bytes) -> int:
    """Return a count of 0 or more. A count above 2^53 becomes 2^53."""
    number = integer_from(word)
    if number is None or number < 0:
        raise must_be_positive()
    return min(number, _MAX_NUMBER)


def positive_count(word: bytes) -> int:
    """Return a count of 1 or more. A count above 2^53 becomes 2^53."""
    number = integer_from(word)
    if number is None or number < 1:
        raise CommandError("ERR count should be greater than 0")
    return min(number, _MAX_NUMBER)


def position_of(word: bytes) -> int:
    """Return a position in a queue: 0 is the oldest message, -1 the newest."""
    return max(-_MAX_NUMBER, min(integer_of(word), _MAX_NUMBER))


def cursor_of(word: bytes) -> int:
    """Return the cursor of a scan."""
    number = integer_from(word)
    if number is None or number < 0:
        raise invalid_cursor()
    return min(number, _MAX_NUMBER)


def bound_of(word: bytes) -> int:
    """Return a queue's bound in messages; 0 means no bound."""
    number = integer_from(word)
    if number is None or not 0 <= number <= _MAX_NUMBER:
        raise CommandError("ERR bound is not an integer or out of range")
    return number


def timeout_of(word: bytes) -> float | None:
    """Return a timeout in seconds, rounded up to milliseconds as in Redis; None (forever) for 0."""
    if len(word) > 64 or not _SECONDS.fullmatch(word):
        raise CommandError("ERR timeout is not a float or out of range")
    seconds = Decimal(word.decode())
    if 0 < abs(seconds) < _SHORTEST_WAIT:
        raise CommandError("ERR timeout is not a float or out of range")
    if seconds > _MAX_WAIT:
        raise CommandError("ERR timeout is out of range")
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    return math.ceil(seconds * 1000) / 1000 or None


def priority_of(word: bytes) -> int:
    """Return the priority of a job: 0 is the most urgent."""
    number = integer_from(word)
    if number is None or not 0 <= number <= _MAX_UINT32:
        raise CommandError("ERR priority is not an integer or out of range")
    return number


def seconds_of(word: bytes) -> float:
    """Return a delay or a time to run in seconds, rounded up to milliseconds."""
    seconds = timeout_of(word) or 0.0
    if seconds > _MAX_UINT32:
        raise CommandError("ERR time is out of range")
    return seconds


def expiry_of(word: bytes) -> float:
    """Return after how many seconds a message expires, rounded up to milliseconds."""
    seconds = seconds_of(word)
    if not seconds:
        raise CommandError("ERR EXPIRE should be greater than 0")
    return seconds


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
    if number is None or not 0 <= number <= _MAX_UINT32 or not time:
        raise CommandError("ERR a rate is count/seconds, such as 10/1, or 0 for no limit")
    return Rate(number, time if number else 1.0)


def token_of(word: bytes) -> bytes:
    """Return a token, which must be a word of up to 128 printable bytes."""
    if not 0 < len(word) <= 128 or any(byte <= 32 or byte > 126 for byte in word):
        raise CommandError("ERR a token must be 1 to 128 printable characters without spaces")
    return word


def offset_of(word: bytes) -> int:
    """Return the offset of a message in a log."""
    number = integer_from(word)
    if number is None or not 0 <= number <= _MAX_NUMBER:
        raise CommandError("ERR offset is not an integer or out of range")
    return number


def numbered_keys(words: list[bytes], too_many: str = "ERR syntax error") -> tuple[list[bytes], list[bytes]]:
    """Return the keys, whose number is the first word, and the words after the keys.

    `too_many` is the error text if there are fewer words than that number.
    """
    number = integer_from(words[0])
    if number is None or number < 1:
        raise CommandError("ERR numkeys should be greater than 0")
    if number > len(words) - 1:
        raise CommandError(too_many)
    return words[1 : number + 1], words[number + 1 :]


def at_least_0(option: str) -> Callable[[bytes], int]:
    """Return the parser of a number of 0 or more; `option` is the name that Redis's error text has."""

    def parse(word: bytes) -> int:
        number = integer_from(word)
        if number is None or number < 0:
            raise CommandError(f"ERR {option} can't be negative")
        return number

    return parse


def options_in(
    words: list[bytes], parsers: Parsers, *, last_counts: bool = False, of_redis: bool = False
) -> dict[bytes, Any]:
    """Return the values of the options by name; True for those without a value.

    Raise CommandError for an option that is unknown or lacks its value, or is repeated, unless `last_counts`.
    Parsers may raise it, too. As in Redis, the first error from the left is the one that is raised. For a
    command `of_redis` the text is Redis's, which does not say what is wrong.
    """
    found: dict[bytes, Any] = {}
    by_first_word = {name.split()[0]: name for name in parsers}
    rest = iter(words)
    for word in rest:
        name = by_first_word.get(word.upper(), b"")
        others = name.split()[1:]
        is_again = name in found and not last_counts
        if not name or is_again or [next(rest, b"").upper() for _ in others] != others:
            raise syntax_error("" if of_redis else _why_wrong(word, name, parsers, is_again=is_again))
        parse = parsers[name]
        if parse is None:
            found[name] = True
            continue
        value = next(rest, None)
        if value is None:
            raise syntax_error("" if of_redis else f"{name.decode()} needs a value after it")
        found[name] = parse(value)
    return found


def _why_wrong(word: bytes, name: bytes, parsers: Parsers, *, is_again: bool) -> str:
    """Return why there is no option here; `name` is that of the option that begins with the word, if any."""
    if is_again:
        return f"{name.decode()} is given twice"
    if name:
        return f"write {name.decode()}"
    known = ", ".join(option.decode() for option in parsers)
    return (
        f"{shown_word(word)} is none of the options {known}" if known else f"{shown_word(word)} is too much"
    )


def one_of(**choices: Any) -> Callable[[bytes], Any]:
    """Return the parser of a value that is one of these words, in upper case here and in any case there."""
    values = {word.encode(): value for word, value in choices.items()}

    def parse(word: bytes) -> Any:
        if word.upper() not in values:
            raise syntax_error(f"{shown_word(word)} is none of {', '.join(choices)}")
        return values[word.upper()]

    return parse
