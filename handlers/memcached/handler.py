"""The handler as the server uses it: options of listeners, new connections, and health checks."""

import asyncio
from functools import partial

from handlers.memcached import commands
from handlers.memcached.session import Counts, ListenerOptions, MemcachedSession, report
from handlers.memcached.table import KV, MODES, PROTOCOL, QUEUE
from handlers.memcached.values import Values
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context, request_line
from pressure_server.net.listener import ListenerUrl, SettingsError


def options_of(listen: ListenerUrl) -> ListenerOptions:
    """Return the options in the listener's URL. Raise SettingsError if they are invalid."""
    options = listen.options_by_name("flush_all", "mode")
    mode = options.get("mode", QUEUE)
    if mode not in MODES:
        raise SettingsError(f"{listen}: mode must be one of {', '.join(MODES)}")
    flush_all = options.get("flush_all", "yes" if mode == KV else "no")
    if flush_all not in ("yes", "no"):
        raise SettingsError(f"{listen}: flush_all must be yes or no")
    return ListenerOptions(mode, flush_all == "yes")


class MemcachedHandler:
    """See pressure_server.net.handler.Handler."""

    def __init__(self, context: Context, listen: ListenerUrl) -> None:
        commands.load()
        self._context = context
        self._listener_options = options_of(listen)
        self._counts = Counts()
        self._report = context.clients.add_report(PROTOCOL, partial(report, context.clients, self._counts))
        self._values = Values(context.broker.default_database)
        if self._listener_options.mode == KV:
            if len(context.broker.default_database.shards) > 1:
                raise SettingsError(
                    f"{listen}: values are kept on one node, and the backend is a cluster: use mode=queue, "
                    "or set --prefix to a name in braces, such as {pressure}"
                )
            context.background.add(asyncio.create_task(self._values.sweep_flushed()))

    def connect(self) -> Connection:
        """Return the connection object for a new client."""
        session = MemcachedSession(
            self._context, self._listener_options, self._counts, self._report, self._values
        )
        return Connection(self._context.clients, session)

    @staticmethod
    def check(listen: ListenerUrl) -> None:
        """Raise SettingsError if the listener's options are invalid."""
        options_of(listen)

    @staticmethod
    def ping(listen: ListenerUrl, timeout: float, *, ready: bool) -> None:
        """Send `version`, or the command `ready`. Raise OSError with the reason for a negative reply."""
        reply = request_line(listen, b"ready\r\n" if ready else b"version\r\n", timeout)
        # A server that demands a login is healthy, and so is one that has all its clients.
        well = ("VERSION", "OK", "CLIENT_ERROR unauthenticated")
        if not reply.startswith(well if ready else (*well, "ERROR Too many open connections")):
            raise OSError(reply or "the server closed the connection")
