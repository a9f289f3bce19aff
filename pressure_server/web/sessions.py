"""Sessions of the console: logged-in users, by a token in a cookie."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from time import monotonic

from pressure_server.auth.users import User

# Seconds for which a session lasts without a request, and the most sessions: the oldest ends.
MAX_IDLE = 12 * 3600.0
_MAX_SESSIONS = 1000


class Session:
    """A login in one browser."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.is_over = False
        self.used = monotonic()

    def break_off(self) -> None:
        """End the session."""
        self.is_over = True


class Sessions:
    """The sessions by token. Only digests of tokens are kept."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[bytes, Session] = OrderedDict()

    def current(self) -> list[Session]:
        """Return the sessions."""
        return list(self._by_digest.values())

    def begin(self, user: User) -> str:
        """Return the token of a new session."""
        token = secrets.token_urlsafe(32)
        self._by_digest[_digest(token)] = Session(user)
        while len(self._by_digest) > _MAX_SESSIONS:
            self._by_digest.popitem(last=False)[1].break_off()
        return token

    def find(self, token: str) -> Session | None:
        """Return the session with this token, unless it has ended."""
        digest = _digest(token)
        session = self._by_digest.get(digest)
        if session is None:
            return None
        if session.is_over or monotonic() - session.used > MAX_IDLE:
            session.break_off()
            del self._by_digest[digest]
            return None
        session.used = monotonic()
        self._by_digest.move_to_end(digest)
        return session

    def end(self, token: str) -> None:
        """End the session with this token, if there is one."""
        session = self._by_digest.pop(_digest(token), None)
        if session is not None:
            session.break_off()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
