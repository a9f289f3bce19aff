"""Unknown commands: log each once for each client library, so that the log shows what clients miss."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Protocol

from pressure_server.auth.users import NOBODY, User
from pressure_server.net.connection_log import LoggedClient

logger = logging.getLogger(__name__)

# Pairs of a library and a command that are remembered. Later ones are not logged.
_MAX_PAIRS = 256
_MAX_LIBRARY = 64
_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9_.:-]{0,63}")


class Sender(LoggedClient, Protocol):
    """A client that has sent an unknown command."""

    user: User
    sends_garbage: bool

    @property
    def library_name(self) -> str:
        """The client's library and version, if it has told them."""


class UnknownCommands:
    """The pairs of a client library and an unknown command that are in the log."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def note(self, client: Sender, name: Sequence[bytes], reply: str) -> None:
        """Log that a client has sent an unknown command, whose name has one or two words.

        Arguments are left out. So are requests of clients that have not logged in, because they may be
        garbled logins. A client that sends something else than a name speaks another protocol, or its data
        are read as commands: its further requests are not logged.
        """
        if client.user is NOBODY or client.sends_garbage:
            return
        if all(map(_NAME.fullmatch, name)):
            command = b" ".join(name).decode().upper()
        else:
            client.sends_garbage = True
            command = "(not a name)"
        library = client.library_name.strip()[:_MAX_LIBRARY] or "unknown library"
        if (library, command) in self._logged or len(self._logged) >= _MAX_PAIRS:
            return
        self._logged.add((library, command))
        address = client.addresses.shown
        logger.info(
            "unknown command %s from %s (%s, %s): replied %s; logged once for each library and command",
            command,
            address,
            client.PROTOCOL,
            library,
            reply,
            extra={"client": address, "user": client.user_name, "command": command, "error": reply},
        )
        if len(self._logged) == _MAX_PAIRS:
            logger.info("%d unknown commands are in the log: further ones are only counted", _MAX_PAIRS)
