"""What the core knows of this handler: how to make a connection, and how to ask whether a server is well."""

from __future__ import annotations

from handlers.resp import commands
from handlers.resp.connection import RespConnection
from handlers.resp.parser import Limits
from pressure_server.net.handler import Context
from pressure_server.net.listen import Listen, SettingsError
from pressure_server.net.ping import ask


class RespHandler:
    """See pressure_server.net.handler.Handler."""

    def __init__(self, context: Context, _listen: Listen) -> None:
        commands.load()
        self._context = context
        self._limits = Limits(context.settings.max_message_bytes)

    def connect(self) -> RespConnection:
        """A connection for a client that has just come."""
        return RespConnection(self._context, self._limits)

    @staticmethod
    def check(listen: Listen) -> None:
        """There are no options."""
        if listen.options:
            raise SettingsError(f"{listen}: a RESP listener has no options")

    @staticmethod
    def ping(listen: Listen, timeout: float, *, ready: bool) -> None:
        """Send PING, or PRESSURE.READY. Raises OSError with the reason if it is not well, or ready."""
        reply = ask(listen, b"PRESSURE.READY\r\n" if ready else b"PING\r\n", timeout)
        # Who asks for a login is well.
        if not reply.startswith(("+", "-NOAUTH")):
            raise OSError(reply.removeprefix("-") or "it closes the connection")
