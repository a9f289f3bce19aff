"""Logging in, as memcached does it in text: a first `set`, whose data is a user's name and a password."""

from __future__ import annotations

from handlers.memcached.client import MemcachedClient
from handlers.memcached.parser import Parsed, Request, RequestError
from handlers.memcached.replies import STORED, client_error
from pressure_server.auth.logins import MOST_FAILURES
from pressure_server.auth.users import MOST_PASSWORD_BYTES

UNAUTHENTICATED = client_error("unauthenticated")
# The most that somebody may send who has not logged in: a line, a name and a password.
MOST_BYTES = 2048 + 64 + MOST_PASSWORD_BYTES
# What needs no login: who asks whether a server is ready has no password.
OPEN_TO_ALL = (b"ready", b"quit")


def may_log_in(request: Parsed) -> bool:
    """Whether who sends this may be logged in by it."""
    return not isinstance(request, RequestError) and request.words[0] == b"set"


async def log_in(client: MemcachedClient, request: Request) -> bytes:
    """What a client is replied that has not logged in yet. Anything but a login is refused."""
    if request.words[0] != b"set" or request.data is None:
        return UNAUTHENTICATED
    name, _, password = request.data.partition(b" ")
    access = client.clients.access
    user = access.users.log_in(name.decode("utf-8", "replace"), password)
    if user is not None:
        client.user = user
        return STORED
    if name.decode("utf-8", "replace") not in access.users.by_name:
        # It may be a password, or a message of a client that has connected again and not logged in.
        name = b""
    await access.logins.fail(client.transport, name, client.failures)
    client.failures += 1
    if client.failures >= MOST_FAILURES:
        client.close_when_replied()
    return client_error("authentication failure")
