"""Commands that beanstalkd does not have: log in, ask whether the server is ready; and quit."""

from __future__ import annotations

from handlers.beanstalk import replies
from handlers.beanstalk.client import BeanstalkClient
from handlers.beanstalk.table import FormatError, command
from pressure_server.auth.logins import MAX_FAILURES


def _credentials(rest: bytes) -> tuple[bytes, bytes]:
    """Parse `USER PASSWORD`, or `PASSWORD` of the user `default`."""
    words = rest.split()
    if not 1 <= len(words) <= 2:
        raise FormatError
    return (b"default", words[0]) if len(words) == 1 else (words[0], words[1])


@command("auth", _credentials)
async def auth(client: BeanstalkClient, credentials: tuple[bytes, bytes]) -> bytes:
    """Log in."""
    name, password = credentials
    access = client.clients.access
    user = access.users.log_in(name.decode("utf-8", "replace"), password)
    if user is not None:
        client.user = user
        access.logins.succeed(client.transport, user)
        return replies.AUTHENTICATED
    await access.logins.fail(client.transport, name, client.failures)
    client.failures += 1
    if client.failures >= MAX_FAILURES:
        client.close_when_replied()
    return replies.UNAUTHENTICATED


@command("ready")
def ready(client: BeanstalkClient, _nothing: None) -> None:
    """Tell whether the server is ready for new clients: for load balancers."""
    client.context.check_readiness()
    client.reply(b"READY\r\n")


@command("quit")
def quit_(client: BeanstalkClient, _nothing: None) -> None:
    """Close the connection."""
    client.close_when_replied()
