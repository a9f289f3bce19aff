"""Arguments of RESP commands: what is accepted, what it means, and which error is raised otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

from handlers.resp import arguments
from pressure_server.errors import CommandError

Parse = Callable[[bytes], Any]
_INT64 = 2**63
_EXACT = 2**53


@pytest.mark.parametrize(
    ("parse", "word", "value"),
    [
        (arguments.integer_of, b"-9223372036854775808", -_INT64),
        (arguments.integer_of, b"9223372036854775807", _INT64 - 1),
        (arguments.position_of, b"-1", -1),
        (arguments.position_of, b"9223372036854775807", _EXACT),
        (arguments.position_of, b"-9223372036854775808", -_EXACT),
        (arguments.cursor_of, b"0", 0),
        (arguments.cursor_of, b"9223372036854775807", _EXACT),
        (arguments.priority_of, b"0", 0),
        (arguments.priority_of, b"4294967295", 2**32 - 1),
        (arguments.token_of, b"!" + b"~" * 127, b"!" + b"~" * 127),
        (arguments.offset_of, b"0", 0),
        (arguments.offset_of, b"9007199254740992", _EXACT),
    ],
)
def test_a_word_has_this_value(parse: Parse, word: bytes, value: object) -> None:
    assert parse(word) == value


@pytest.mark.parametrize(
    ("parse", "words", "error"),
    [
        (arguments.integer_of, b"x 1.5 9223372036854775808 -9223372036854775809", "value is not an integer"),
        (arguments.position_of, b"x", "value is not an integer"),
        (arguments.cursor_of, b"-1 x", "invalid cursor"),
        (arguments.priority_of, b"-1 x 4294967296", "priority is not an integer or out of range"),
        (arguments.token_of, b"\x7f \xff " + b"a" * 129, "a token must be 1 to 128 printable characters"),
        (arguments.offset_of, b"-1 x 9007199254740993", "offset is not an integer or out of range"),
    ],
)
def test_other_words_are_refused(parse: Parse, words: bytes, error: str) -> None:
    for word in words.split(b" "):
        with pytest.raises(CommandError, match=error):
            parse(word)


@pytest.mark.parametrize("token", [b"", b"two words", b"tab\t", b"\x00"])
def test_a_token_has_no_blanks(token: bytes) -> None:
    with pytest.raises(CommandError, match="a token must be"):
        arguments.token_of(token)


@pytest.mark.parametrize(
    ("line", "keys", "rest"),
    [("1 a", "a", ""), ("2 a b LEFT", "a b", "LEFT"), ("1 a b", "a", "b")],
)
def test_a_number_precedes_the_keys(line: str, keys: str, rest: str) -> None:
    assert arguments.numbered_keys(line.encode().split()) == (keys.encode().split(), rest.encode().split())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("0 a", "numkeys should be"),
        ("-1 a", "numkeys should be"),
        ("x a", "numkeys should be"),
        ("2 a", "few"),
    ],
)
def test_a_wrong_number_of_keys_is_refused(line: str, error: str) -> None:
    with pytest.raises(CommandError, match=error):
        arguments.numbered_keys(line.encode().split(), "ERR few keys")
