"""Users: their passwords, the queues they may use, and their rights. No I/O.

Passwords are kept as SHA-256 digests, as in Redis. docs/guides/security.md gives the reasons against a slower
hash.
"""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pressure_server.errors import PatternError
from pressure_server.text import Glob

RIGHTS = ("put", "get", "read", "administer")
DEFAULT = "default"
# Longer passwords are rejected, because hashing megabytes would block the event loop.
MAX_PASSWORD_BYTES = 1024
# Together these bound the time to match a name with any pattern. Names can come from attackers.
_MAX_PATTERN_BYTES = 256
_MAX_NAME_BYTES = 4096
_EVERY_QUEUE = "*"
_NAME = re.compile(r"[!-~]{1,64}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")


class UsersError(ValueError):
    """A users file or password cannot be used; the text says which part, and shows no password or hash."""


def password_digest(password: bytes) -> bytes:
    """Return the SHA-256 digest of a password."""
    return hashlib.sha256(password).digest()


# A digest that no password has. The passwords of unknown users are compared with it.
_NO_DIGEST = bytes(32)


@dataclass(frozen=True)
class User:
    """One user.

    `digests` are the digests of its passwords; with `needs_no_password` every password is accepted. `queues`
    are Redis patterns of the queues that it may use. `rights` is a subset of RIGHTS.
    """

    name: str
    digests: frozenset[bytes] = field(default=frozenset(), repr=False)
    needs_no_password: bool = False
    queues: tuple[str, ...] = (_EVERY_QUEUE,)
    rights: frozenset[str] = frozenset(RIGHTS)

    @cached_property
    def allowed(self) -> set[object]:
        """The commands that the user may execute on every queue, as far as that has been decided."""
        return set()

    @cached_property
    def has_all_queues(self) -> bool:
        """Whether the user may use every queue."""
        return _EVERY_QUEUE in self.queues

    @cached_property
    def _patterns(self) -> list[Glob]:
        return [Glob(pattern.encode()) for pattern in self.queues]

    def may_access(self, queue: bytes) -> bool:
        """Return whether the user may use a queue of that name, and see that it exists."""
        if self.has_all_queues:
            return True
        return len(queue) <= _MAX_NAME_BYTES and any(one.matches(queue) for one in self._patterns)

    def accepts_password(self, password: bytes) -> bool:
        """Return whether the password is one of the user's, in a time independent of its content."""
        digest = password_digest(password[:MAX_PASSWORD_BYTES])
        equal = [hmac.compare_digest(digest, known) for known in self.digests or (_NO_DIGEST,)]
        return self.needs_no_password or (any(equal) and len(password) <= MAX_PASSWORD_BYTES)


# A user without rights: of clients that have not logged in, and in place of unknown users.
NOBODY = User("", queues=(), rights=frozenset())


class Users:
    """All users, by name."""

    def __init__(self, users: Iterable[User]) -> None:
        self.by_name: Mapping[str, User] = {user.name: user for user in users}

    @property
    def initial(self) -> User:
        """The user of a client that has not logged in: `default` if it needs no password, or NOBODY."""
        user = self.by_name.get(DEFAULT, NOBODY)
        return user if user.needs_no_password else NOBODY

    def log_in(self, name: str, password: bytes) -> User | None:
        """Return the user if the name and password are correct. Unknown names take the same time."""
        user = self.by_name.get(name, NOBODY)
        return user if user.accepts_password(password) else None

    def successor_of(self, user: User) -> User | None:
        """Return the new user of a client that acted as `user` before a reload; None to disconnect it.

        That is the case if the user is gone, or has lost a password, which the client may have used.
        """
        if user is NOBODY:
            return self.initial
        successor = self.by_name.get(user.name)
        if successor is None:
            return None
        has_all_digests = not user.needs_no_password and user.digests <= successor.digests
        return successor if successor.needs_no_password or has_all_digests else None


def users_with_password(password: bytes, users: Users | None = None) -> Users:
    """Return the given users, if any, and a default user with this password and all rights.

    Raise UsersError if the password's length is invalid, or the users already contain a default user.
    """
    if not 0 < len(password) <= MAX_PASSWORD_BYTES:
        raise UsersError(f"the password must have from 1 to {MAX_PASSWORD_BYTES} bytes")
    others = users.by_name if users is not None else {}
    if DEFAULT in others:
        raise UsersError(f"the users file already has a user '{DEFAULT}': set its password there instead")
    return Users([User(DEFAULT, frozenset([password_digest(password)])), *others.values()])


def parse_users(text: str) -> Users:
    """Parse a users file in TOML (docs/guides/security.md has an example). Raise UsersError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsersError(f"this is not valid TOML: {error}") from error
    if document.keys() - {"users"}:
        raise UsersError("only tables [users.NAME] are allowed")
    tables = document.get("users", {})
    if not isinstance(tables, dict) or not tables:
        raise UsersError("there is no table [users.NAME]")
    return Users(_user(name, table) for name, table in tables.items())


def _user(name: str, table: Any) -> User:
    if not _NAME.fullmatch(name):
        raise UsersError(f"the name of a user must be 1 to 64 visible ASCII characters, not {name[:64]!r}")
    known = {"password-sha256", "nopass", "queues", "may"}
    if not isinstance(table, dict) or table.keys() - known:
        raise UsersError(f"user '{name}' must be a table with only these keys: {', '.join(sorted(known))}")
    if missing := sorted({"queues", "may"} - table.keys()):
        raise UsersError(f"user '{name}' must have {' and '.join(missing)}")
    needs_none = table.get("nopass", False)
    if not isinstance(needs_none, bool):
        raise UsersError(f"user '{name}': nopass must be true or false")
    hashes = _texts(name, table, "password-sha256")
    if not all(_HASH.fullmatch(one) for one in hashes):
        raise UsersError(
            f"user '{name}': password-sha256 must be 64 hexadecimal digits: "
            "pressure-server hash-password prints them"
        )
    if needs_none == bool(hashes):
        raise UsersError(f"user '{name}' must have either password-sha256 or nopass = true")
    rights = _texts(name, table, "may")
    if unknown := sorted(set(rights) - set(RIGHTS)):
        raise UsersError(
            f"unknown right {unknown[0][:64]!r} for user '{name}': choose from {', '.join(RIGHTS)}"
        )
    return User(
        name,
        frozenset(bytes.fromhex(one) for one in hashes),
        needs_none,
        tuple(_checked_pattern(name, pattern) for pattern in _texts(name, table, "queues")),
        frozenset(rights),
    )


def _texts(name: str, table: Mapping[str, Any], key: str) -> list[str]:
    """Return the strings under a key, whose value is a string or a list of strings."""
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsersError(f"user '{name}': {key} must be a string or a list of strings")
    return texts


def _checked_pattern(name: str, pattern: str) -> str:
    try:
        Glob(pattern.encode())
    except PatternError as error:
        raise UsersError(f"user '{name}': {error}") from error
    if len(pattern.encode()) > _MAX_PATTERN_BYTES:
        raise UsersError(f"user '{name}': a pattern may have {_MAX_PATTERN_BYTES} bytes at most")
    return pattern
