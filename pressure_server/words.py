"""Words of commands and of the configuration file: integers, counts, times and choices. Pure.

Each function raises CommandError, with Redis's text if Redis has such an argument.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pressure_server.errors import CommandError

# The largest integer that Lua represents exactly. No queue is that long.
MAX_NUMBER = 2**53
# The limits of beanstalkd: priorities, delays and times to run are below 2^32.
MAX_UINT32 = 2**32 - 1
# The numbers that strtold reads, except hexadecimal ones and infinity.
_SECONDS = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_MAX_WAIT = Decimal(2**53) / 1000
# strtold reads a number nearer to 0 than this as 0, which would mean forever. Redis refuses it.
_SHORTEST_WAIT = Decimal("1.83e-4951")
# The bytes of a client's words that an error text repeats.
MAX_SHOWN = 128


def integer_from(text: bytes) -> int | None:
    """Return a 64-bit integer, or None. Like Redis's string2ll, accept no `+` and no leading zero."""
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > 19 or (digits[:1] == b"0" and text != b"0"):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def must_be_positive() -> CommandError:
    """Return the error for a count that is negative or not an integer."""
    return CommandError("ERR value is out of range, must be positive")


def syntax_error(why: str = "") -> CommandError:
    """Return the error for words that the command does not accept at this place.

    The text is Redis's. Commands that Redis does not have add the reason.
    """
    return CommandError(f"ERR syntax error: {why}" if why else "ERR syntax error")


def shown_word(word: bytes) -> str:
    """Return the beginning of a client's word for an error text, in quotes."""
    return f"'{word[:MAX_SHOWN].decode('utf-8', 'backslashreplace')}'"


def count_from_zero(word: bytes) -> int:
    """Return a count of 0 or more. A count above 2^53 becomes 2^53."""
    number = integer_from(word)
    if number is None or number < 0:
        raise must_be_positive()
    return min(number, MAX_NUMBER)


def positive_count(word: bytes) -> int:
    """Return a count of 1 or more. A count above 2^53 becomes 2^53."""
    number = integer_from(word)
    if number is None or number < 1:
        raise CommandError("ERR count should be greater than 0")
    return min(number, MAX_NUMBER)


def bound_of(word: bytes) -> int:
    """Return a bound in messages, or a limit in bytes; 0 for none."""
    number = integer_from(word)
    if number is None or not 0 <= number <= MAX_NUMBER:
        raise CommandError("ERR value is not an integer or out of range")
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


def seconds_of(word: bytes) -> float:
    """Return a delay or a time to run in seconds, rounded up to milliseconds."""
    seconds = timeout_of(word) or 0.0
    if seconds > MAX_UINT32:
        raise CommandError("ERR time is out of range")
    return seconds


def one_of(**choices: Any) -> Callable[[bytes], Any]:
    """Return the parser of a value that is one of these words, in upper case here and in any case there."""
    values = {word.encode(): value for word, value in choices.items()}

    def parse(word: bytes) -> Any:
        if word.upper() not in values:
            raise syntax_error(f"{shown_word(word)} is none of {', '.join(choices)}")
        return values[word.upper()]

    return parse
