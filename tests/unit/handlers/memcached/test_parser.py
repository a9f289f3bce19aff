"""The parser of memcached's protocol: refused blocks, lines, keys, and the binary protocol.

../test_parsers.py tests what the parsers of all protocols share.
"""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handlers.memcached.parser import (
    BAD_CHUNK,
    BAD_FORMAT,
    BAD_KEY,
    LINE_TOO_LONG,
    MAX_KEY,
    MAX_KEYS_LINE,
    MAX_LINE,
    TOO_LARGE,
    Request,
    RequestParser,
)
from pressure_server.net.line_parser import Refused
from tests.support.codecs import EVIL, MEMCACHED, bytewise, traced_memory

MOST = 4096
ERROR = b"ERROR\r\n"


def fed(*pieces: bytes) -> list[Any]:
    """Return the requests and errors in these pieces, up to an error that closes the connection."""
    return MEMCACHED.fed(*pieces, most=MOST)


def refused(reply: bytes) -> list[Refused]:
    return [Refused(reply)]


def fatal(reply: bytes) -> list[Refused]:
    return [Refused(reply, closes=True)]


VERSION = [Request([b"version"])]


MOST_KEY = b"k" * 250
LONG_KEY = b"k" * (MAX_KEY + 1)
REFUSED_LINES: dict[str, tuple[bytes, bytes]] = {
    "too large": (b"set q 0 0 %d\r\n", TOO_LARGE),
    "a key of 251 bytes": (b"set " + LONG_KEY + b" 0 0 %d\r\n", BAD_FORMAT),
    "control characters in the key": (b"add a\x01b 0 0 %d\r\n", BAD_FORMAT),
    "a delete character in the key": (b"add a\x7f 0 0 %d\r\n", BAD_FORMAT),
    "a tab in the key": (b"add a\tb 0 0 %d\r\n", BAD_FORMAT),
    "an extra word": (b"append q 0 0 %d 7\r\n", BAD_FORMAT),
    "cas without a unique": (b"cas q 0 0 %d\r\n", BAD_FORMAT),
    "cas with an extra word": (b"cas q 0 0 %d 1 2\r\n", BAD_FORMAT),
    "words after noreply": (b"set q 0 0 %d noreply junk\r\n", BAD_FORMAT),
    "a meta set of a bad key": (b"ms a\x01b %d\r\n", BAD_FORMAT),
    "a meta set of a key of 251 bytes": (b"ms " + LONG_KEY + b" %d q\r\n", BAD_FORMAT),
    "a meta set of a key that is not base64": (b"ms %%%% %d b q\r\n", BAD_KEY),
    "a meta set of an empty key in base64": (b"ms = %d k b\r\n", BAD_KEY),
    "a meta set of a long key in base64": (b"ms " + b"YWJj" * 63 + b" %d b\r\n", BAD_KEY),
    "too large, with noreply": (b"set q 0 0 %d noreply\r\n", b""),
    "a bad key, with noreply": (b"set " + LONG_KEY + b" 0 0 %d noreply\r\n", b""),
}


@pytest.mark.parametrize("name", REFUSED_LINES)
@pytest.mark.parametrize(
    "data", [EVIL, EVIL * 100, b"", b"\n" * 50], ids=["evil", "much evil", "empty", "line ends"]
)
def test_a_refused_block_is_never_executed(name: str, data: bytes) -> None:
    line, reply = REFUSED_LINES[name]
    if name.startswith("too large"):
        data = data.ljust(MOST + 1, b"\n")
    stream = line % len(data) + data + b"\r\n"
    expected = [*refused(reply), *VERSION]
    assert fed(stream + b"version\r\n") == expected
    for at in range(0, len(stream), max(1, len(stream) // 97)):
        assert fed(stream[:at], stream[at:] + b"version\r\n") == expected
    assert fed(*bytewise(stream + b"version\r\n")) == expected


UNSIZED = [
    b"ms q", b"ms q S3", b"ms q x", b"ms q -1", b"ms YQ== b", b"ms q 3x c", b"SET q 0 0", b"Ms q",
    b"set q", b"set q 0", b"set q 0 0", b"add q 0 0", b"cas q", b"cas q 0 0", b"set q noreply",
    b"set q 0 0 ",
    *[b"set q 0 0 " + size for size in (
        b"x", b"-1", b"+3", b"3x", b"0x3", b"one", b"99999999999", b"1" * 1000, b"noreply", "٣".encode(),
    )],
]  # fmt: skip


@pytest.mark.parametrize("line", UNSIZED)
def test_a_block_without_a_valid_size_ends_the_connection(line: bytes) -> None:
    stream = b"version\r\n" + line + b"\r\n" + EVIL
    assert fed(stream) == [*VERSION, *fatal(BAD_FORMAT)]
    assert fed(*bytewise(stream)) == [*VERSION, *fatal(BAD_FORMAT)]


@pytest.mark.parametrize("size", [MOST + 1, 2**31 - 1, 2**32, 9_999_999_999])
def test_a_block_of_a_huge_size_takes_no_memory_and_is_not_executed(size: int) -> None:
    parser = RequestParser(MOST)
    assert parser.feed(b"set q 0 0 %d\r\n" % size) == refused(TOO_LARGE)
    assert parser.awaited >= size
    left = size + 2
    for _ in range(100):
        found = parser.feed(EVIL)
        left -= len(EVIL)
        assert found == [] or left < len(EVIL)
        assert parser.unparsed < len(EVIL)


@pytest.mark.parametrize(
    "block",
    [b"abcd\r\n", b"abcdefgh flush_all\r\n", b"abc\n\r\n", b"abc\r\r\n", b"ab\r\n", b"abc\nget q\r\n"],
)
@pytest.mark.parametrize("line", [b"set q 0 0 3", b"set q 0 0 3 noreply", b"ms q 3", b"ms q 3 q"])
def test_a_block_of_a_wrong_length_ends_the_connection(line: bytes, block: bytes) -> None:
    """How much of it follows is unknown, and must not be read as commands."""
    stream = b"version\r\n" + line + b"\r\n" + block + b"version\r\n"
    assert fed(stream) == fed(*bytewise(stream)) == [*VERSION, *fatal(BAD_CHUNK)]


def test_a_run_of_equal_requests_ends_before_a_refused_block() -> None:
    good, bad = b"set q 0 0 3\r\nabc\r\n", b"set q 0 0 3\r\nabcd\r\n"
    expected = [Request([b"set", b"q", b"0", b"0", b"3"], [b"abc"])]
    assert fed(good * 30 + bad) == [*expected * 30, *fatal(BAD_CHUNK)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"\r\n", refused(ERROR)),
        (b"\n", refused(ERROR)),
        (b"   \r\n", refused(ERROR)),
        (b"set\r\n", refused(ERROR)),
        (b"get a\n", [Request([b"get", b"a"])]),
        (b"get a\r\r\n", [Request([b"get", b"a"])]),
        (b"  get   a  b \r\n", [Request([b"get", b"a", b"b"])]),
        (b"sismember q  two words \r\n", [Request([b"sismember", b"q", b" two words "])]),
        (b"delete q noreply\r\n", [Request([b"delete", b"q"], is_quiet=True)]),
        (b"delete noreply\r\n", [Request([b"delete", b"noreply"])]),
        (b"delete noreply noreply\r\n", [Request([b"delete", b"noreply"], is_quiet=True)]),
        (b"incr noreply 1\r\n", [Request([b"incr", b"noreply", b"1"])]),
        (b"touch q 0 noreply\r\n", [Request([b"touch", b"q", b"0"], is_quiet=True)]),
        (b"flush_all noreply\r\n", [Request([b"flush_all"], is_quiet=True)]),
        (b"verbosity 1 noreply\r\n", [Request([b"verbosity", b"1"], is_quiet=True)]),
        (b"get noreply\r\n", [Request([b"get", b"noreply"])]),
        (b"get q noreply\r\n", [Request([b"get", b"q", b"noreply"])]),
        (b"scard noreply\r\n", [Request([b"scard", b"noreply"])]),
        (b"noreply\r\n", [Request([b"noreply"])]),
        (b"set noreply 0 0 1\nx\r\n", [Request([b"set", b"noreply", b"0", b"0", b"1"], [b"x"])]),
        (b"set q 0 0 01\r\nx\r\n", [Request([b"set", b"q", b"0", b"0", b"01"], [b"x"])]),
        (b"set q 0 0 0\r\n\r\n", [Request([b"set", b"q", b"0", b"0", b"0"], [b""])]),
        (b"SET q 0 0 6\r\nquit\r\n\r\n", [Request([b"SET", b"q", b"0", b"0", b"6"], [b"quit\r\n"])]),
        (b"ms q 6 F1 q\r\nquit\r\n\r\n", [Request([b"ms", b"q", b"6", b"F1", b"q"], [b"quit\r\n"])]),
        (b"ms q 1 noreply\r\nx\r\n", [Request([b"ms", b"q", b"1", b"noreply"], [b"x"])]),
        (b"ms cSA= 1 b k\r\nx\r\n", [Request([b"ms", b"q ", b"1", b"b", b"k"], [b"x"])]),
        (b"mg /wo= v b\r\n", [Request([b"mg", b"\xff\n", b"v", b"b"])]),
        (b"mg cSA= v\r\n", [Request([b"mg", b"cSA=", b"v"])]),
        (b"md b b\r\n", refused(BAD_KEY)),
        (b"ms b 1 k\r\nx\r\n", [Request([b"ms", b"b", b"1", b"k"], [b"x"])]),
        (b"mg\r\n", [Request([b"mg"])]),
        (b"set %b 0 0 1\r\nx\r\n" % MOST_KEY, [Request([b"set", MOST_KEY, b"0", b"0", b"1"], [b"x"])]),
        # A line or a block may have the first byte of the binary protocol.
        (b"get \x80\r\n", [Request([b"get", b"\x80"])]),
        (b"set q 0 0 2\r\n\x80\n\r\n", [Request([b"set", b"q", b"0", b"0", b"2"], [b"\x80\n"])]),
    ],
)
def test_a_line_is_split_into_words(line: bytes, expected: list[Request | Refused]) -> None:
    assert fed(line + b"version\r\n") == [*expected, *VERSION]
    assert fed(*bytewise(line + b"version\r\n")) == [*expected, *VERSION]


@pytest.mark.parametrize("name", [b"get", b"gets", b"gat", b"gats"])
def test_a_line_of_keys_has_at_most_64_kib(name: bytes) -> None:
    longest = (name + b" " + b"k " * MAX_KEYS_LINE)[: MAX_KEYS_LINE - 2] + b"\r\n"
    assert len(longest) == MAX_KEYS_LINE
    for pieces in ([longest], [longest[:MAX_LINE], longest[MAX_LINE:]], bytewise(longest)):
        (found,) = fed(*pieces)
        assert isinstance(found, Request)
        assert len(found.words) > 32_000
    for pieces in (
        [b" " + longest],
        [longest[:-2] + b" \r\n"],
        [longest[:-1] + b"x" * 10],
        bytewise(longest[:-2] + b"k\r\n"),
    ):
        assert fed(*pieces) == fatal(LINE_TOO_LONG)


@pytest.mark.parametrize("start", [b"", b"set q ", b"GET ", b"delete ", b"get"])
def test_other_lines_have_at_most_2048_bytes(start: bytes) -> None:
    too_long = start.ljust(MAX_LINE, b"x") + b"\n"
    assert fed(too_long) == fed(too_long[:-1], b"\n") == fed(*bytewise(too_long)) == fatal(LINE_TOO_LONG)
    assert fed(too_long[:-1]) == []
    assert fed(too_long[:-1] + b"x") == fatal(LINE_TOO_LONG)
    assert fed(b"x" * (MAX_LINE - 1) + b"\n") == [Request([b"x" * (MAX_LINE - 1)])]


def binary(opcode: int, opaque: bytes, key: bytes = b"") -> bytes:
    """Return a request of the binary protocol. `opaque` has four bytes."""
    return struct.pack(">BBH4xI4s8x", 0x80, opcode, len(key), len(key), opaque) + key


@given(st.integers(0, 255), st.binary(min_size=4, max_size=4), st.integers(0, 300), st.integers(0, 400))
@example(0, b"\n\n\n\n", 10, 0)
@example(10, b"OPAQ", 10, 24)
def test_a_binary_request_is_refused_with_a_binary_reply(
    opcode: int, opaque: bytes, size: int, left: int
) -> None:
    for before, expected in ((b"", []), (b"version\r\n", VERSION)):
        *others, refusal = fed(before + binary(opcode, opaque, b"k" * size)[: 24 + left])
        assert others == expected
        assert isinstance(refusal, Refused)
        assert refusal.closes
        reply = refusal.reply
        body = int.from_bytes(reply[8:12], "big")
        assert reply[:8] == bytes([0x81, opcode, 0, 0, 0, 0, 0x00, 0x81])
        assert (reply[12:16], reply[16:24]) == (opaque, bytes(8))
        assert len(reply) == 24 + body
        assert b"text" in reply[24:]


@pytest.mark.parametrize("length", range(1, 24))
def test_an_incomplete_binary_header_is_refused(length: int) -> None:
    header = binary(0x0B, b"OPAQ")[:length]
    (refusal,) = fed(header)
    assert isinstance(refusal, Refused)
    assert refusal.closes
    assert refusal.reply[:2] == header[:2].ljust(2, b"\0").replace(b"\x80", b"\x81")
    assert refusal.reply[6:8] == b"\x00\x81"
    assert refusal.reply[12:16] == header[12:16].ljust(4, b"\0")


def test_equal_requests_in_one_piece_are_read_once() -> None:
    parser = MEMCACHED.counting(MOST)
    stream = b"get q\r\n" * 100_000
    found = parser.feed(stream)
    assert sum(item.count for item in found if isinstance(item, Request)) == 100_000
    assert len(found) < 200
    assert parser.looked_at == len(stream)


def test_an_announced_message_is_awaited() -> None:
    parser = RequestParser(1 << 30)
    assert parser.feed(b"set q 0 0 %d\r\n" % (1 << 30)) == []
    assert parser.awaited > 1 << 30


@pytest.mark.parametrize("stream", MEMCACHED.broken, ids=lambda stream: ascii(stream[:20]))
def test_nothing_is_buffered_after_an_error_that_closes(stream: bytes) -> None:
    parser = RequestParser(MOST)
    (error,) = parser.feed(stream)
    assert isinstance(error, Refused)
    assert error.closes
    assert parser.unparsed == 0


@pytest.mark.parametrize(
    "line", [b"get " + b"k%d " * 5000 % tuple(range(5000)), b"delete " + b"ab " * 600, b"x " * 1000]
)
def test_a_line_of_many_words_is_not_kept(line: bytes) -> None:
    """Otherwise idle clients could make the server hold much memory."""
    parser = RequestParser(MOST)
    with traced_memory() as traced:
        assert len(parser.feed(line + b"\r\n")) == 1
        kept, _ = traced()
    assert parser.unparsed == 0
    assert kept < 4096
