"""The parser of RESP: requests, runs of equal ones, limits, numbers and inline commands.

../test_parsers.py tests the properties that the parsers of all protocols share.
"""

import re
from itertools import starmap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.resp.parser import MAX_ARGUMENTS, MAX_LINE, Limits, Repeated, RequestParser, Words, split_inline
from handlers.resp.replies import (
    error,
    unknown_command,
)
from pressure_server.words import integer_from
from tests.support.codecs import MAX_MESSAGE as MAX_BULK
from tests.support.codecs import RESP, SPLITS, bytewise, cut
from tests.support.waiters import packed


def fed(*pieces: bytes, max_bulk: int = MAX_BULK) -> tuple[list[Words], str | None]:
    """Parse these pieces; return single commands, and the text of the error that ends the stream."""
    found = RESP.fed(*pieces, most=max_bulk)
    return (found[:-1], found[-1]) if found and isinstance(found[-1], str) else (found, None)


@pytest.mark.parametrize("words", [[b"SPOP", b"q"], [b"SADD", b"q"]])
@pytest.mark.parametrize("count", [2, 3, 4, 20, 511, 512, 513, 1025])
def test_a_run_of_equal_commands_expands_to_the_commands_sent(words: Words, count: int) -> None:
    commands = [words if words[0] == b"SPOP" else [*words, b"%d" % i] for i in range(count)]
    stream = b"".join(starmap(packed, commands))
    if count >= 20:
        assert any(isinstance(item, Repeated) for item in RequestParser(Limits(MAX_BULK)).feed(stream))
    assert fed(stream) == (commands, None)
    assert fed(*bytewise(stream)) == (commands, None)


TWINS = st.tuples(
    st.sampled_from([b"SADD", b"SPOP", b"sadd"]),
    st.sampled_from([b"q", b"r", b""]),
    st.sampled_from([None, b"", b"m", b"longer", b"a\r\nb", b"x" * 4097]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TWINS, st.integers(1, 25)), max_size=6), SPLITS)
def test_runs_of_any_commands_expand_to_the_commands_sent(
    runs: list[tuple[tuple[bytes, bytes, bytes | None], int]], places: list[int]
) -> None:
    commands = [[word for word in words if word is not None] for words, times in runs for _ in range(times)]
    stream = b"".join(starmap(packed, commands))
    assert fed(stream) == (commands, None)
    assert fed(*cut(stream, places)) == (commands, None)


def test_a_run_ends_before_a_command_with_a_wrong_length() -> None:
    good, bad = packed(b"SADD", b"q", b"m"), b"*3\r\n$4\r\nSADD\r\n$1\r\nq\r\n$x\r\nm\r\n"
    commands, reason = fed(good * 30 + bad + good * 30)
    assert commands == [[b"SADD", b"q", b"m"]] * 30
    assert reason == "Protocol error: invalid bulk length"


def test_the_commands_of_a_run_are_separate_objects() -> None:
    commands, _ = fed(packed(b"SPOP", b"q") * 30)
    commands[0].append(b"more")
    assert commands[1] == [b"SPOP", b"q"]


LIMITS: list[tuple[str, bytes, str]] = [
    ("count, garbage", b"*abc\r\n", "invalid multibulk length"),
    ("count, empty", b"*\r\n", "invalid multibulk length"),
    ("count, plus sign", b"*+1\r\n", "invalid multibulk length"),
    ("count, leading zero", b"*01\r\n", "invalid multibulk length"),
    ("count, space", b"* 1\r\n", "invalid multibulk length"),
    ("count, too large", b"*%d\r\n" % (MAX_ARGUMENTS + 1), "invalid multibulk length"),
    ("count, 4294967295", b"*4294967295\r\n", "invalid multibulk length"),
    ("count, 2^64", b"*18446744073709551616\r\n", "invalid multibulk length"),
    ("count, beyond 64 bits", b"*18446744073709551617\r\n", "invalid multibulk length"),
    ("count, never ends", b"*" + b"1" * (MAX_LINE + 1), "too big mbulk count string"),
    ("length, garbage", b"*1\r\n$x\r\n", "invalid bulk length"),
    ("length, empty", b"*1\r\n$\r\n", "invalid bulk length"),
    ("length, 2^63", b"*1\r\n$9223372036854775808\r\n", "invalid bulk length"),
    ("length, -1", b"*1\r\n$-1\r\n", "invalid bulk length"),
    ("length, -0", b"*1\r\n$-0\r\n", "invalid bulk length"),
    ("length, plus sign", b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
    ("length, leading zero", b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
    ("length, too large", b"*1\r\n$%d\r\n" % (MAX_BULK + 1), "invalid bulk length"),
    ("length, beyond 64 bits", b"*1\r\n$18446744073709551620\r\n", "invalid bulk length"),
    ("length, never ends", b"*1\r\n$" + b"1" * (MAX_LINE + 1), "too big bulk count string"),
    ("element, integer", b"*1\r\n:1\r\n", "expected '$', got ':'"),
    ("element, array", b"*1\r\n*1\r\n", "expected '$', got '*'"),
    ("element, arrays in arrays", b"*1\r\n" * 10_000, "expected '$', got '*'"),
    ("element, RESP3 verbatim string", b"*1\r\n=8\r\ntxt:PING\r\n", "expected '$', got '='"),
    ("element, RESP3 null", b"*2\r\n$4\r\nECHO\r\n_\r\n", "expected '$', got '_'"),
    ("element, RESP3 blob", b"*1\r\n!3\r\nabc\r\n", "expected '$', got '!'"),
    ("element, binary", b"*1\r\n\x00\r\n", "expected '$', got '\\x00'"),
    ("element, empty line", b"*1\r\n\r\n", "expected '$', got '\\x0d'"),
    ("inline, unbalanced", b"PING 'a\r\n", "unbalanced quotes in request"),
    ("inline, unbalanced double quotes", b'SADD q "a\r\n', "unbalanced quotes in request"),
    ("inline, no space after quotes", b'PING "a"b\r\n', "unbalanced quotes in request"),
    ("inline, never ends", b"x" * (MAX_LINE + 1), "too big inline request"),
    ("inline, too long", b"x" * (MAX_LINE + 1) + b"\r\n", "too big inline request"),
]


@pytest.mark.parametrize(("stream", "reason"), [case[1:] for case in LIMITS], ids=[c[0] for c in LIMITS])
def test_an_error_follows_the_commands_before_it(stream: bytes, reason: str) -> None:
    reason = f"Protocol error: {reason}"
    before = packed(b"PING") + b"ECHO a\r\n" + packed(b"ECHO", b"x" * 5000)
    assert fed(stream) == ([], reason)
    assert fed(before + stream) == ([[b"PING"], [b"ECHO", b"a"], [b"ECHO", b"x" * 5000]], reason)
    assert fed(packed(b"SPOP", b"q") * 40 + stream) == ([[b"SPOP", b"q"]] * 40, reason)


@pytest.mark.parametrize(
    "stream",
    [
        b"*0\r\n", b"*-1\r\n", b"*-9223372036854775808\r\n", b"\r\n", b"\n", b" \t\r\n",
        b"*0\r\n" * 1000, b"\n" * 10_000, bytes(4096) + b"\n",
    ],
)  # fmt: skip
def test_empty_requests_are_skipped(stream: bytes) -> None:
    assert fed(stream * 3 + packed(b"PING")) == ([[b"PING"]], None)


# By request: how the error shows it.
UNKNOWN: dict[bytes, str] = {
    b"%1\r\n": "'%1', with args beginning with: ",
    b">1\r\n": "'>1', with args beginning with: ",
    b"-ERR no\r\n": "'-ERR', with args beginning with: 'no' ",
    b"$4\r\n": "'$4', with args beginning with: ",
    b"GET / HTTP/1.1\r\n": "'GET', with args beginning with: '/' 'HTTP/1.1' ",
    b"\x16\x03\x01\x01\xc8\x01\n": "'\x16\x03\x01\x01\\xc8\x01', with args beginning with: ",
    packed("NO\r\n+OK\r\n", "\r\n$3"): "'NO  +OK  ', with args beginning with: '  $3' ",
    packed(""): "'', with args beginning with: ",
    packed(b"\xff\xfe", b"\x80"): "'\\xff\\xfe', with args beginning with: '\\x80' ",
}


@pytest.mark.parametrize("stream", UNKNOWN)
def test_an_unknown_command_is_shown_escaped_and_on_one_line(stream: bytes) -> None:
    (command,), reason = fed(stream)
    assert reason is None
    assert error(unknown_command(command)) == b"-ERR unknown command %b\r\n" % UNKNOWN[stream].encode()


@pytest.mark.slow
def test_the_largest_bulk_line_and_argument_count_are_allowed() -> None:
    assert fed(packed(b"x" * MAX_BULK)) == ([[b"x" * MAX_BULK]], None)
    line = b"x" * MAX_LINE
    assert fed(line + b"\n") == ([[line]], None)
    commands, reason = fed(b"*%d\r\n" % MAX_ARGUMENTS + b"$0\r\n\r\n" * MAX_ARGUMENTS, max_bulk=32 << 20)
    assert reason is None
    assert commands == [[b""] * MAX_ARGUMENTS]


def test_the_size_of_a_whole_request_is_bounded() -> None:
    size = 8 << 20
    parser = RequestParser(Limits(size))
    argument = b"$%d\r\n%b\r\n" % (size, bytes(size))
    assert parser.feed(b"*100\r\n") == []
    arrived = 0
    for _ in range(100):
        if out := parser.feed(argument):
            assert str(out[0]) == "Protocol error: too big request"
            break
        arrived += size
    assert arrived <= size + (64 << 20)


@pytest.mark.parametrize(
    ("beginning", "exceeds"),
    [
        (b"*10\r\n", False),
        (b"*11\r\n", True),
        (b"*11\r\n" + b"$1\r\na\r\n" * 10, True),
        (b"*2\r\n$4\r\nAUTH\r\n$16384\r\n", False),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", True),
        (packed("AUTH", b"x" * 20_000), False),
    ],
)
def test_the_beginning_of_a_command_tells_whether_it_exceeds_a_login(beginning: bytes, exceeds: bool) -> None:
    parser = RequestParser(Limits(MAX_BULK))
    parser.feed(beginning)
    assert parser.exceeds_login_limits is exceeds


INTEGERS = re.compile(rb"0|-?[1-9][0-9]*")


@given(
    st.one_of(
        st.binary(max_size=22), st.from_regex(rb"\A[-+0]?[0-9]{1,21}\Z"), st.integers().map(b"%d".__mod__)
    )
)
@example(b"9223372036854775807")
@example(b"9223372036854775808")
@example(b"-9223372036854775808")
@example(b"-9223372036854775809")
@example("٣".encode())
@example(b"9" * 5000)
@example(b"1" * (1 << 20))
def test_numbers_have_redis_s_syntax_and_range(text: bytes) -> None:
    # Python converts at most 4300 digits.
    expected = int(text) if len(text) < 4000 and INTEGERS.fullmatch(text) else None
    if expected is not None and not -(2**63) <= expected < 2**63:
        expected = None
    assert integer_from(text) == expected


@given(st.from_regex(rb"\A-?[0-9]{1,8}\Z"), st.sampled_from([b"\r\n", b"\rx", b"x\r\n"]))
@example(b"99999", b"\r\n")
@example(b"100000", b"\r\n")
@example(b"1048576", b"\r\n")
def test_lengths_are_read_as_numbers_are(text: bytes, end: bytes) -> None:
    length = integer_from(text) if end[:1] == b"\r" else None
    is_valid = length is not None and 0 <= length <= MAX_BULK
    message = b"x" * (length if is_valid and length else 0)
    commands, reason = fed(b"*2\r\n$1\r\na\r\n$" + text + end + message + b"\r\n")
    if is_valid:
        assert (commands, reason) == ([[b"a", message]], None)
    else:
        assert (commands, reason) == ([], "Protocol error: invalid bulk length")


SPACES, BARE_ENDS = b" \t\n\v\f\r", b" \n\r\t\0"
ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


def sdssplitargs(line: bytes) -> list[bytes] | None:
    """Split as sds.c of Redis 7.0 does. C finds a zero after the end."""
    text, position = line + b"\0\0\0\0", 0
    found: list[bytes] = []
    while True:
        while position < len(line) and text[position] in SPACES:
            position += 1
        if position >= len(line):
            return found
        argument, position = _next_argument(text, position, len(line))
        if argument is None:
            return None
        found.append(argument)


def _next_argument(text: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    argument, quote = bytearray(), 0
    while True:
        char = text[position]
        if quote:
            if position >= end:
                return None, position
            if quote == ord('"') and re.match(rb"\\x[0-9a-fA-F]{2}", text[position : position + 4]):
                argument.append(int(text[position + 2 : position + 4], 16))
                position += 3
            elif quote == ord('"') and char == ord("\\") and position + 1 < end:
                position += 1
                argument.append(ESCAPES.get(text[position], text[position]))
            elif quote == ord("'") and text[position : position + 2] == b"\\'":
                position += 1
                argument.append(ord("'"))
            elif char == quote:
                if position + 1 < end and text[position + 1] not in SPACES:
                    return None, position
                return bytes(argument), position + 1
            else:
                argument.append(char)
        elif position >= end or char in BARE_ENDS:
            return bytes(argument), position
        elif char in b"\"'":
            quote = char
        else:
            argument.append(char)
        position += 1


LINES = st.one_of(
    st.lists(st.sampled_from([bytes([c]) for c in b"ab01x\\\"' \t\r\v\fn\xff"]), max_size=14).map(b"".join),
    st.binary(max_size=20).map(lambda line: line.replace(b"\0", b"")),
)


@settings(max_examples=400, deadline=None)
@given(LINES)
@example(b"")
@example(rb"'a\\'")
@example(b"a\vb")
@example(rb'"\x4"')
@example(rb'ECHO "a\n\r\t\b\a\"\\\z\x41\xzz"')
@example(rb"ECHO 'a\'b\n\"'")
def test_an_inline_command_is_split_as_in_redis(line: bytes) -> None:
    assert split_inline(line) == sdssplitargs(line)
