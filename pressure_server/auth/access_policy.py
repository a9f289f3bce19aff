"""The access policy: users, protected mode and TLS, from the settings and the files that they name.

A reload reads the files again. Open connections then get the new rights of their users, or are ended.
"""

import asyncio
import logging
import re
import ssl
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pressure_server.auth.logins import Logins
from pressure_server.auth.peer_address import is_local
from pressure_server.auth.users import DEFAULT, User, Users, UsersError, parse_users, users_with_password
from pressure_server.errors import StartError
from pressure_server.text import counted

logger = logging.getLogger(__name__)


class AccessError(StartError, ValueError):
    """A setting, or a file that it names, cannot be used; the text gives the reason and shows no secret."""


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of TLS listeners.

    Without `key`, the certificate's file must contain the private key. With `client_ca`, clients must present
    a certificate.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files and return the context for new connections. Raise AccessError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        about = f"--tls-certificate {self.certificate}" + (f", --tls-key {self.key}" if self.key else "")
        try:
            # Without a password callback, OpenSSL would prompt on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            if self.client_ca is not None:
                about = f"--tls-client-ca {self.client_ca}"
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise AccessError(self._missing() or f"{about}: {error.reason or error}") from error
        except OSError as error:
            raise AccessError(f"{about}: {error.strerror}") from error
        return context

    def _missing(self) -> str:
        """Return an error text for the first file that lacks its PEM object; empty if none does."""
        key = ("--tls-key", self.key) if self.key else ("--tls-certificate", self.certificate)
        with suppress(OSError):
            for option, path, kind in (
                ("--tls-certificate", self.certificate, "CERTIFICATE"),
                (*key, "PRIVATE KEY"),
                ("--tls-client-ca", self.client_ca, "CERTIFICATE"),
            ):
                # A pipe cannot be read a second time.
                if path is None or not path.is_file():
                    continue
                text = path.read_text(encoding="latin-1")
                if not re.search(rf"^-----BEGIN [A-Z0-9 ]*{kind}-----", text, re.MULTILINE):
                    return f"{option} {path} holds no {kind.lower()} in PEM format"
        return ""


@dataclass(frozen=True)
class AccessPolicy:
    """The access settings: a password or its file, the users file, protected mode, and the TLS files."""

    password: bytes | None = None
    password_file: Path | None = None
    users: Path | None = None
    protected: bool = True
    tls: TlsFiles | None = None

    def read_users(self) -> Users:
        """Read the files and return the users: without any, one that has all rights. Raise AccessError."""
        try:
            users = parse_users(_text_of(self.users)) if self.users is not None else None
            password = self.password
            if self.password_file is not None:
                password = read_password(self.password_file)
            if password is not None:
                return users_with_password(password, users)
        except UsersError as error:
            raise AccessError(f"{self.users or self.password_file or '--password'}: {error}") from error
        return users or Users([User(DEFAULT, needs_no_password=True)])


class ConnectedUser(Protocol):
    """A client's connection or session: its user, and a way to end it."""

    user: User

    def break_off(self) -> None:
        """End the connection at once."""


class Access:
    """The users and the TLS context that are in force, the logins, and a count of denied commands."""

    def __init__(self, access_policy: AccessPolicy) -> None:
        """Read the files that the policy names. Raise AccessError if one cannot be used."""
        self._policy = access_policy
        self.users, self._tls = self._read()
        self.logins = Logins()
        # Denied commands, by statistic of INFO: "cmd" (no right to the command), "key" (none to the queue).
        self.refused = Counter[str]()

    def _read(self) -> tuple[Users, ssl.SSLContext | None]:
        tls = self._policy.tls
        return self._policy.read_users(), None if tls is None else tls.context()

    def tls(self) -> ssl.SSLContext:
        """Return the context for a new handshake. Raise ValueError if no certificate is set."""
        if self._tls is None:
            raise ValueError("no certificate is set")
        return self._tls

    def admits(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether protected mode admits the client: it is local, or clients must log in."""
        return not self.refuses_other_machines or is_local(transport)

    @property
    def refuses_other_machines(self) -> bool:
        """Whether protected mode refuses clients on other machines, because nobody must log in."""
        return self._policy.protected and bool(self.users.initial.rights)

    def reload(self, connected: Iterable[ConnectedUser] = ()) -> None:
        """Read the files again. If one cannot be used, log that and keep the users and TLS context in force.

        Each connection gets its user's new rights for its next command. A connection is ended if its user is
        gone or one of the user's passwords was removed.
        """
        try:
            self.users, self._tls = self._read()
        except AccessError as error:
            logger.error("reload failed, the previous users and TLS files stay in force: %s", error)
            return
        cut_off = 0
        for connection in list(connected):
            successor = self.users.successor_of(connection.user)
            if successor is None:
                connection.break_off()
                cut_off += 1
            else:
                connection.user = successor
        logger.info(
            "reloaded: %s%s, %s disconnected",
            counted(len(self.users.by_name), "user"),
            "" if self._tls is None else ", TLS certificate",
            counted(cut_off, "client"),
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
