"""Commands on the server and the connection."""

from __future__ import annotations

from handlers.memcached.arguments import number_of
from handlers.memcached.client import MODES, MemcachedClient
from handlers.memcached.parser import Request
from handlers.memcached.replies import OK
from handlers.memcached.table import command
from handlers.memcached.version import FOLLOWED_VERSION


@command(
    "version [<word>*]",
    "Says which memcached's replies these are; stats says our version.",
    modes=MODES,
    needs="nothing",
)
def version(client: MemcachedClient, _request: Request) -> None:
    """Ours would be refused by libmemcached, and with it all that it asks a server for first."""
    client.reply(f"VERSION {FOLLOWED_VERSION}\r\n".encode())


@command(
    "verbosity <level>", "Does nothing: --log-level says how much is logged.", modes=MODES, needs="nothing"
)
def verbosity(client: MemcachedClient, request: Request) -> None:
    """Clients send it, and memcached says OK to any level that is a number."""
    number_of(request.words[1])
    client.reply(b"" if request.is_quiet else OK)


@command("quit [<word>*]", "Closes the connection.", modes=MODES, needs="nothing")
def quit_(client: MemcachedClient, _request: Request) -> None:
    """When all before it is answered."""
    client.close_when_replied()


@command("ready", "Says OK, unless new clients had better go elsewhere.", modes=MODES, needs="nothing")
def ready(client: MemcachedClient, _request: Request) -> None:
    """For `pressure-server ping --ready`."""
    client.context.check_readiness()
    client.reply(OK)
