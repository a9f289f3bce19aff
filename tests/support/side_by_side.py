"""Redis and our server side by side: the same commands to both, and their replies byte by byte.

The fixtures are in tests/conftest.py: `original`, a real Redis, and `pair`, that Redis and our server.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import BinaryIO

from tests.support.programs import TIMEOUT, Server, Valkey
from tests.support.waiters import packed

Command = tuple[bytes, ...]


@dataclass(frozen=True)
class Reply:
    """A reply's bytes; for an aggregate those of its first line, and its items."""

    line: bytes
    items: tuple[Reply, ...] = field(default=())

    @property
    def raw(self) -> bytes:
        return self.line + b"".join(item.raw for item in self.items)

    def unordered(self) -> Reply:
        """With the items in an order that does not depend on who sent them."""
        return Reply(
            self.line, tuple(sorted((item.unordered() for item in self.items), key=lambda item: item.raw))
        )


def read_reply(stream: BinaryIO) -> Reply:
    """The next reply; an empty one at the end of the stream."""
    line = stream.readline()
    kind = line[:1]
    if kind in b"$=!" and line[1:2] != b"-" and line:
        return Reply(line + stream.read(int(line[1:]) + 2))
    if kind in b"*~>%" and line[1:2] != b"-" and line:
        count = int(line[1:]) * (2 if kind == b"%" else 1)
        return Reply(line, tuple(read_reply(stream) for _ in range(count)))
    return Reply(line)


class Wire:
    """One connection, command by command."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT)
        self._socket = connection
        self._stream = connection.makefile("rb")

    def do(self, command: Command) -> Reply:
        self._socket.sendall(packed(*command))
        return read_reply(self._stream)

    def all_for(self, data: bytes) -> bytes:
        """Everything that comes for these bytes until the other side closes."""
        found = b""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)
        with contextlib.suppress(ConnectionError):
            while more := self._socket.recv(65536):
                found += more
        return found

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Pair:
    """Redis and our server, both without data, and connections to both."""

    def __init__(self, original: Valkey, ours: Server) -> None:
        self._original, self._ours = original, ours
        self._open: list[Wire] = []

    def connect(self, protocol: int = 2) -> tuple[Wire, Wire]:
        """A connection to Redis and one to us, both of that RESP version."""
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(str(self._original.socket))
        wires = Wire(unix), Wire(socket.create_connection(("127.0.0.1", self._ours.port)))
        self._open += wires
        if protocol == 3:
            for wire in wires:
                assert wire.do((b"HELLO", b"3")).line.startswith(b"%")
        return wires

    def close(self) -> None:
        for wire in self._open:
            wire.close()


def split(table: str) -> list[str]:
    """The lines of a table, which stand between bars and line breaks."""
    return [line for line in re.split(r"[|\n]", table) if line.strip()]


def words(line: str) -> Command:
    """The command a line stands for: words at spaces; '' is an empty one, \\xff a byte, \\n a line's end."""
    bare = (word.replace("''", "").encode("ascii") for word in line.split(" "))
    return tuple(word.decode("unicode_escape").encode("latin-1") for word in bare)


def compare(
    pair: Pair, lines: list[str], protocol: int, *, unordered: bool = False, but_for: Collection[str] = ()
) -> None:
    """The replies to these lines must be the same, but for those that are listed."""
    theirs, ours = pair.connect(protocol)
    differing: list[str] = []
    for line in lines:
        expected, found = theirs.do(words(line)), ours.do(words(line))
        if unordered:
            expected, found = expected.unordered(), found.unordered()
        if expected != found and line not in but_for:
            differing.append(difference(line, expected, found))
    assert not differing, "".join(differing)


def difference(line: str, expected: Reply, found: Reply) -> str:
    """What Redis and we have replied, for people."""
    return f"\n{line}\n  Redis: {expected.raw!r}\n  ours:  {found.raw!r}"
