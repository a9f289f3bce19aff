"""Monitors: the clients that have sent MONITOR, and what they are shown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from pressure_server.auth.users import User
from pressure_server.net.slow_log import shortened

if TYPE_CHECKING:
    from pressure_server.net.session import Session

# A monitor that has more unsent bytes than this is disconnected: the server must not keep everything for it.
MAX_UNSENT = 8 << 20
# Longer words, and more of them, are shortened: quoting them would delay all clients.
_MAX_WORDS = 128
_MAX_WORD_BYTES = 1024
_NOT_PLAIN = re.compile(rb'[^ -~]|["\\]')
_ESCAPES = {bytes([byte]): b"\\x%02x" % byte for byte in range(256)}
_ESCAPES |= {b'"': b'\\"', b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}
_ESCAPES |= {b"\a": b"\\a", b"\b": b"\\b"}


class Monitors(set["Session"]):
    """The clients that are shown all commands."""

    def __init__(self) -> None:
        # Whether clients of other processes of this server are monitors, and what tells these processes
        # whether this one has monitors, and lines for theirs.
        self.others_watch = False
        self.tell_others: Callable[[bool, bytes], None] = lambda _has_monitors, _lines: None
        self._told = False  # whether the others know of monitors here
        # Lines that are sent in the next iteration of the event loop: each write is a system call.
        self._lines: list[bytes] = []

    def tell_of_change(self) -> None:
        """Tell the other processes whether this one has monitors, if that has changed."""
        if bool(self) is not self._told:
            self._told = bool(self)
            self.tell_others(self._told, b"")

    def received(self, client: Session, commands: Sequence[Any]) -> None:
        """Show requests that have been parsed as Redis's MONITOR does."""
        shown = [words for command in commands for words in client.words_of(command)]
        if not shown:
            return
        where = b"+%.6f [%d %b] " % (time(), client.database.database_number, client.addresses.shown.encode())
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._send)
        self._lines += [where + line_of(words) + b"\r\n" for words in shown]

    def _send(self) -> None:
        """Send the lines to all monitors."""
        lines = b"".join(self._lines)
        self._lines.clear()
        if self.others_watch:
            self.tell_others(bool(self), lines)
        self.show(lines)

    def show(self, lines: bytes) -> None:
        """Send lines to the monitors of this process. Disconnect those that may not see them, or are slow."""
        for monitor in list(self):
            if not _may_monitor(monitor.user):
                monitor.break_off("its user may no longer use MONITOR")
                continue
            monitor.connection.write(lines)
            if monitor.connection.transport.get_write_buffer_size() > MAX_UNSENT:
                monitor.break_off("it reads the output of MONITOR too slowly")


def _may_monitor(user: User) -> bool:
    return user.has_all_queues and "administer" in user.rights


def line_of(words: Sequence[bytes]) -> bytes:
    """Return words in Redis's notation: in double quotes, with escapes."""
    return b" ".join(map(_quoted, shortened(words, _MAX_WORDS, _MAX_WORD_BYTES)))


def _quoted(word: bytes) -> bytes:
    return b'"' + _NOT_PLAIN.sub(lambda found: _ESCAPES[found[0]], word) + b'"'
