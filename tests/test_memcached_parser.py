"""memcached's requests as plain functions: in any pieces the same come out, and no bytes do any harm."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.memcached.parser import (
    BAD_CHUNK,
    BAD_FORMAT,
    LINE_TOO_LONG,
    MAX_KEY,
    MAX_KEYS_LINE,
    MAX_LINE,
    TOO_LARGE,
    Parsed,
    Repeated,
    Request,
    RequestError,
    RequestParser,
)

MOST = 4096
ERROR = b"ERROR\r\n"
# What the parser may hold beside an announced block: its line and its end, or a line of many keys.
BESIDE = MAX_KEYS_LINE


def one_by_one(parsed: list[Parsed]) -> list[Request | RequestError]:
    found: list[Request | RequestError] = []
    for item in parsed:
        found += item.requests() if isinstance(item, Repeated) else [item]
    return found


def fed(*pieces: bytes, most: int = MOST) -> list[Request | RequestError]:
    """What comes out for these pieces, up to an error that closes."""
    parser = RequestParser(most)
    found: list[Request | RequestError] = []
    for piece in pieces:
        found += one_by_one(parser.feed(piece))
        if found and isinstance(found[-1], RequestError) and found[-1].closes:
            break
    return found


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces, cut at these places."""
    ends = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[start:end] for start, end in pairwise(ends) if start != end]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


def refused(reply: bytes) -> list[RequestError]:
    return [RequestError(reply)]


def fatal(reply: bytes) -> list[RequestError]:
    return [RequestError(reply, closes=True)]


VERSION = [Request([b"version"])]

# ---------------------------------------------------------------- requests, in any pieces

KEYS = st.one_of(
    st.sampled_from([b"q", b"noreply", b"q/open", b"k" * MAX_KEY, b"\xff", b"set"]),
    st.from_regex(rb"\A[!-~\x80-\xff]{1,20}\Z"),
)
DATA = st.one_of(
    st.sampled_from(
        [b"", b"\r\n", b"\n", b"\r", b"set q 0 0 1\r\nx\r\n", b"END\r\n", b"\x80", b"\0\xff", b"x" * MOST]
    ),
    st.binary(max_size=40),
)
ENDS = st.sampled_from([b"\r\n", b"\n"])
SPLITS = st.lists(st.integers(0, 1 << 20), max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Request, bytes]:
    """A request, and bytes that stand for it."""
    kind = draw(st.sampled_from(["store", "cas", "get", "delete", "alone"]))
    is_quiet, data = False, None
    if kind in ("store", "cas"):
        name = (
            b"cas"
            if kind == "cas"
            else draw(st.sampled_from([b"set", b"add", b"replace", b"append", b"prepend"]))
        )
        data = draw(DATA)
        words = [name, draw(KEYS), b"0", b"0", b"%d" % len(data), *([b"7"] if kind == "cas" else [])]
        is_quiet = draw(st.booleans())
    elif kind == "get":
        words = [
            draw(st.sampled_from([b"get", b"gets", b"incr"])),
            *draw(st.lists(KEYS, min_size=1, max_size=5)),
        ]
        if words[0] == b"incr" and words[-1] == b"noreply":
            words.append(b"1")
    elif kind == "delete":
        words, is_quiet = [b"delete", draw(KEYS)], draw(st.booleans())
    else:
        words = [draw(st.sampled_from([b"version", b"stats", b"quit", b"nonsense", b"\xff\xfe", b"GET"]))]
    line = draw(st.sampled_from([b"", b" "])) + draw(st.sampled_from([b" ", b"  "])).join(words)
    line += b" noreply" * is_quiet + draw(ENDS)
    return Request(words, data, is_quiet), line + (b"" if data is None else data + b"\r\n")


STREAMS = st.lists(st.tuples(requests(), st.sampled_from([1, 1, 1, 2, 3, 600])), max_size=5)
Runs = list[tuple[tuple[Request, bytes], int]]


def joined(runs: Runs) -> tuple[list[Request], bytes]:
    """Each so many times; what takes much is sent once."""
    expected: list[Request] = []
    stream = b""
    for (request, data), wanted in runs:
        times = wanted if len(data) < 200 else 1
        expected += [request] * times
        stream += data * times
    return expected, stream


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(STREAMS, SPLITS)
def test_any_pieces_of_a_stream_give_the_same_requests(runs: Runs, places: list[int]) -> None:
    expected, stream = joined(runs)
    assert fed(stream) == expected
    assert fed(*cut(stream, places)) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(requests(), st.just(1)), max_size=4))
def test_single_bytes_give_the_same_requests(runs: Runs) -> None:
    expected, stream = joined(runs)
    assert fed(*bytewise(stream)) == expected


TOKENS = [
    b"set", b"add", b"cas", b"get", b"gets", b"delete", b"sismember", b"flush_all", b" ", b" ", b"q", b"0",
    b"1", b"k" * 251, b" 0 0 ", b"2", b"5", b"-1", b"4097", b"9999999999", b"99999999999", b"noreply",
    b"\r\n", b"\r\n", b"\n", b"\r", b"x", b"set q 0 0 1\r\n", b"x\r\n", b"\0", b"\xff", b"a " * 600,
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join), SPLITS)
@example(b"set q 0 0 1\r\nxyz\r\nversion\r\n", [15])
@example(b"set q 0 0 4097\r\nversion\r\n", [16])
def test_nonsense_in_pieces_is_the_same_nonsense(stream: bytes, places: list[int]) -> None:
    whole = fed(stream)
    assert fed(*cut(stream, places)) == whole
    assert fed(*bytewise(stream)) == whole


def check_parsed(item: Request | RequestError) -> None:
    """What may come out, whatever goes in."""
    if isinstance(item, Request):
        assert item.words
        assert all(type(word) is bytes for word in item.words)
        assert b"\n" not in b"".join(item.words)
        assert item.data is None or (type(item.data) is bytes and len(item.data) <= MOST)
    elif item.reply[:1] == b"\x81":
        assert item.closes
    else:
        assert item.reply in (b"", ERROR, BAD_FORMAT, TOO_LARGE, BAD_CHUNK, LINE_TOO_LONG)
        assert item.reply or not item.closes


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6)), max_size=30).map(b"".join),
    ),
    SPLITS,
)
def test_any_bytes_give_requests_or_refusals_and_little_is_held(stream: bytes, places: list[int]) -> None:
    parser = RequestParser(MOST)
    for piece in cut(stream, places):
        found = one_by_one(parser.feed(piece))
        for item in found:
            check_parsed(item)
        assert parser.unparsed <= MOST + BESIDE
        assert sum(len(item.data or b"") for item in found if isinstance(item, Request)) <= len(stream)
        if found and isinstance(found[-1], RequestError) and found[-1].closes:
            assert parser.unparsed == 0
            break


# ---------------------------------------------------------------- blocks that are refused

EVIL = b"flush_all\r\nset q 0 0 4\r\nevil\r\n"
LONG_KEY = b"k" * (MAX_KEY + 1)
REFUSED_LINES: dict[str, tuple[bytes, bytes]] = {
    "too large": (b"set q 0 0 %d\r\n", TOO_LARGE),
    "key of 251 bytes": (b"set " + LONG_KEY + b" 0 0 %d\r\n", BAD_FORMAT),
    "control characters in the key": (b"add a\x01b 0 0 %d\r\n", BAD_FORMAT),
    "a delete character in the key": (b"add a\x7f 0 0 %d\r\n", BAD_FORMAT),
    "a tabulator in the key": (b"add a\tb 0 0 %d\r\n", BAD_FORMAT),
    "one word too many": (b"append q 0 0 %d 7\r\n", BAD_FORMAT),
    "cas without its number": (b"cas q 0 0 %d\r\n", BAD_FORMAT),
    "cas with a word too many": (b"cas q 0 0 %d 1 2\r\n", BAD_FORMAT),
    "words behind noreply": (b"set q 0 0 %d noreply junk\r\n", BAD_FORMAT),
    "too large, without a reply": (b"set q 0 0 %d noreply\r\n", b""),
    "a bad key, without a reply": (b"set " + LONG_KEY + b" 0 0 %d noreply\r\n", b""),
}


@pytest.mark.parametrize("name", REFUSED_LINES)
@pytest.mark.parametrize(
    "data", [EVIL, EVIL * 100, b"", b"\n" * 50], ids=["evil", "much evil", "empty", "line ends"]
)
def test_a_refused_block_is_never_executed_however_it_is_cut(name: str, data: bytes) -> None:
    line, reply = REFUSED_LINES[name]
    if name.startswith("too large"):
        data = data.ljust(MOST + 1, b"\n")
    stream = line % len(data) + data + b"\r\n"
    expected = [*refused(reply), *VERSION]
    assert fed(stream + b"version\r\n") == expected
    for at in range(0, len(stream), max(1, len(stream) // 97)):
        assert fed(stream[:at], stream[at:] + b"version\r\n") == expected
    assert fed(*bytewise(stream + b"version\r\n")) == expected


@pytest.mark.parametrize(
    "size",
    [b"x", b"-1", b"+3", b"3x", b"0x3", b"one", b"99999999999", b"1" * 1000, b"", b"noreply", "٣".encode()],
)
def test_a_block_whose_size_nobody_knows_ends_all(size: bytes) -> None:
    stream = b"version\r\nset q 0 0 " + size + b"\r\n" + EVIL
    assert fed(stream) == [*VERSION, *fatal(BAD_FORMAT)]
    assert fed(*bytewise(stream)) == [*VERSION, *fatal(BAD_FORMAT)]


@pytest.mark.parametrize("line", [b"set q", b"set q 0", b"set q 0 0", b"cas q 0 0", b"set q noreply"])
def test_a_storage_command_that_says_no_size_ends_all(line: bytes) -> None:
    assert fed(line + b"\r\n" + EVIL) == fatal(BAD_FORMAT)


@pytest.mark.parametrize("size", [MOST + 1, 2**31 - 1, 2**32, 9_999_999_999])
def test_huge_sizes_take_no_memory_and_nothing_of_them_is_executed(size: int) -> None:
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
    ("block", "behind"),
    [
        (b"abcd\r\n", VERSION),
        (b"abcdefgh flush_all\r\n", VERSION),
        (b"abc set evil 0 0 0\r\n", VERSION),
        (b"abc\n\r\n", [RequestError(ERROR), *VERSION]),
        (b"abc\r\r\n", VERSION),
        (b"ab\r\n", VERSION),
    ],
)
def test_a_block_that_is_too_long_is_passed_over_to_the_end_of_its_line(
    block: bytes, behind: list[Request | RequestError]
) -> None:
    for noreply, reply in ((b"", BAD_CHUNK), (b" noreply", b"")):
        stream = b"set q 0 0 3%b\r\n" % noreply + block + b"version\r\n"
        expected = [RequestError(reply), *behind]
        assert fed(stream) == expected
        assert fed(*bytewise(stream)) == expected
        for at in range(len(stream)):
            assert fed(stream[:at], stream[at:]) == expected


def test_what_is_too_long_takes_no_memory() -> None:
    parser = RequestParser(MOST)
    assert parser.feed(b"set q 0 0 3\r\nabcde") == refused(BAD_CHUNK)
    for _ in range(100):
        assert parser.feed(b"x" * 10_000) == []
        assert parser.unparsed == 0
    assert parser.feed(b"x\r\nversion\r\n") == VERSION


def test_a_run_of_requests_ends_before_a_block_that_is_wrong() -> None:
    good, bad = b"set q 0 0 3\r\nabc\r\n", b"set q 0 0 3\r\nabcd\r\n"
    expected = [Request([b"set", b"q", b"0", b"0", b"3"], b"abc")]
    assert fed(good * 30 + bad + good * 30) == [*expected * 30, *refused(BAD_CHUNK), *expected * 30]


# ---------------------------------------------------------------- lines, keys and words


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
        (b"delete q noreply\r\n", [Request([b"delete", b"q"], None, is_quiet=True)]),
        (b"delete noreply\r\n", [Request([b"delete", b"noreply"])]),
        (b"delete noreply noreply\r\n", [Request([b"delete", b"noreply"], None, is_quiet=True)]),
        (b"incr noreply 1\r\n", [Request([b"incr", b"noreply", b"1"])]),
        (b"touch q 0 noreply\r\n", [Request([b"touch", b"q", b"0"], None, is_quiet=True)]),
        (b"flush_all noreply\r\n", [Request([b"flush_all"], None, is_quiet=True)]),
        (b"verbosity 1 noreply\r\n", [Request([b"verbosity", b"1"], None, is_quiet=True)]),
        (b"get noreply\r\n", [Request([b"get", b"noreply"])]),
        (b"get q noreply\r\n", [Request([b"get", b"q", b"noreply"])]),
        (b"scard noreply\r\n", [Request([b"scard", b"noreply"])]),
        (b"noreply\r\n", [Request([b"noreply"])]),
        (b"set noreply 0 0 1\nx\r\n", [Request([b"set", b"noreply", b"0", b"0", b"1"], b"x")]),
        (b"set q 0 0 01\r\nx\r\n", [Request([b"set", b"q", b"0", b"0", b"01"], b"x")]),
        (b"set q 0 0 0\r\n\r\n", [Request([b"set", b"q", b"0", b"0", b"0"], b"")]),
    ],
)
def test_lines(line: bytes, expected: list[Request | RequestError]) -> None:
    assert fed(line + b"version\r\n") == [*expected, *VERSION]
    assert fed(*bytewise(line + b"version\r\n")) == [*expected, *VERSION]


def test_a_key_has_250_bytes_at_most() -> None:
    line = b"set %b 0 0 1\r\nx\r\n"
    assert fed(line % (b"k" * 250)) == [Request([b"set", b"k" * 250, b"0", b"0", b"1"], b"x")]
    assert fed(line % (b"k" * 251)) == refused(BAD_FORMAT)


@pytest.mark.parametrize("name", [b"get", b"gets", b"gat", b"gats"])
def test_a_line_of_many_keys_has_64_kib_at_most(name: bytes) -> None:
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
def test_other_lines_have_2048_bytes_at_most(start: bytes) -> None:
    too_long = start.ljust(MAX_LINE, b"x") + b"\n"
    assert fed(too_long) == fed(too_long[:-1], b"\n") == fed(*bytewise(too_long)) == fatal(LINE_TOO_LONG)
    assert fed(too_long[:-1]) == []
    assert fed(too_long[:-1] + b"x") == fatal(LINE_TOO_LONG)
    assert fed(b"x" * (MAX_LINE - 1) + b"\n") == [Request([b"x" * (MAX_LINE - 1)])]


# ---------------------------------------------------------------- the binary protocol


def binary(opcode: int, opaque: bytes, key: bytes = b"") -> bytes:
    return (
        b"\x80"
        + bytes([opcode])
        + len(key).to_bytes(2, "big")
        + bytes(4)
        + len(key).to_bytes(4, "big")
        + opaque
        + bytes(8)
        + key
    )


@given(st.integers(0, 255), st.binary(min_size=4, max_size=4), st.integers(0, 300), st.integers(0, 400))
@example(0, b"\n\n\n\n", 10, 0)
@example(10, b"OPAQ", 10, 24)
def test_the_binary_protocol_is_refused_in_its_own_words(
    opcode: int, opaque: bytes, size: int, left: int
) -> None:
    for before, expected in ((b"", []), (b"version\r\n", VERSION)):
        *others, refusal = fed(before + binary(opcode, opaque, b"k" * size)[: 24 + left])
        assert others == expected
        assert isinstance(refusal, RequestError)
        assert refusal.closes
        reply = refusal.reply
        body = int.from_bytes(reply[8:12], "big")
        assert reply[:8] == bytes([0x81, opcode, 0, 0, 0, 0, 0x00, 0x81])
        assert (reply[12:16], reply[16:24]) == (opaque, bytes(8))
        assert len(reply) == 24 + body
        assert b"text" in reply[24:]


@pytest.mark.parametrize("length", range(1, 24))
def test_a_binary_header_that_is_cut_off_is_refused_as_well(length: int) -> None:
    header = binary(0x0B, b"OPAQ")[:length]
    (refusal,) = fed(header)
    assert isinstance(refusal, RequestError)
    assert refusal.closes
    assert refusal.reply[:2] == header[:2].ljust(2, b"\0").replace(b"\x80", b"\x81")
    assert refusal.reply[6:8] == b"\x00\x81"
    assert refusal.reply[12:16] == header[12:16].ljust(4, b"\0")


def test_a_binary_byte_within_a_line_or_a_block_is_none() -> None:
    assert fed(b"get \x80\r\n") == [Request([b"get", b"\x80"])]
    assert fed(b"set q 0 0 2\r\n\x80\n\r\n") == [Request([b"set", b"q", b"0", b"0", b"2"], b"\x80\n")]


# ---------------------------------------------------------------- work and memory


class CountingParser(RequestParser):
    """Counts the bytes that are looked at."""

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        super().__init__(32 << 20)
        self.looked_at = 0

    def _read(self, data: bytes, parsed: list[Parsed]) -> int:
        self.looked_at += len(data)
        return super()._read(data, parsed)


WORK: dict[str, Callable[[], bytes]] = {
    "1 MB message": lambda: (
        b"set q 0 0 %d\r\n" % (1 << 20) + b"set q 0 0 1\r\n" * 80_659 + b"x" * 9 + b"\r\n"
    ),
    "message of line ends": lambda: b"set q 0 0 %d\r\n" % (1 << 20) + b"\n" * (1 << 20) + b"\r\n",
    "64 KiB of keys": lambda: (b"get " + b"k " * MAX_KEYS_LINE)[: MAX_KEYS_LINE - 2] + b"\r\n",
    "refused message": lambda: b"set \x01 0 0 %d\r\n" % (1 << 20) + EVIL.ljust(1 << 20) + b"\r\n",
    "message behind its end": lambda: b"set q 0 0 1\r\n" + b"x" * (1 << 20) + b"\r\n",
    "100k small requests": lambda: b"get q\r\n" * 50_000 + b"set q 0 0 1\r\nx\r\n" * 50_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("name", WORK)
def test_small_pieces_are_not_read_again_and_again(name: str, size: int) -> None:
    stream, parser, found = WORK[name](), CountingParser(), []
    for start in range(0, len(stream), size):
        found += parser.feed(stream[start : start + size])
    assert one_by_one(found) == fed(stream, most=32 << 20)
    # A line that is not complete is looked at again when its end has come, or it may have another limit.
    assert parser.looked_at < 3 * len(stream) + MAX_LINE


def test_a_run_in_one_piece_is_read_once() -> None:
    parser = CountingParser()
    stream = b"get q\r\n" * 100_000
    found = parser.feed(stream)
    assert sum(item.count for item in found if isinstance(item, Repeated)) == 100_000
    assert len(found) < 200
    assert parser.looked_at == len(stream)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16, 1460])
def test_small_pieces_take_no_more_memory_than_large_ones(size: int) -> None:
    stream, parser = b"set q 0 0 1000000\r\n" + bytes(1_000_000), RequestParser(1 << 20)
    tracemalloc.start()
    for start in range(0, len(stream), size):
        assert parser.feed(stream[start : start + size]) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parser.unparsed == len(stream)
    assert kept < 2.5 * len(stream)


def test_announcing_takes_no_memory() -> None:
    parser = RequestParser(1 << 30)
    tracemalloc.start()
    assert parser.feed(b"set q 0 0 %d\r\n" % (1 << 30)) == []
    assert parser.feed(b"x") == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parser.awaited > 1 << 30
    assert kept < 10_000


@pytest.mark.parametrize(
    "line", [b"get " + b"k%d " * 5000 % tuple(range(5000)), b"delete " + b"ab " * 600, b"x " * 1000]
)
def test_nothing_is_kept_of_a_line_of_many_words(line: bytes) -> None:
    """Each of ten thousand clients may send one, and be silent."""
    parser = RequestParser(MOST)
    tracemalloc.start()
    assert len(parser.feed(line + b"\r\n")) == 1
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parser.unparsed == 0
    assert kept < 4096
