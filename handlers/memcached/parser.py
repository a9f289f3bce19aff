"""Requests: bytes in, commands out. Sans-IO, and strict: every length is checked before memory is taken.

A request is a line of words and, where it stores something, a block of data. The forms are those of
memcached's protocol.txt; where memcached reads a block that it has refused as further commands, it is
skipped here, so that nobody's data is ever executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# As memcached: a key, and a line that is not one of many keys.
MAX_KEY = 250
MAX_LINE = 2048
MAX_KEYS_LINE = 64 * 1024
# What is sent with each of these is a block of data, whose size is the word at that place.
_STORING = dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend", b"cas"), 4)
_RETRIEVING = (b"get ", b"gets ", b"gat ", b"gats ")
# Those that may be told not to reply, by a last word that has so many before it, or more: an only key can
# be called noreply.
_MAY_BE_QUIET = {
    **dict.fromkeys((*_STORING, b"delete", b"incr", b"decr", b"touch", b"flush"), 2),
    **dict.fromkeys((b"flush_all", b"verbosity"), 1),
}
_KEY = re.compile(rb"[^\x00-\x20\x7f]{1,%d}" % MAX_KEY)
_BINARY = 0x80
_BINARY_HEADER = 24
# So many equal requests in a row are one.
_MOST_REPEATED = 512
# A line of more words is not kept: as many keys as one can have would take a megabyte for each client.
_MOST_WORDS_KEPT = 8

BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"
LINE_TOO_LONG = b"CLIENT_ERROR line too long\r\n"
_ONLY_TEXT = b"this server speaks memcached's text protocol only"


@dataclass(slots=True)
class Request:
    """The words of a line, without noreply, which is said apart; and the data behind it, if any."""

    words: list[bytes]
    data: bytes | None = None
    is_quiet: bool = False


@dataclass(slots=True)
class Repeated:
    """`count` requests in a row with the same line; `data` is that of each, empty where they have none."""

    words: list[bytes]
    data: list[bytes]
    count: int
    is_quiet: bool = False

    def split(self, count: int) -> list[Repeated]:
        """The first `count` requests, and the others."""
        first = Repeated(self.words, self.data[:count], count, self.is_quiet)
        return [first, Repeated(self.words, self.data[count:], self.count - count, self.is_quiet)]

    def requests(self) -> list[Request]:
        """The requests, one by one."""
        if not self.data:
            return [Request(self.words, None, self.is_quiet) for _ in range(self.count)]
        return [Request(self.words, block, self.is_quiet) for block in self.data]


@dataclass(slots=True)
class RequestError:
    """What is no request. `reply` says so, empty where none is wanted; what `closes` is the last."""

    reply: bytes
    closes: bool = False


Parsed = Request | Repeated | RequestError


class _Line:
    """A line that has been read, kept because the next one is likely to be the same."""

    __slots__ = ("is_quiet", "size", "text", "words")

    def __init__(self, text: bytes, words: list[bytes], size: int, *, is_quiet: bool) -> None:
        """`text` is with its end. `size` is that of the data behind it, -1 for none."""
        self.text = text
        self.words = words
        self.size = size
        self.is_quiet = is_quiet


_NO_LINE = _Line(b"", [], -1, is_quiet=False)


class RequestParser:
    """Reads one client's requests. `most_bytes` is the largest block of data."""

    __slots__ = ("_awaited", "_line", "_longest", "_most_bytes", "_skip", "_skips_line", "_unread")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._unread: bytearray | None = None
        # How many bytes have to be there before it is worth a look; or, of a line, may be without its end.
        self._awaited = 0
        self._longest = 0
        self._skip = 0  # of data that has been refused
        self._skips_line = False  # what is behind a block that was too long
        self._line = _NO_LINE

    @property
    def unparsed(self) -> int:
        """What a request that is not complete takes, in bytes."""
        return len(self._unread) if self._unread is not None else 0

    @property
    def awaited(self) -> int:
        """How large the request is that has begun, in bytes, as far as that is known."""
        return max(self._awaited, self._skip, self.unparsed)

    def feed(self, data: bytes) -> list[Parsed]:
        """The requests that end in `data`. A RequestError that closes is the last: feed nothing after it."""
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        elif self._skips_line:
            behind = data.find(b"\n") + 1
            self._skips_line = not behind
            data = data[behind:] if behind else b""
        if self._unread is not None:
            # One buffer: a list of small pieces would take many times what they hold.
            self._unread += data
            size = len(self._unread)
            if size < self._awaited or (size <= self._longest and b"\n" not in data):
                return []
            data = bytes(self._unread)
            self._unread = None
        self._awaited = self._longest = 0
        parsed: list[Parsed] = []
        position = self._read(data, parsed)
        if position < len(data) and not self._is_over(parsed):
            self._unread = bytearray(memoryview(data)[position:])
        return parsed

    @staticmethod
    def _is_over(parsed: list[Parsed]) -> bool:
        return bool(parsed) and type(parsed[-1]) is RequestError and parsed[-1].closes

    def _read(self, data: bytes, parsed: list[Parsed]) -> int:
        """Read what is complete; where in `data` the first request begins that is not."""
        position, end = 0, len(data)
        while position < end:
            line: _Line = self._line
            if not (line.text and data.startswith(line.text, position)):
                if data[position] == _BINARY:
                    parsed.append(_refuse_binary(data, position))
                    return end
                after = data.find(b"\n", position) + 1
                if not after or after - position > MAX_LINE:
                    error = self._look_at_long(data, position, after)
                    if error is not None:
                        parsed.append(error)
                        return end
                    if not after:
                        return position
                found = self._read_line(data[position:after])
                if isinstance(found, RequestError):
                    parsed.append(found)
                    if found.closes:
                        return end
                    position = after + self._skip
                    self._skip = max(0, position - end)
                    continue
                line = found
                self._line = found if len(found.words) <= _MOST_WORDS_KEPT else _NO_LINE
            position = self._repeat(line, data, position, parsed)
            if self._awaited:
                return position
        return end

    def _repeat(self, line: _Line, data: bytes, position: int, parsed: list[Parsed]) -> int:
        """Read requests with that line, of which there is one at least; where the next one begins."""
        text, size = line.text, line.size
        step = len(text)
        blocks: list[bytes] = []
        count = 0
        if size < 0:
            while data.startswith(text, position) and count < _MOST_REPEATED:
                position += step
                count += 1
        else:
            while data.startswith(text, position) and count < _MOST_REPEATED:
                first = position + step
                last = first + size
                ending = data[last : last + 2]
                if ending != b"\r\n":
                    if len(ending) == 2:
                        # What is too much of the block goes to the end of its line.
                        behind = data.find(b"\n", last) + 1
                        self._skips_line = not behind
                        self._add(line, blocks, count, parsed)
                        parsed.append(RequestError(b"" if line.is_quiet else BAD_CHUNK))
                        return behind or len(data)
                    self._awaited = step + size + 2
                    break
                blocks.append(data[first:last])
                count += 1
                position = last + 2
        self._add(line, blocks, count, parsed)
        return position

    @staticmethod
    def _add(line: _Line, blocks: list[bytes], count: int, parsed: list[Parsed]) -> None:
        if count == 1:
            parsed.append(Request(line.words, blocks[0] if blocks else None, line.is_quiet))
        elif count:
            parsed.append(Repeated(line.words, blocks, count, line.is_quiet))

    def _look_at_long(self, data: bytes, position: int, after: int) -> RequestError | None:
        """What is wrong with a line that has no end yet, or a long one."""
        most = MAX_KEYS_LINE if data.startswith(_RETRIEVING, position) else MAX_LINE
        if (after or len(data)) - position > most:
            return RequestError(LINE_TOO_LONG, closes=True)
        if not after:
            self._longest = most
        return None

    def _read_line(self, text: bytes) -> _Line | RequestError:
        words = [word for word in text.rstrip(b"\r\n").split(b" ") if word]
        if not words:
            return RequestError(b"ERROR\r\n")
        if words[0] == b"sismember":
            words = text.rstrip(b"\r\n").lstrip(b" ").split(b" ", 2)
        is_quiet = words[-1] == b"noreply" and len(words) > _MAY_BE_QUIET.get(words[0], MAX_KEYS_LINE)
        if is_quiet:
            words.pop()
        at = _STORING.get(words[0])
        if at is None:
            return _Line(text, words, -1, is_quiet=is_quiet)
        if len(words) < 2:
            return RequestError(b"ERROR\r\n")
        size = int(words[at]) if len(words) > at and re.fullmatch(rb"\d{1,10}", words[at]) else -1
        if size < 0:
            # What follows may be data, so it is not read as commands.
            return RequestError(BAD_FORMAT, closes=True)
        wrong = None
        if size > self._most_bytes:
            wrong = TOO_LARGE
        elif len(words) != at + 1 + (words[0] == b"cas") or not _KEY.fullmatch(words[1]):
            wrong = BAD_FORMAT
        if wrong is not None:
            self._skip = size + 2
            return RequestError(b"" if is_quiet else wrong)
        return _Line(text, words, size, is_quiet=is_quiet)


def is_key(word: bytes) -> bool:
    """Whether it can be a key: visible, and not too long."""
    return _KEY.fullmatch(word) is not None


def _refuse_binary(data: bytes, position: int) -> RequestError:
    """The binary protocol's answer to a command that it does not know; what has not come of it is 0."""
    header = data[position : position + _BINARY_HEADER].ljust(_BINARY_HEADER, b"\0")
    length = len(_ONLY_TEXT).to_bytes(4, "big")
    reply = b"\x81" + header[1:2] + b"\0\0\0\0\x00\x81" + length + header[12:16] + bytes(8) + _ONLY_TEXT
    return RequestError(reply, closes=True)
