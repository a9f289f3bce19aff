"""A command's words as what they stand for. All raise CommandError, with Redis's text."""

from __future__ import annotations

from handlers.resp.errors import invalid_cursor, must_be_positive, not_an_integer
from handlers.resp.parser import integer_from

# What a Lua script can still count exactly; no queue is that long.
_LONGEST = 2**53


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


def position_of(word: bytes) -> int:
    """A position in a queue: from 0 for the oldest, or from -1 for the newest."""
    return max(-_LONGEST, min(integer_of(word), _LONGEST))


def cursor_of(word: bytes) -> int:
    """The cursor of a scan."""
    number = integer_from(word)
    if number is None or number < 0:
        raise invalid_cursor()
    return min(number, _LONGEST)
