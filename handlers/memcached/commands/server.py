"""Commands about the server and the connection."""

from __future__ import annotations

from handlers.memcached.arguments import number_of
from handlers.memcached.parser import Request
from handlers.memcached.replies import OK
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import MODES, command
from handlers.memcached.version import FOLLOWED_VERSION


@command(
    "version [<word>*]",
    "Returns the version of memcached that the server follows; stats has the server's own.",
    modes=MODES,
    needs="nothing",
)
def version(client: MemcachedSession, _request: Request) -> None:
    """Return memcached's version: libmemcached refuses servers with version 0.x."""
    client.reply(f"VERSION {FOLLOWED_VERSION}\r\n".encode())


@command("verbosity <level>", "Does nothing; use --log-level.", modes=MODES, needs="nothing")
def verbosity(client: MemcachedSession, request: Request) -> None:
    """Return OK for any number, as memcached does, because some clients send this command."""
    number_of(request.words[1])
    client.reply(b"" if request.is_quiet else OK)


@command("quit [<word>*]", "Closes the connection.", modes=MODES, needs="nothing")
def quit_(client: MemcachedSession, _request: Request) -> None:
    """Close the connection after the replies to all earlier commands."""
    client.close_when_replied()


@command("ready", "Returns OK if the server is ready for new clients.", modes=MODES, needs="nothing")
def ready(client: MemcachedSession, _request: Request) -> None:
    """Check readiness, for `pressure-server ping --ready`."""
    client.context.check_readiness()
    client.reply(OK)
