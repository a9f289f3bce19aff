"""Plain connections in beanstalk's protocol: a line at a time."""

import re
from typing import Any

from tests.support.programs import Server
from tests.support.waiters import Connection

_NUMBERED = re.compile(rb"(?:RESERVED|FOUND) (\d+) (\d+)\r\n")


class Beanstalk(Connection):
    """A connection to a server's first beanstalk listener."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.port_of("beanstalk"))
        self._stream = self.socket.makefile("rb")  # holds the connection open until both are closed

    def __call__(self, line: str, message: bytes | None = None) -> Any:
        """Send a line. Return the line of the reply; for a job, its id and message."""
        data = b"" if message is None else b" %d\r\n%b" % (len(message), message)
        self.socket.sendall(line.encode() + data + b"\r\n")
        reply = self._stream.readline()
        found = _NUMBERED.fullmatch(reply)
        if not found:
            return reply.removesuffix(b"\r\n")
        body = self._stream.read(int(found[2]) + 2)
        return int(found[1]), body[:-2]

    def close(self) -> None:
        self._stream.close()
        super().close()

    def reset(self) -> None:
        self._stream.close()
        super().reset()
