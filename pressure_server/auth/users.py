"""Users: by which passwords they log in, on which queues they may act, and what they may do there. Pure.

Passwords are kept as SHA-256 digests, as Redis keeps them: docs/guides/security.md says why not more slowly.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pressure_server.errors import PatternError
from pressure_server.queues.glob import glob_regex

RIGHTS = ("put", "get", "read", "administer")
DEFAULT = "default"
# A longer password is wrong without being looked at: hashing megabytes would hold up others.
MOST_PASSWORD_BYTES = 1024
# Together they bound what it takes to match a name, whatever the pattern. Names can come from attackers.
_MOST_PATTERN_BYTES = 256
_MOST_NAME_BYTES = 4096
_EVERY_QUEUE = "*"
_NAME = re.compile(r"[!-~]{1,64}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")


class UsersError(ValueError):
    """What is said of users cannot be used; the text says where, and shows no password and no hash."""


def digest_of(password: bytes) -> bytes:
    """What is kept of a password."""
    return hashlib.sha256(password).digest()


# What the passwords of unknown users are compared with: nothing has this digest.
_NONE = bytes(32)


@dataclass(frozen=True)
class User:
    """One user. `digests` are of its passwords, and any is right where it `needs_none`.

    `queues` are patterns in Redis's notation; `may` is which of RIGHTS it has.
    """

    name: str
    digests: frozenset[bytes] = field(default=frozenset(), repr=False)
    needs_none: bool = False
    queues: tuple[str, ...] = (_EVERY_QUEUE,)
    may: frozenset[str] = frozenset(RIGHTS)

    @cached_property
    def is_free(self) -> bool:
        """Whether it may do everything on every queue."""
        return self.has_all_queues and self.may == frozenset(RIGHTS)

    @cached_property
    def has_all_queues(self) -> bool:
        """Whether no queue is closed to it."""
        return _EVERY_QUEUE in self.queues

    @cached_property
    def _patterns(self) -> list[re.Pattern[bytes]]:
        return [glob_regex(pattern.encode()) for pattern in self.queues]

    def admits(self, queue: bytes) -> bool:
        """Whether it may act on a queue of that name, and see that it exists."""
        if self.has_all_queues:
            return True
        return len(queue) <= _MOST_NAME_BYTES and any(one.fullmatch(queue) for one in self._patterns)

    def is_password(self, password: bytes) -> bool:
        """Whether it is one of the user's. Takes as long whether it is nearly right or not at all."""
        digest = digest_of(password[:MOST_PASSWORD_BYTES])
        equal = [hmac.compare_digest(digest, known) for known in self.digests or (_NONE,)]
        return self.needs_none or (any(equal) and len(password) <= MOST_PASSWORD_BYTES)


# Who has not logged in, and may do nothing; and a stand-in for users that there are not.
NOBODY = User("", queues=(), may=frozenset())


class Users:
    """All users there are, by their names."""

    def __init__(self, users: Iterable[User]) -> None:
        self.by_name: Mapping[str, User] = {user.name: user for user in users}

    @property
    def initial(self) -> User:
        """Whom a client acts as that has not logged in: the default user if it needs no password."""
        user = self.by_name.get(DEFAULT, NOBODY)
        return user if user.needs_none else NOBODY

    def log_in(self, name: str, password: bytes) -> User | None:
        """The user, if it is one and the password is right. It takes as long for one that is unknown."""
        user = self.by_name.get(name, NOBODY)
        return user if user.is_password(password) else None

    def successor_of(self, user: User) -> User | None:
        """Whom a client acts as that acted as `user` of other Users; None where it has to log in anew.

        That is where the user is gone, or a password has been taken from it, which the client may have used.
        """
        if user is NOBODY:
            return self.initial
        heir = self.by_name.get(user.name)
        if heir is None:
            return None
        return heir if heir.needs_none or (not user.needs_none and user.digests <= heir.digests) else None


def everybody() -> Users:
    """Where nothing is said of users: all may come in, as the default user, and do everything."""
    return Users([User(DEFAULT, needs_none=True)])


def users_with_password(password: bytes, users: Users | None = None) -> Users:
    """These users, if any, and a default user who has this password and may do everything.

    Raises UsersError where it cannot be one, or the users have a default user already.
    """
    if not 0 < len(password) <= MOST_PASSWORD_BYTES:
        raise UsersError(f"the password must have from 1 to {MOST_PASSWORD_BYTES} bytes")
    others = users.by_name if users is not None else {}
    if DEFAULT in others:
        raise UsersError(f"the users file has a user '{DEFAULT}': the password must stand there, too")
    return Users([User(DEFAULT, frozenset([digest_of(password)])), *others.values()])


def parse_users(text: str) -> Users:
    """The users of a users file, in TOML: docs/guides/security.md has an example. Raises UsersError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsersError(f"it is no TOML: {error}") from error
    if document.keys() - {"users"}:
        raise UsersError("it may hold nothing but tables [users.NAME]")
    tables = document.get("users", {})
    if not isinstance(tables, dict) or not tables:
        raise UsersError("it holds no table [users.NAME]")
    return Users(_user(name, table) for name, table in tables.items())


def _user(name: str, table: Any) -> User:
    if not _NAME.fullmatch(name):
        raise UsersError(f"the name of a user must be 1 to 64 visible ASCII characters, not {name[:64]!r}")
    known = {"password-sha256", "nopass", "queues", "may"}
    if not isinstance(table, dict) or table.keys() - known:
        raise UsersError(f"user '{name}' may have nothing but {', '.join(sorted(known))}")
    if missing := sorted({"queues", "may"} - table.keys()):
        raise UsersError(f"user '{name}' lacks {' and '.join(missing)}")
    needs_none = table.get("nopass", False)
    if not isinstance(needs_none, bool):
        raise UsersError(f"user '{name}': nopass must be true or false")
    hashes = _texts(name, table, "password-sha256")
    if not all(_HASH.fullmatch(one) for one in hashes):
        raise UsersError(
            f"user '{name}': password-sha256 must be 64 hexadecimal digits: "
            "pressure-server hash-password makes them"
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
    """The texts under a key: a list, or one alone."""
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsersError(f"user '{name}': {key} must be a text or a list of texts")
    return texts


def _checked_pattern(name: str, pattern: str) -> str:
    try:
        glob_regex(pattern.encode())
    except PatternError as error:
        raise UsersError(f"user '{name}': {error}") from error
    if len(pattern.encode()) > _MOST_PATTERN_BYTES:
        raise UsersError(f"user '{name}': a pattern may have {_MOST_PATTERN_BYTES} bytes at most")
    return pattern
