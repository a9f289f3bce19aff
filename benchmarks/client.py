"""A blocking RESP client with little overhead, so that it hardly affects the measurements."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from benchmarks.plan import BenchmarkError

_TIMEOUT = 60.0


def packed(*command: str | int | bytes) -> bytes:
    """Return a command encoded in RESP."""
    return bytes(hiredis.pack_command(command))  # type: ignore[arg-type]


class Client:
    """A connection to 127.0.0.1 from the address `source`. Call it to send a command and get the reply.

    The methods raise BenchmarkError for an error reply, and OSError if there is no reply within a minute.
    """

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT, (source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()

    def __call__(self, *command: str | int | bytes) -> Any:
        """Send a command and return its reply."""
        self.send(*command)
        return self.reply()

    def send(self, *command: str | int | bytes) -> None:
        """Send a command without waiting for its reply."""
        self._socket.sendall(packed(*command))

    def reply(self) -> Any:
        """Return the next reply."""
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(received)
        if isinstance(reply, hiredis.ReplyError):
            raise BenchmarkError(f"a command failed: {reply}")
        return reply
