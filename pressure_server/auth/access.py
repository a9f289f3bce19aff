"""Access: the users, protected mode and TLS that are in force, from the settings and the files they name."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Protocol

from pressure_server.auth.logins import Logins
from pressure_server.auth.peer_address import is_local
from pressure_server.auth.tls import TlsError, TlsFiles
from pressure_server.auth.users import (
    User,
    Users,
    UsersError,
    parse_users,
    users_with_password,
    users_without_login,
)

logger = logging.getLogger(__name__)


class AccessError(ValueError):
    """A setting, or a file that it names, cannot be used; the text gives the reason and shows no secret."""


class ConnectedUser(Protocol):
    """A client's connection: its user, and a way to end it."""

    user: User

    def break_off(self) -> None:
        """End the connection at once."""


@dataclass(frozen=True)
class AccessPolicy:
    """The access settings: a password or its file, the users file, protected mode, and the TLS files."""

    password: bytes | None = None
    password_file: Path | None = None
    users: Path | None = None
    protected: bool = True
    tls: TlsFiles | None = None

    def read_users(self) -> Users:
        """Read the files and return the users. Raise AccessError."""
        users = None
        try:
            if self.users is not None:
                users = parse_users(_text_of(self.users))
            password = self.password
            if self.password_file is not None:
                password = read_password(self.password_file)
            if password is not None:
                users = users_with_password(password, users)
        except UsersError as error:
            raise AccessError(f"{self.users or self.password_file or '--password'}: {error}") from error
        return users if users is not None else users_without_login()

    def read_tls(self) -> SSLContext | None:
        """Read the TLS files and return the context, or None without TLS. Raise AccessError."""
        try:
            return None if self.tls is None else self.tls.context()
        except TlsError as error:
            raise AccessError(str(error)) from error


class Access:
    """The users and the TLS context that are in force, the logins, and a count of denied commands."""

    def __init__(self, access_policy: AccessPolicy) -> None:
        """Read the files that the policy names. Raise AccessError if one cannot be used."""
        self._policy = access_policy
        self.users = access_policy.read_users()
        self._tls = access_policy.read_tls()
        self.logins = Logins()
        # Denied commands, by statistic of INFO: "cmd" (no right to the command), "key" (none to the queue).
        self.refused = Counter[str]()

    def tls(self) -> SSLContext:
        """Return the context for a new handshake. Raise ValueError if no certificate is set."""
        if self._tls is None:
            raise ValueError("no certificate is set")
        return self._tls

    def admits(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether protected mode admits the client: it is local, or clients must log in."""
        return not self._policy.protected or not self.users.initial.rights or is_local(transport)

    def reload(self, guests: Iterable[ConnectedUser] = ()) -> None:
        """Read the files again. If one cannot be used, log that and keep the users and TLS context in force.

        `guests` are the connections to update: each gets its user's new rights for its next command. A
        connection is ended if its user is gone or one of the user's passwords was removed.
        """
        try:
            users, tls = self._policy.read_users(), self._policy.read_tls()
        except AccessError as error:
            logger.error("reload failed, the previous users and TLS files stay in force: %s", error)
            return
        self.users, self._tls = users, tls
        cut_off = 0
        for guest in list(guests):
            heir = users.successor_of(guest.user)
            if heir is None:
                guest.break_off()
                cut_off += 1
            else:
                guest.user = heir
        logger.info(
            "reloaded: %d users%s, %d clients disconnected",
            len(users.by_name),
            "" if tls is None else ", TLS certificate",
            cut_off,
        )


def read_password(path: Path) -> bytes:
    """Return the password in a file, which must be its only line. Raise AccessError."""
    lines = _text_of(path).splitlines()
    if len(lines) != 1 or not lines[0]:
        raise AccessError(f"{path} must contain only the password, on one line")
    return lines[0].encode()


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AccessError(f"{path} must be UTF-8") from error
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
