"""Words of commands and of the configuration file: their values, and the errors of wrong ones."""

from collections.abc import Callable
from typing import Any

import pytest

from pressure_server import words
from pressure_server.errors import CommandError

Parse = Callable[[bytes], Any]
_EXACT = 2**53


@pytest.mark.parametrize(
    ("parse", "word", "value"),
    [
        (words.count_from_zero, b"0", 0),
        (words.count_from_zero, b"9223372036854775807", _EXACT),
        (words.positive_count, b"1", 1),
        (words.positive_count, b"9223372036854775807", _EXACT),
        (words.bound_of, b"0", 0),
        (words.bound_of, b"9007199254740992", _EXACT),
        (words.timeout_of, b"0", None),
        (words.timeout_of, b"-0", None),
        (words.timeout_of, b"1.5e1", 15.0),
        (words.timeout_of, b".0001", 0.001),
        (words.timeout_of, b"0.0011", 0.002),
        (words.timeout_of, b"9007199254740.992", 9007199254740.992),
        (words.seconds_of, b"0", 0.0),
        (words.seconds_of, b"4294967295", 2.0**32 - 1),
    ],
)
def test_a_word_has_this_value(parse: Parse, word: bytes, value: object) -> None:
    assert parse(word) == value


@pytest.mark.parametrize(
    ("parse", "refused", "error"),
    [
        (words.count_from_zero, b"-1 x", "value is out of range, must be positive"),
        (words.positive_count, b"0 -1 x", "count should be greater than 0"),
        (words.bound_of, b"-1 x 9007199254740993", "value is not an integer or out of range"),
        (
            words.timeout_of,
            b"x 1e 0x1 inf nan 1e-4952 -1e-4952",
            "timeout is not a float or out of range",
        ),
        (words.timeout_of, b"1" * 65, "timeout is not a float or out of range"),
        (words.timeout_of, b"9007199254740.993 1e99", "timeout is out of range"),
        (words.timeout_of, b"-1 -0.001", "timeout is negative"),
        (words.seconds_of, b"4294967295.001", "time is out of range"),
        (words.seconds_of, b"-1", "timeout is negative"),
    ],
)
def test_other_words_are_refused(parse: Parse, refused: bytes, error: str) -> None:
    for word in refused.split(b" "):
        with pytest.raises(CommandError, match=error):
            parse(word)


def test_a_timeout_of_64_characters_is_read() -> None:
    assert words.timeout_of(b"0" * 63 + b"7") == 7.0
