"""What the log says of clients: at debug the life of each connection; once each command that they miss."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pressure_server.auth.users import NOBODY
from pressure_server.text import counted, printable

if TYPE_CHECKING:
    from pressure_server.net.session import Session

logger = logging.getLogger(__name__)

# Pairs of a library and a command that are remembered. Later ones are not logged.
_MAX_PAIRS = 256
_MAX_LIBRARY = 64
# Libraries send these to every server, and go on without them if the reply is an error. redis-py asks for
# notifications before a maintenance of Redis Enterprise.
_PROBES = {"CLIENT MAINT_NOTIFICATIONS"}
_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9_.:-]{0,63}")


class ConnectionLog:
    """The log of connections. It observes their commands to count them."""

    def __init__(self) -> None:
        # By connection: when it was opened, and how many commands it has sent.
        self._open: dict[Session, tuple[float, int]] = {}

    @classmethod
    def if_enabled(cls) -> ConnectionLog | None:
        """Return a log of connections; None if the level of the log is above debug."""
        return cls() if logger.isEnabledFor(logging.DEBUG) else None

    def opened(self, client: Session) -> None:
        """Log a new connection."""
        self._open[client] = perf_counter(), 0
        address = client.addresses.shown
        what = "connection %d from %s opened (%s)"
        logger.debug(what, client.id, address, client.PROTOCOL, extra={"client": address})

    def received(self, client: Session, commands: Sequence[Any]) -> None:
        """Count requests of a client that have been parsed."""
        if client in self._open:
            since, count = self._open[client]
            self._open[client] = since, count + sum(map(client.count_of, commands))

    def closed(self, client: Session, reason: str) -> None:
        """Log that a connection has ended, if it was opened."""
        if client not in self._open:
            return
        since, count = self._open.pop(client)
        address, seconds = client.addresses.shown, perf_counter() - since
        logger.debug(
            "connection %d from %s closed after %.3f seconds and %s: %s",
            client.id,
            address,
            seconds,
            counted(count, "command"),
            reason,
            extra={"client": address, "user": client.user_name, "duration": round(seconds, 6)},
        )


class UnknownCommands:
    """The pairs of a client library, or the host of a client that names none, and an unknown command."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def note(self, client: Session, name: Sequence[bytes], reply: str, *, loses_work: bool = False) -> None:
        """Log that a client has sent an unknown command, whose name has one or two words.

        If its application `loses_work` when it ignores the reply, the log has a warning.
        Arguments are left out. So are requests before a login, which may be garbled logins. A client that
        sends something else than a name speaks another protocol: its further requests are not logged.
        """
        if client.user is NOBODY or client.sends_garbage:
            return
        if all(map(_NAME.fullmatch, name)):
            command = b" ".join(name).decode().upper()
        else:
            client.sends_garbage = True
            command = "(not a name)"
        address = client.addresses.shown
        library = client.library_name.strip()[:_MAX_LIBRARY]
        if not self._is_new(library or _host_of(address), command):
            return
        usual = logging.DEBUG if command in _PROBES else logging.INFO
        logger.log(
            logging.WARNING if loses_work else usual,
            "%s command %s from %s (%s, %s): replied %s; logged once for each %s and command",
            "refused" if loses_work else "unknown",
            command,
            address,
            client.PROTOCOL,
            library or "unknown library",
            reply,
            "library" if library else "host",
            extra={"client": address, "user": client.user_name, "command": command, "error": reply},
        )
        if len(self._logged) == _MAX_PAIRS:
            logger.info("%d unknown commands are in the log: further ones are only counted", _MAX_PAIRS)

    def note_protocol(self, client: Session, protocol: str, advice: str) -> None:
        """Log, once for each host, that a client speaks a protocol that the listener does not."""
        self._warn_once_for_host(
            client,
            protocol,
            f"refused a client from {client.addresses.shown} at a {client.PROTOCOL} listener: "
            f"it speaks {protocol}; {advice}",
        )

    def note_unacknowledged(self, client: Session, queue: bytes) -> None:
        """Log, once for each host, that a client has ended with a message that goes back to its queue."""
        self._warn_once_for_host(
            client,
            "ACK NEXT",
            f"client {client.addresses.shown} ended with an unacknowledged message of queue "
            f"'{printable(queue)}', which goes back to the queue: another pop, or QUIT, acknowledges the "
            "last message",
        )

    def _warn_once_for_host(self, client: Session, what: str, text: str) -> None:
        address = client.addresses.shown
        if self._is_new(_host_of(address), what):
            logger.warning("%s; logged once for each host", text, extra={"client": address})

    def _is_new(self, sender: str, what: str) -> bool:
        """Return whether to log this: it is new, and the limit of lines is not reached."""
        if (sender, what) in self._logged or len(self._logged) >= _MAX_PAIRS:
            return False
        self._logged.add((sender, what))
        return True


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
