"""Redis and the server side by side: send the same commands to both, and compare their replies.

The fixtures are in tests/conftest.py: `original`, a real Redis, and `pair`, that Redis and the server.
"""

import re
from collections.abc import Collection

from tests.support import protocols
from tests.support.programs import Server, Valkey
from tests.support.protocols import Reply, resp_reply
from tests.support.waiters import packed

Command = tuple[bytes, ...]


class Wire(protocols.Wire):
    """A connection to Redis or to the server, whose replies can be compared."""

    def __init__(self, target: Server | str) -> None:
        super().__init__(protocols.RESP, target)

    def do(self, command: Command) -> Reply:
        """Send a command and return the reply, which is empty if the connection is closed first."""
        self.send(packed(*command))
        try:
            return resp_reply(self)
        except ConnectionError:
            return Reply(b"")


class Pair:
    """Redis and the server, both without data, and connections to both."""

    def __init__(self, original: Valkey, server: Server) -> None:
        self._original, self._server = original, server
        self._open: list[Wire] = []

    def connect(self, protocol: int = 2) -> tuple[Wire, Wire]:
        """Open a connection to Redis and one to the server, both with this RESP version."""
        wires = Wire(str(self._original.socket)), Wire(self._server)
        self._open += wires
        if protocol == 3:
            for wire in wires:
                assert wire.do((b"HELLO", b"3")).line.startswith(b"%")
        return wires

    def close(self) -> None:
        for wire in self._open:
            wire.close()


def split(table: str) -> list[str]:
    """Return the lines of a table, which are separated by bars and line breaks."""
    return [line for line in re.split(r"[|\n]", table) if line.strip()]


def words(line: str) -> Command:
    """Return a line's command: spaces separate words, '' is an empty word, and \\xff and \\n are escapes."""
    bare = (word.replace("''", "").encode("ascii") for word in line.split(" "))
    return tuple(word.decode("unicode_escape").encode("latin-1") for word in bare)


def compare(
    pair: Pair, lines: list[str], protocol: int, *, unordered: bool = False, ignored: Collection[str] = ()
) -> None:
    """Raise AssertionError unless the replies to all lines are equal, apart from lines in `ignored`."""
    redis, server = pair.connect(protocol)
    differing: list[str] = []
    for line in lines:
        expected, found = redis.do(words(line)), server.do(words(line))
        if unordered:
            expected, found = expected.unordered(), found.unordered()
        if expected != found and line not in ignored:
            differing.append(difference(line, expected, found))
    assert not differing, "".join(differing)


def difference(line: str, expected: Reply, found: Reply) -> str:
    """Return both replies to a line, for an assertion's text."""
    return f"\n{line}\n  Redis:  {expected.raw!r}\n  server: {found.raw!r}"
