"""Who may come in: users, protected mode and TLS, as the settings and the files they name say now."""

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
from pressure_server.auth.users import User, Users, UsersError, everybody, parse_users, users_with_password

logger = logging.getLogger(__name__)


class AccessError(ValueError):
    """The settings, or a file that they name, cannot be used; the text says why, and shows no secret."""


class Guest(Protocol):
    """A client's connection, as far as it matters here."""

    user: User

    def break_off(self) -> None:
        """End its connection at once."""


@dataclass(frozen=True)
class AccessPolicy:
    """What is set: a password or its file, the users' file, protected mode, and the files for TLS."""

    password: bytes | None = None
    password_file: Path | None = None
    users: Path | None = None
    protected: bool = True
    tls: TlsFiles | None = None

    def read_users(self) -> Users:
        """The users as they are set now. Raises AccessError."""
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
        return users if users is not None else everybody()

    def read_tls(self) -> SSLContext | None:
        """The context for TLS as the files are now. Raises AccessError."""
        try:
            return None if self.tls is None else self.tls.context()
        except TlsError as error:
            raise AccessError(str(error)) from error


class Access:
    """The doors as they stand. Raises AccessError where a file cannot be used."""

    def __init__(self, doors: AccessPolicy) -> None:
        self._doors = doors
        self.users = doors.read_users()
        self._tls = doors.read_tls()
        self.logins = Logins()
        # How often a user was refused: a command it may not use, or a queue.
        self.refused = Counter[str]()

    def tls(self) -> SSLContext:
        """For a handshake that begins now; there are listeners for TLS only where there is one."""
        if self._tls is None:
            raise ValueError("no certificate is set")
        return self._tls

    def admits(self, transport: asyncio.BaseTransport) -> bool:
        """Protected mode: where no login is needed, only this machine's clients come in."""
        return not self._doors.protected or not self.users.initial.may or is_local(transport)

    def reload(self, guests: Iterable[Guest] = ()) -> None:
        """Read the files again. What cannot be used is logged, and what was in force stays so.

        Guests have their user's new rights from their next command on; those who came in by what is valid
        no longer are cut off.
        """
        try:
            users, tls = self._doors.read_users(), self._doors.read_tls()
        except AccessError as error:
            logger.error("not reloaded, all stays as it was: %s", error)
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
            "reloaded: %d users%s, %d clients cut off",
            len(users.by_name),
            "" if tls is None else ", TLS certificate",
            cut_off,
        )


def read_password(path: Path) -> bytes:
    """The one line of a password file. Raises AccessError."""
    lines = _text_of(path).splitlines()
    if len(lines) != 1 or not lines[0]:
        raise AccessError(f"{path} must hold the password, on one line, and nothing else")
    return lines[0].encode()


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AccessError(f"{path} must be UTF-8") from error
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
