"""Request parser: converts received bytes into requests. Sans-IO; checks every length before buffering.

A request is a line of words and, for storage commands, a block of data: see memcached's protocol.txt. Unlike
memcached, the parser skips the data of refused requests, or ends the connection if the size of the data is
unknown or wrong, so that data is never executed as commands.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from pressure_server.auth.users import MAX_PASSWORD_BYTES
from pressure_server.compiled import mypyc_attr
from pressure_server.net.line_parser import FEW_WORDS, LineParser, Refused

# The most bytes of a key, of a line, and of a line with many keys; the first two as in memcached.
MAX_KEY = 250
MAX_LINE = 2048
MAX_KEYS_LINE = 64 * 1024


class _Storing(NamedTuple):
    """A command with a block of data: the index of the word that is the block's size, and how many words."""

    size: int
    least: int
    most: float


_UPDATES = (b"set", b"add", b"replace", b"append", b"prepend")
_STORING = {
    **dict.fromkeys(_UPDATES, _Storing(4, 5, 5)),
    b"cas": _Storing(4, 6, 6),
    b"ms": _Storing(2, 3, inf),
}
# Commands whose words after the key, or after the size, are flags. With the flag b, the key is in base64.
_META = (b"mg", b"ms", b"md", b"ma", b"me")
_RETRIEVING = (b"get ", b"gets ", b"gat ", b"gats ")
# Commands that accept noreply, and the least number of words before it. After fewer words noreply is a key.
_MAY_BE_QUIET = {
    **dict.fromkeys((*_UPDATES, b"cas", b"delete", b"incr", b"decr", b"touch", b"flush"), 2),
    **dict.fromkeys((b"flush_all", b"verbosity"), 1),
}
# A valid key: 1 to 250 bytes, without spaces and control characters.
KEY = re.compile(rb"[^\x00-\x20\x7f]{1,%d}" % MAX_KEY)
_BINARY = 0x80
# The first byte of a reply in the binary protocol.
BINARY_REPLY = b"\x81"
_BINARY_HEADER = 24
# The most equal requests in a row that become one Request.
_MAX_REPEATED = 512

BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"
BAD_KEY = b"CLIENT_ERROR error decoding key\r\n"
LINE_TOO_LONG = b"CLIENT_ERROR line too long\r\n"
_ONLY_TEXT = b"this server speaks memcached's text protocol only"


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass
class Request:
    """`count` requests in a row with the same line: its words, without noreply, which `is_quiet` means.

    `blocks` has the data of each request, unless they have none.
    """

    words: list[bytes]
    blocks: list[bytes] = field(default_factory=list)
    is_quiet: bool = False
    count: int = 1

    def split(self, count: int) -> list[Request]:
        """Return the first `count` requests, and the others."""
        first = Request(self.words, self.blocks[:count], self.is_quiet, count)
        return [first, Request(self.words, self.blocks[count:], self.is_quiet, self.count - count)]

    def requests(self) -> list[Request]:
        """Return the requests one by one."""
        blocks = [[block] for block in self.blocks] or [self.blocks] * self.count
        return [Request(self.words, block, self.is_quiet) for block in blocks]


@dataclass
class _Line:
    """A parsed line, kept because the next line is likely to be the same.

    `text` includes the line end. `size` is the number of bytes of data after the line; -1 for no data.
    """

    text: bytes
    words: list[bytes]
    size: int = -1
    is_quiet: bool = False


_NO_LINE = _Line(b"", [])


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestParser(LineParser):
    """A parser for one client's requests. `most_bytes` is the largest size of a block of data."""

    __slots__ = ("_line", "_most_bytes")
    # A line, a user's name and a password.
    MAX_LOGIN_BYTES = MAX_LINE + 64 + MAX_PASSWORD_BYTES

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._line = _NO_LINE

    def _read(self, data: bytes, requests: list[Any]) -> int:
        """See LineParser."""
        position, end = 0, len(data)
        while position < end:
            if self._skip:
                skipped = min(self._skip, end - position)
                position += skipped
                self._skip -= skipped
                continue
            line: _Line = self._line
            if not (line.text and data.startswith(line.text, position)):
                if data[position] == _BINARY:
                    requests.append(_refuse_binary(data, position))
                    return end
                after = data.find(b"\n", position) + 1
                if not after or after - position > MAX_LINE:
                    most = MAX_KEYS_LINE if data.startswith(_RETRIEVING, position) else MAX_LINE
                    if (after or end) - position > most:
                        requests.append(Refused(LINE_TOO_LONG, closes=True))
                        return end
                    if not after:
                        self._longest = most
                        return position
                found = self._read_line(data[position:after])
                if isinstance(found, Refused):
                    requests.append(found)
                    if found.closes:
                        return end
                    position = after
                    continue
                line = found
                if len(found.words) <= FEW_WORDS:
                    self._line = found
                else:
                    # It is not kept for comparison: many keys would take a megabyte per client.
                    self._line = _NO_LINE
                    self.many_words += len(found.words)
            position = self._repeat(line, data, position, requests)
            if self._awaited:
                return position
        return end

    def _repeat(self, line: _Line, data: bytes, position: int, requests: list[Any]) -> int:
        """Read up to _MAX_REPEATED requests with that line. Return the position of the next request.

        `data` has the line at `position`. Set `_awaited` if the data of a request is incomplete.
        """
        text, size = line.text, line.size
        step = len(text)
        blocks: list[bytes] = []
        count = 0
        is_wrong = False
        if size < 0:
            while data.startswith(text, position) and count < _MAX_REPEATED:
                position += step
                count += 1
        else:
            while data.startswith(text, position) and count < _MAX_REPEATED:
                first = position + step
                last = first + size
                ending = data[last : last + 2]
                if ending != b"\r\n":
                    is_wrong = len(ending) == 2
                    self._awaited = 0 if is_wrong else step + size + 2
                    break
                blocks.append(data[first:last])
                count += 1
                position = last + 2
        if count:
            requests.append(Request(line.words, blocks, line.is_quiet, count))
        if is_wrong:
            # Close: the block is longer than announced, and how much of it follows is unknown.
            requests.append(Refused(BAD_CHUNK, closes=True))
            return len(data)
        return position

    def _read_line(self, text: bytes) -> _Line | Refused:
        words = [word for word in text.rstrip(b"\r\n").split(b" ") if word]
        if not words:
            return Refused(b"ERROR\r\n")
        if words[0] == b"sismember":
            words = text.rstrip(b"\r\n").lstrip(b" ").split(b" ", 2)
        is_quiet = words[-1] == b"noreply" and len(words) > _MAY_BE_QUIET.get(words[0], MAX_KEYS_LINE)
        if is_quiet:
            words.pop()
        wrong = BAD_KEY if words[0] in _META and not _decode_key(words) else None
        # Commands in upper case do not exist, but their data must not be read as commands.
        storing = _STORING.get(words[0].lower())
        if storing is None:
            return _Line(text, words, -1, is_quiet) if wrong is None else Refused(wrong)
        if len(words) < 2:
            return Refused(b"ERROR\r\n")
        at = storing.size
        size = int(words[at]) if len(words) > at and re.fullmatch(rb"\d{1,10}", words[at]) else -1
        if size < 0:
            # Close: data of unknown size may follow, and must not be read as commands.
            return Refused(BAD_FORMAT, closes=True)
        if size > self._most_bytes:
            wrong = TOO_LARGE
        elif not storing.least <= len(words) <= storing.most or not (
            KEY.fullmatch(words[1]) or has_encoded_key(words)
        ):
            wrong = wrong or BAD_FORMAT
        if wrong is not None:
            self._skip = size + 2
            return Refused(b"" if is_quiet else wrong)
        return _Line(text, words, size, is_quiet)


def has_encoded_key(words: list[bytes]) -> bool:
    """Return whether a meta command has the flag b: its key, which any bytes may be in, came in base64."""
    return words[0] in _META and any(word.startswith(b"b") for word in words[2:])


def _decode_key(words: list[bytes]) -> bool:
    """Replace the key of a meta command with the flag b by the bytes that it stands for."""
    if has_encoded_key(words):
        try:
            words[1] = a2b_base64(words[1], strict_mode=True) if len(words[1]) <= MAX_KEY else b""
        except Base64Error:
            return False
        return bool(words[1])
    return True


def _refuse_binary(data: bytes, position: int) -> Refused:
    """Return the binary protocol's reply to an unknown command. Header bytes not yet received count as 0."""
    header = data[position : position + _BINARY_HEADER].ljust(_BINARY_HEADER, b"\0")
    length = len(_ONLY_TEXT).to_bytes(4, "big")
    reply = BINARY_REPLY + header[1:2] + b"\0\0\0\0\x00\x81" + length + header[12:16] + bytes(8) + _ONLY_TEXT
    return Refused(reply, closes=True)
