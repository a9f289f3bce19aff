"""Monitors: the clients that have sent MONITOR, and what they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Protocol

from pressure_server.auth.peer_address import address_of

# A monitor that has more unsent bytes than this is disconnected: the server must not keep everything for it.
_MAX_UNSENT = 8 << 20
_ESCAPES = {byte: f"\\x{byte:02x}".encode() for byte in range(256)}
_ESCAPES |= {byte: bytes([byte]) for byte in range(32, 127)}
_ESCAPES |= {34: b'\\"', 92: b"\\\\", 10: b"\\n", 13: b"\\r", 9: b"\\t", 7: b"\\a", 8: b"\\b"}


class Monitored(Protocol):
    """The connection of a client whose commands are shown."""

    @property
    def transport(self) -> Any:
        """The connection's transport."""

    @property
    def database(self) -> Any:
        """The database that the client has selected."""

    def words_of(self, command: Any) -> list[list[bytes]]:
        """Return the words of the commands for which a parsed request stands."""


class Monitor(Protocol):
    """A connection that shows all commands."""

    @property
    def transport(self) -> Any:
        """The connection's transport."""

    def write(self, data: bytes) -> None:
        """Write data to the client."""

    def break_off(self) -> None:
        """End the connection at once."""


class Monitors:
    """The monitoring connections. It is false if there are none."""

    def __init__(self) -> None:
        self._monitors: set[Monitor] = set()

    def __bool__(self) -> bool:
        return bool(self._monitors)

    def __contains__(self, connection: object) -> bool:
        return connection in self._monitors

    def add(self, monitor: Monitor) -> None:
        """Show the commands of all clients to this connection, from the next read on."""
        self._monitors.add(monitor)

    def remove(self, monitor: Monitor) -> None:
        """Show it no more commands."""
        self._monitors.discard(monitor)

    def show(self, client: Monitored, commands: Sequence[Any]) -> None:
        """Show commands that a client has sent, as Redis's MONITOR does."""
        where = b"%.6f [%d %b] " % (
            time(),
            client.database.database_number,
            address_of(client.transport).encode(),
        )
        lines = [
            b"+" + where + b" ".join(map(_quoted, words)) + b"\r\n"
            for command in commands
            for words in client.words_of(command)
            if words
        ]
        for monitor in list(self._monitors):
            monitor.write(b"".join(lines))
            if monitor.transport.get_write_buffer_size() > _MAX_UNSENT:
                monitor.break_off()


def _quoted(word: bytes) -> bytes:
    return b'"' + b"".join(map(_ESCAPES.__getitem__, word)) + b'"'
