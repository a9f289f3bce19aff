"""Globs, which match the same strings as in Redis; and counts."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pressure_server.text import Glob, counted


def stringmatchlen(pattern: bytes, string: bytes) -> bool:
    """Match as util.c of Redis 7.0 does, without skipLongerMatches, which only saves time.

    Bytes are unsigned, as on ARM. Stars match the empty string, which Redis handles elsewhere.
    """
    if not string:
        return not pattern.strip(b"*")
    at, pos = 0, 0
    while at < len(pattern) and pos < len(string):
        char = pattern[at]
        if char == ord("*"):
            while pattern[at + 1 : at + 2] == b"*":
                at += 1
            rest = pattern[at + 1 :]
            return not rest or any(stringmatchlen(rest, string[i:]) for i in range(pos, len(string)))
        if char == ord("["):
            matched, at = _in_class(pattern, at + 1, string[pos])
            if not matched:
                return False
        elif char != ord("?"):
            if char == ord("\\") and at + 1 < len(pattern):
                at += 1
            if pattern[at] != string[pos]:
                return False
        pos, at = pos + 1, at + 1
        if pos == len(string):
            at += len(pattern[at:]) - len(pattern[at:].lstrip(b"*"))
    return at >= len(pattern) and pos == len(string)


def _in_class(pattern: bytes, at: int, byte: int) -> tuple[bool, int]:
    negated = pattern[at : at + 1] == b"^"
    at += negated
    matched = False
    while True:
        left = len(pattern) - at
        if left >= 2 and pattern[at] == ord("\\"):
            at += 1
            matched |= pattern[at] == byte
        elif left and pattern[at] == ord("]"):
            break
        elif not left:
            at -= 1
            break
        elif left >= 3 and pattern[at + 1] == ord("-"):
            low, high = sorted((pattern[at], pattern[at + 2]))
            matched |= low <= byte <= high
            at += 2
        else:
            matched |= pattern[at] == byte
        at += 1
    return matched is not negated, at


def glob_texts(alphabet: bytes, size: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from([bytes([c]) for c in alphabet]), max_size=size).map(b"".join)


@settings(max_examples=600, deadline=None)
@given(glob_texts(b"ab*?[]^-\\\xff\n", 9), glob_texts(b"ab]-^\\*\xff\n", 7))
@example(b"[", b"a")
@example(b"[^", b"a")
@example(b"[a-]", b"b")
@example(b"[\\", b"\\")
@example(b"a*", b"a")
@example(b"**", b"")
def test_a_glob_matches_the_strings_that_redis_matches(pattern: bytes, string: bytes) -> None:
    expected = stringmatchlen(pattern, string)
    assert Glob(pattern).matches(string) == expected
    # A long pattern is matched part by part, here in very small steps.
    before = b"before " * 20
    assert Glob(before + pattern, at_once=3).matches(before + string) == expected
    assert Glob(b"*" + before + pattern, at_once=3).matches(string + before + string) == expected


@given(st.binary(max_size=20))
def test_an_escaped_name_matches_only_itself(name: bytes) -> None:
    pattern = b"".join(b"\\" + name[i : i + 1] for i in range(len(name)))
    assert Glob(pattern).matches(name)
    assert not Glob(pattern).matches(name + b"x")
    assert Glob(b"*" + pattern + b"*").matches(b"before" + name + b"after")


def test_a_glob_of_many_stars_takes_no_exponential_time() -> None:
    assert not Glob(b"*a" * 60 + b"b").matches(b"a" * 5000)
    assert not Glob(b"*?" * 60 + b"b").matches(b"a" * 5000)


@pytest.mark.parametrize("middle", [b"a" * 4000, b"a?" * 2000, b"[a-b]" * 800], ids=["text", "?", "classes"])
def test_a_pattern_is_matched_in_steps_of_bounded_work(middle: bytes) -> None:
    """All of the work on this text would be 16 000 million comparisons, which hold up other clients."""
    steps = Glob(b"*" + middle + b"c*").steps(b"a" * (4 << 20))
    assert 50 < sum(1 for _ in steps) < 100


def test_a_plain_part_is_found_in_a_time_that_does_not_grow_with_its_length() -> None:
    """Redis and a regular expression compare 4 000 bytes at each of 4 million positions."""
    assert not Glob(b"*" + b"a" * 4000 + b"b*").matches(b"a" * (4 << 20))


@pytest.mark.parametrize(
    ("number", "things", "text"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (2, ("message",), "2 messages"),
        (12345678, ("message",), "12345678 messages"),
        (1, ("reply of yes", "replies of yes"), "1 reply of yes"),
        (2, ("reply of yes", "replies of yes"), "2 replies of yes"),
        (1.0, ("second",), "1 second"),
        (0.5, ("second",), "0.5 seconds"),
        (20.0, ("second",), "20 seconds"),
    ],
)
def test_a_single_thing_is_not_a_plural(number: float, things: tuple[str, ...], text: str) -> None:
    assert counted(number, *things) == text
