"""Parsing of a command's words: positions, cursors, priorities, tokens, offsets, keys. See words.py.

Each function raises CommandError, with Redis's text if Redis has such an argument.
"""

from collections.abc import Callable

from pressure_server.errors import CommandError
from pressure_server.words import MAX_NUMBER, MAX_UINT32, integer_from, seconds_of

# The ends of a list. A queue is first in, first out, whichever end is named.
ENDS = (b"LEFT", b"RIGHT")


def number_between(least: int, most: int, error: str) -> Callable[[bytes], int]:
    """Return the parser of an integer from `least` to `most`; `error` is the text for any other word."""

    def parse(word: bytes) -> int:
        number = integer_from(word)
        if number is None or not least <= number <= most:
            raise CommandError(f"ERR {error}")
        return number

    return parse


_LARGEST = 2**63 - 1
integer_of = number_between(-(2**63), _LARGEST, "value is not an integer or out of range")
# The priority of a job: 0 is the most urgent.
priority_of = number_between(0, MAX_UINT32, "priority is not an integer or out of range")
# The offset of a message in a log.
offset_of = number_between(0, MAX_NUMBER, "offset is not an integer or out of range")


def at_least_0(option: str) -> Callable[[bytes], int]:
    """Return the parser of a number of 0 or more; `option` is the name that Redis's error text has."""
    return number_between(0, _LARGEST, f"{option} can't be negative")


def position_of(word: bytes) -> int:
    """Return a position in a queue: 0 is the oldest message, -1 the newest."""
    return max(-MAX_NUMBER, min(integer_of(word), MAX_NUMBER))


def cursor_of(word: bytes) -> int:
    """Return the cursor of a scan."""
    return min(number_between(0, _LARGEST, "invalid cursor")(word), MAX_NUMBER)


def expiry_of(word: bytes) -> float:
    """Return after how many seconds a message expires, rounded up to milliseconds."""
    seconds = seconds_of(word)
    if not seconds:
        raise CommandError("ERR EXPIRE should be greater than 0")
    return seconds


def token_of(word: bytes) -> bytes:
    """Return a token, which must be a word of up to 128 printable bytes."""
    if not 0 < len(word) <= 128 or any(byte <= 32 or byte > 126 for byte in word):
        raise CommandError("ERR a token must be 1 to 128 printable characters without spaces")
    return word


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
