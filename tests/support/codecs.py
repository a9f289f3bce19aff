"""The parsers of all protocols for tests: how to make them, and which input and output they have."""

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import strategies as st

from handlers.beanstalk import parser as beanstalk
from handlers.beanstalk import replies
from handlers.memcached import parser as memcached
from handlers.resp import parser as resp
from handlers.resp.replies import error, unknown_command
from pressure_server.errors import CommandError
from pressure_server.net.line_parser import Refused
from pressure_server.queues.operations.jobs import job_to_put
from tests.support.waiters import packed

# The largest message in bytes, unless a test passes another limit.
MAX_MESSAGE = 1 << 20
# The bytes of the requests in `work`: a parser that scans them repeatedly scans many times as much.
WORK = MAX_MESSAGE // 8
SPLITS = st.lists(st.integers(0, 1 << 20), max_size=12)
# Requests, and the bytes that they are sent as.
Stream = tuple[list[Any], bytes]


@dataclass(frozen=True)
class Codec:
    """One protocol's parser. `parser` and `counting` take the size of the largest message."""

    name: str
    parser: Callable[[int], Any]
    # A parser with an attribute `looked_at`: the number of bytes it has scanned, repeated scans included.
    counting: Callable[[int], Any]
    most_looks: int
    # Expands a parser's output to single requests and errors, which can be compared.
    flat: Callable[[list[Any]], list[Any]]
    is_fatal: Callable[[Any], bool]
    # Raises AssertionError for an item that the parser must not return.
    check: Callable[[Any], None]
    # The size of a request's messages; the most bytes that the parser may hold after so many bytes.
    size: Callable[[Any], int]
    most_held: Callable[[int], int]
    # The beginning of a put, without its message.
    announce: Callable[[int], bytes]
    # Requests that are expensive to parse if the parser scans bytes repeatedly.
    work: dict[str, Callable[[], bytes]] = field(repr=False)
    tokens: list[bytes] = field(repr=False)
    broken: list[bytes] = field(repr=False)
    streams: st.SearchStrategy[Stream] = field(repr=False)

    def items(self, *pieces: bytes, most: int = MAX_MESSAGE) -> list[Any]:
        """Parse these pieces, up to an error that ends the connection; return what the parser returns."""
        parser = self.parser(most)
        found: list[Any] = []
        for piece in pieces:
            found += parser.feed(piece)
            if found and self.is_fatal(found[-1]):
                break
        return found

    def fed(self, *pieces: bytes, most: int = MAX_MESSAGE) -> list[Any]:
        """Parse these pieces in the same way; return single requests and errors."""
        return self.flat(self.items(*pieces, most=most))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Return the stream in pieces, cut at these places."""
    ends = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[start:end] for start, end in pairwise(ends) if start != end]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


@contextmanager
def traced_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the bytes allocated since then, and their peak."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def _counting(parser: type, *methods: str) -> Callable[[Any], Any]:
    """Return a subclass of the parser that counts in `looked_at` the bytes that these methods scan."""

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def scan(self: Any, data: bytes, *arguments: Any, **options: Any) -> Any:
            self.looked_at += len(data)
            return method(self, data, *arguments, **options)

        return scan

    attributes = {name: counted(getattr(parser, name)) for name in methods}
    return type("Counting", (parser,), {"looked_at": 0, **attributes})


def _flat(items: list[Any]) -> list[Any]:
    """Expand runs of equal requests."""
    found: list[Any] = []
    for item in items:
        found += item.requests() if isinstance(item, (resp.Repeated, memcached.Request)) else [item]
    return found


def quoted(word: bytes) -> bytes:
    """Quote a word of an inline command."""
    return b'"' + b"".join(b"\\x%02x" % byte for byte in word) + b'"'


_WORDS = st.one_of(
    st.sampled_from([b"", b"\r\n", b"*1\r\n$4\r\nPING\r\n", b"$3\r\n", b"\r", b"\n", b"$-1\r\n", b"\0\xff"]),
    st.binary(max_size=12),
    st.binary(min_size=4090, max_size=4100),
)
_COMMANDS = st.lists(st.lists(_WORDS, min_size=1, max_size=5), max_size=6)
_NOISE = st.sampled_from([b"", b"*0\r\n", b"*-1\r\n", b"\r\n", b"\n", b"   \r\n"])


@st.composite
def _resp_streams(draw: st.DrawFn) -> Stream:
    """Draw arrays, inline commands, and empty requests."""
    commands, stream = draw(_COMMANDS), b""
    for command in commands:
        stream += draw(_NOISE)
        if draw(st.booleans()) or sum(map(len, command)) > 1000:
            stream += packed(*command)
        else:
            stream += b" ".join(map(quoted, command)) + draw(st.sampled_from([b"\n", b"\r\n", b" \r\n"]))
    return commands, stream + draw(_NOISE)


def _resp_flat(items: list[Any]) -> list[Any]:
    return [str(item) if isinstance(item, resp.RequestError) else item for item in _flat(items)]


def _check_resp(item: Any) -> None:
    if isinstance(item, resp.RequestError):
        assert str(item).startswith("Protocol error: ")
        _check_line(CommandError(f"ERR {item}"))
    elif isinstance(item, resp.Repeated):
        commands = item.requests()
        assert len(commands) == item.count
        assert all(command[: len(item.words)] == item.words for command in commands)
    else:
        assert type(item) is list
        assert item
        assert all(type(word) is bytes for word in item)
        _check_line(unknown_command(item))


def _check_line(refusal: CommandError) -> None:
    assert re.fullmatch(rb"-[^\r\n]+\r\n", error(refusal))


# Shared by all parsers, as in the server, because a Limits holds a table.
_limits = cache(resp.Limits)

RESP = Codec(
    name="resp",
    parser=lambda most: resp.RequestParser(_limits(most)),
    counting=lambda most: _counting(resp.RequestParser, "_split", "_read")(_limits(most)),
    # An incomplete length is scanned again; a payload never is.
    most_looks=12,
    flat=_resp_flat,
    is_fatal=lambda item: isinstance(item, resp.RequestError),
    check=_check_resp,
    size=lambda item: sum(map(len, item)) if type(item) is list else 0,
    most_held=lambda sent: (1 + resp.ARGUMENT_COST) * sent,
    announce=lambda size: b"*%d\r\n$%d\r\n" % (resp.MAX_ARGUMENTS, size),
    work={
        "a large message": lambda: packed("SADD", "q", b"x" * WORK),
        "many messages": lambda: packed("SADD", "q", *[b"m%d" % number for number in range(10_000)]),
    },
    tokens=[b"*", b"$", b"1", b"2", b"3", b"-", b"\r\n", b"\r", b"\n", b"a", b'"', b" "],
    broken=[
        b"*x\r\n",
        b"*1048577\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n+OK\r\n",
        b"*2\r\n$1\r\na\r\n$-1\r\n",
        b"*1\r\n$1048577\r\n",
        b'"unbalanced\r\n',
        b"*" + b"1" * (resp.MAX_LINE + 1),
        b"x" * (resp.MAX_LINE + 1),
    ],
    streams=_resp_streams(),
)


_KEYS = st.one_of(
    st.sampled_from([b"q", b"noreply", b"q/open", b"k" * memcached.MAX_KEY, b"\xff", b"set"]),
    st.from_regex(rb"\A[!-~\x80-\xff]{1,20}\Z"),
)
_DATA = st.one_of(
    st.sampled_from(
        [b"", b"\r\n", b"\n", b"\r", b"set q 0 0 1\r\nx\r\n", b"END\r\n", b"\x80", b"\0\xff", b"x" * 4096]
    ),
    st.binary(max_size=40),
)
_STORING = st.sampled_from([b"set", b"add", b"replace", b"append", b"prepend"])
_ALONE = st.sampled_from([b"version", b"stats", b"quit", b"nonsense", b"\xff\xfe", b"GET"])
# A message that looks like commands.
EVIL = b"flush_all\r\nset q 0 0 4\r\nevil\r\n"


@st.composite
def _memcached_request(draw: st.DrawFn) -> tuple[memcached.Request, bytes]:
    kind = draw(st.sampled_from(["store", "cas", "meta", "get", "delete", "alone"]))
    is_quiet, data = False, None
    if kind in ("store", "cas"):
        name, data = b"cas" if kind == "cas" else draw(_STORING), draw(_DATA)
        words = [name, draw(_KEYS), b"0", b"0", b"%d" % len(data), *([b"7"] if kind == "cas" else [])]
        is_quiet = draw(st.booleans())
    elif kind == "meta":
        data = draw(_DATA)
        words = [b"ms", draw(_KEYS), b"%d" % len(data), *draw(st.sampled_from([[], [b"q", b"T9"], [b"F1"]]))]
    elif kind == "get":
        keys = draw(st.lists(_KEYS, min_size=1, max_size=5))
        words = [draw(st.sampled_from([b"get", b"gets", b"incr"])), *keys]
        if words[0] == b"incr" and words[-1] == b"noreply":
            words.append(b"1")
    elif kind == "delete":
        words, is_quiet = [b"delete", draw(_KEYS)], draw(st.booleans())
    else:
        words = [draw(_ALONE)]
    line = draw(st.sampled_from([b"", b" "])) + draw(st.sampled_from([b" ", b"  "])).join(words)
    line += b" noreply" * is_quiet + draw(st.sampled_from([b"\r\n", b"\n"]))
    blocks = [] if data is None else [data]
    return memcached.Request(words, blocks, is_quiet), line + b"".join([one + b"\r\n" for one in blocks])


@st.composite
def _memcached_streams(draw: st.DrawFn) -> Stream:
    """Draw requests. Small ones may be repeated."""
    expected: list[Any] = []
    stream = b""
    for _ in range(draw(st.integers(0, 5))):
        request, data = draw(_memcached_request())
        times = draw(st.sampled_from([1, 1, 1, 2, 3, 600])) if len(data) < 200 else 1
        expected += [request] * times
        stream += data * times
    return expected, stream


_REFUSALS = (
    b"",
    b"ERROR\r\n",
    memcached.BAD_FORMAT,
    memcached.TOO_LARGE,
    memcached.BAD_CHUNK,
    memcached.BAD_KEY,
    memcached.LINE_TOO_LONG,
)


def _check_memcached(item: Any) -> None:
    if isinstance(item, memcached.Request):
        assert len(item.requests()) == item.count
        assert item.words
        assert all(type(word) is bytes for word in item.words)
        assert b"\n" not in b"".join(item.words)
        assert item.blocks == [] or len(item.blocks) == item.count
        assert all(type(block) is bytes for block in item.blocks)
    elif item.reply[:1] == b"\x81":
        assert item.closes
    else:
        assert item.reply in _REFUSALS
        assert item.reply or not item.closes


MEMCACHED = Codec(
    name="memcached",
    parser=memcached.RequestParser,
    counting=_counting(memcached.RequestParser, "_read"),
    # An incomplete line is scanned again when its end arrives, or when another limit may apply.
    most_looks=3,
    flat=_flat,
    is_fatal=lambda item: isinstance(item, Refused) and item.closes,
    check=_check_memcached,
    size=lambda item: sum(map(len, item.blocks)) if isinstance(item, memcached.Request) else 0,
    most_held=lambda sent: sent,
    announce=lambda size: b"set q 0 0 %d\r\n" % size,
    work={
        "a message of requests": lambda: (
            b"set q 0 0 %d\r\n" % WORK + (b"set q 0 0 1\r\n" * WORK)[:WORK] + b"\r\n"
        ),
        "a message of line ends": lambda: b"set q 0 0 %d\r\n" % WORK + b"\n" * WORK + b"\r\n",
        "64 KiB of keys": lambda: (
            (b"get " + b"k " * memcached.MAX_KEYS_LINE)[: memcached.MAX_KEYS_LINE - 2] + b"\r\n"
        ),
        "a refused message": lambda: b"set \x01 0 0 %d\r\n" % WORK + EVIL.ljust(WORK) + b"\r\n",
        "a refused message in base64": lambda: b"ms ! %d b\r\n" % WORK + b"x" * WORK + b"\r\n",
        "small requests": lambda: b"get q\r\n" * 5_000 + b"set q 0 0 1\r\nx\r\n" * 5_000,
    },
    tokens=[
        b"set", b"add", b"cas", b"get", b"gets", b"delete", b"sismember", b"flush_all", b" ", b" ", b"q",
        b"0", b"1", b"k" * 251, b" 0 0 ", b"2", b"5", b"-1", b"1048577", b"9999999999", b"99999999999",
        b"ms", b"mg", b"YWJj", b"b", b"SET",
        b"noreply", b"\r\n", b"\r\n", b"\n", b"\r", b"x", b"set q 0 0 1\r\n", b"x\r\n", b"\0", b"\xff",
        b"a " * 600, b"set q 0 0 1\r\nxyz\r\nversion\r\n", b"set q 0 0 1048577\r\nversion\r\n",
    ],
    broken=[
        b"set q 0 0 x\r\n",
        b"set q 0 0 1\r\nxyz",
        b"ms q S1\r\n",
        b"set q 0 0 99999999999\r\n",
        b"set q\r\n",
        b"x" * (memcached.MAX_LINE + 1),
        b"get " + b"k " * memcached.MAX_KEYS_LINE,
        b"\x80" + bytes(23),
    ],
    streams=_memcached_streams(),
)  # fmt: skip


_LINES = st.sampled_from(
    [
        b"reserve", b"use q", b"delete 1", b"release 1 0 0", b"peek-ready", b"reserve-with-timeout 0", b"",
        b" ", b"put", b"putx 0 0 1 1", b"\0\xff",
        b"watch " + b"t" * (beanstalk.MAX_LINE - 8),
    ]
)  # fmt: skip
_UINT32 = st.sampled_from([0, 1, 1024, (1 << 32) - 1])
_BODIES = st.one_of(
    st.sampled_from([b"", b"\r\n", b"\r", b"put 0 0 1 1\r\nx\r\n", b"delete 1\r\n", b"\0\xff", b"x" * 4096]),
    st.binary(max_size=40),
)


@st.composite
def _beanstalk_streams(draw: st.DrawFn) -> Stream:
    """Draw lines, puts, and puts that are refused. A put that is too big is one of the broken streams."""
    expected: list[Any] = []
    stream = b""
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["line", "put", "bad number", "too long"]))
        if kind == "line":
            line = draw(_LINES)
            expected.append(beanstalk.Request(line))
            stream += line + b"\r\n"
        elif kind == "put":
            numbers, body, space = draw(st.tuples(_UINT32, _UINT32, _UINT32)), draw(_BODIES), b" "
            space *= draw(st.sampled_from([1, 3]))
            priority, delay, ttr = numbers
            expected.append(beanstalk.Puts([job_to_put(body, priority, delay, ttr or 1)]))
            words = (b"put", *(b"%d" % number for number in (*numbers, len(body))))
            stream += space.join(words) + b"\r\n" + body + b"\r\n"
        elif kind == "bad number":
            expected.append(Refused(replies.BAD_FORMAT))
            form = draw(st.sampled_from([b"x 0 1 %d", b"0 0 4294967296 %d", b"0 0 1 %d 5"]))
            body = draw(_BODIES)
            stream += b"put " + form % len(body) + b"\r\n" + body + b"\r\n"
        else:
            expected.append(Refused(replies.BAD_FORMAT))
            size = draw(st.sampled_from([beanstalk.MAX_LINE - 1, beanstalk.MAX_LINE, 5000]))
            stream += b"x" * size + b"\r\n"
    return expected, stream


def _check_beanstalk(item: Any) -> None:
    if isinstance(item, beanstalk.Puts):
        for job in item.jobs:
            priority, delay, ttr, _, _, message = job.split(b" ", 5)
            assert all(0 <= int(number) < 1000 << 32 for number in (priority, delay, ttr))
            assert len(message) <= MAX_MESSAGE
    elif isinstance(item, beanstalk.Request):
        assert b"\r\n" not in item.line
        assert len(item.line) <= beanstalk.MAX_LINE - 2
    else:
        skipped = (replies.BAD_FORMAT, replies.UNKNOWN_COMMAND, replies.JOB_TOO_BIG)
        assert item.reply in ((replies.BAD_FORMAT, replies.EXPECTED_CRLF) if item.closes else skipped)


def _flat_beanstalk(items: list[Any]) -> list[Any]:
    """Split puts in a row, which may have been read together or not."""
    found: list[Any] = []
    for item in items:
        found += [beanstalk.Puts([job]) for job in item.jobs] if isinstance(item, beanstalk.Puts) else [item]
    return found


BEANSTALK = Codec(
    name="beanstalk",
    parser=beanstalk.RequestParser,
    counting=_counting(beanstalk.RequestParser, "_read"),
    most_looks=3,
    flat=_flat_beanstalk,
    is_fatal=lambda item: isinstance(item, Refused) and item.closes,
    check=_check_beanstalk,
    size=lambda item: (
        sum(len(job.split(b" ", 5)[5]) for job in item.jobs) if isinstance(item, beanstalk.Puts) else 0
    ),
    most_held=lambda sent: sent,
    announce=lambda size: b"put 0 0 1 %d\r\n" % size,
    work={
        "a message of requests": lambda: (
            b"put 0 0 1 %d\r\n" % WORK + (b"put 0 0 1 1\r\n" * WORK)[:WORK] + b"\r\n"
        ),
        "a message of line ends": lambda: b"put 0 0 1 %d\r\n" % WORK + b"\r\n" * (WORK // 2) + b"\r\n",
        "a long line": lambda: b"x" * WORK + b"\r\n",
        "a long line of carriage returns": lambda: b"\r" * WORK + b"\r\n",
        "small requests": lambda: b"reserve\r\n" * 5_000 + b"put 0 0 1 1\r\nx\r\n" * 5_000,
    },
    tokens=[
        b"put", b"use", b"reserve", b"delete", b" ", b" ", b"0", b"1", b"put 0 0 1 ", b"2", b"5", b"-1",
        b"1048577", b"4294967295", b"4294967296", b"99999999999999999999", b"\r\n", b"\r\n", b"\n", b"\r",
        b"x", b"x\r\n", b"put 0 0 1 1\r\n", b"put 0 0 1 3\r\nabcde", b"\0", b"\xff", b"t" * 210, b"a" * 230,
    ],
    broken=[
        b"x" * beanstalk.MAX_LINE + b"\r\n",
        b"put 0 0 1 2097152\r\n" + bytes(2097154),  # refused, and skipped
        b"put 0 0 1 1\r\nxyz",
        b"put 0 0 1\r\n",
        b"put 0 0 1 x\r\n",
        b"put 0 0 1 4294967296\r\n",
        b"put 0 0 1 " + b"0" * beanstalk.MAX_LINE,
    ],
    streams=_beanstalk_streams(),
)  # fmt: skip


CODECS = (RESP, MEMCACHED, BEANSTALK)
each_codec = pytest.mark.parametrize("codec", CODECS, ids=attrgetter("name"))
