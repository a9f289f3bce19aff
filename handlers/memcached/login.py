"""Logins in memcached's text protocol: the first command is a `set` with the data `USER PASSWORD`."""

from __future__ import annotations

from handlers.memcached.client import MemcachedClient
from handlers.memcached.parser import Parsed, Request, RequestError
from handlers.memcached.replies import STORED, client_error
from pressure_server.auth.logins import MAX_FAILURES
from pressure_server.auth.users import MAX_PASSWORD_BYTES

UNAUTHENTICATED = client_error("unauthenticated")
# The largest request before a login, in bytes: a line, a user's name and a password.
MAX_LOGIN_BYTES = 2048 + 64 + MAX_PASSWORD_BYTES
# Commands allowed before a login. Health checks have no password.
BEFORE_LOGIN = (b"ready", b"quit")


def may_log_in(request: Parsed) -> bool:
    """Return whether the request may be a login."""
    return not isinstance(request, RequestError) and request.words[0] == b"set"


async def log_in(client: MemcachedClient, request: Request) -> bytes:
    """Execute a login, and return the reply. Refuse any other request."""
    if request.words[0] != b"set" or request.data is None:
        return UNAUTHENTICATED
    name, _, password = request.data.partition(b" ")
    access = client.clients.access
    user = access.users.log_in(name.decode("utf-8", "replace"), password)
    if user is not None:
        client.user = user
        access.logins.succeed(client.transport, user)
        return STORED
    if name.decode("utf-8", "replace") not in access.users.by_name:
        # Keep unknown names out of the log: this may be a password, or a message sent without a login.
        name = b""
    await access.logins.fail(client.transport, name, client.failures)
    client.failures += 1
    if client.failures >= MAX_FAILURES:
        client.close_when_replied()
    return client_error("authentication failure")
