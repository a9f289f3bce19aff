"""A command's words as what they stand for. All raise CommandError, with Redis's text."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from handlers.resp.errors import invalid_cursor, must_be_positive, not_an_integer
from handlers.resp.parser import integer_from
from handlers.resp.replies import CommandError

# What a Lua script can still count exactly; no queue is that long.
_LONGEST = 2**53
# Of a list; a queue is first in, first out, whichever is named.
ENDS = (b"LEFT", b"RIGHT")


def integer_of(word: bytes) -> int:
    """A 64-bit number."""
    number = integer_from(word)
    if number is None:
        raise not_an_integer()
    return number


def count_of(word: bytes) -> int:
    """How many: a number from 0."""
    number = integer_from(word)
    if number is None or number < 0:
        raise must_be_positive()
    return min(number, _LONGEST)


def how_many(word: bytes) -> int:
    """How many, at least one."""
    number = integer_from(word)
    if number is None or number < 1:
        raise CommandError("ERR count should be greater than 0")
    return min(number, _LONGEST)


def position_of(word: bytes) -> int:
    """A position in a queue: from 0 for the oldest, or from -1 for the newest."""
    return max(-_LONGEST, min(integer_of(word), _LONGEST))


def cursor_of(word: bytes) -> int:
    """The cursor of a scan."""
    number = integer_from(word)
    if number is None or number < 0:
        raise invalid_cursor()
    return min(number, _LONGEST)


def bound_of(word: bytes) -> int:
    """How many messages a queue may hold, 0 for any number."""
    number = integer_from(word)
    if number is None or not 0 <= number <= _LONGEST:
        raise CommandError("ERR bound is not an integer or out of range")
    return number


# What strtold reads of what a client may mean: no hexadecimal numbers, no infinity.
_SECONDS = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_LONGEST_WAIT = Decimal(2**53) / 1000
# What is nearer to 0 than this strtold reads as 0, which would be for ever, so Redis refuses it.
_SHORTEST_WAIT = Decimal("1.83e-4951")


def timeout_of(word: bytes) -> float | None:
    """How many seconds to wait; None, for ever, where it is 0. Redis rounds it to milliseconds, up."""
    if len(word) > 64 or not _SECONDS.fullmatch(word):
        raise CommandError("ERR timeout is not a float or out of range")
    seconds = Decimal(word.decode())
    if 0 < abs(seconds) < _SHORTEST_WAIT:
        raise CommandError("ERR timeout is not a float or out of range")
    if seconds > _LONGEST_WAIT:
        raise CommandError("ERR timeout is out of range")
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    return math.ceil(seconds * 1000) / 1000 or None


def numbered_keys(words: list[bytes], too_many: str = "ERR syntax error") -> tuple[list[bytes], list[bytes]]:
    """The keys behind the number that says how many they are, and the words behind them.

    `too_many` is the error where there are fewer.
    """
    number = integer_from(words[0])
    if number is None or number < 1:
        raise CommandError("ERR numkeys should be greater than 0")
    if number > len(words) - 1:
        raise CommandError(too_many)
    return words[1 : number + 1], words[number + 1 :]
