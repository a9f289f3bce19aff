"""The handler as the server sees it: creates connections, and checks whether a server is alive."""

from handlers.resp import commands
from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context, request_line
from pressure_server.net.listener import ListenerUrl, SettingsError


class RespHandler:
    """See pressure_server.net.handler.Handler."""

    def __init__(self, context: Context, _listen: ListenerUrl) -> None:
        commands.load()
        self._context = context
        self._limits = Limits(context.settings.max_message_bytes)

    def connect(self) -> Connection:
        """See Handler."""
        return Connection(self._context.clients, RespSession(self._context, self._limits))

    @staticmethod
    def check(listen: ListenerUrl) -> None:
        """See Handler. A RESP listener has no options."""
        if listen.options:
            raise SettingsError(f"{listen}: a RESP listener has no options")

    @staticmethod
    def ping(listen: ListenerUrl, timeout: float, *, ready: bool) -> None:
        """Send PING, or PRESSURE.READY if `ready` is set. Raise OSError with the reason if it fails."""
        reply = request_line(listen, b"PRESSURE.READY\r\n" if ready else b"PING\r\n", timeout)
        # A server that asks for a login is alive, and so is one that has all its clients.
        well = ("+", "-NOAUTH") if ready else ("+", "-NOAUTH", "-ERR max number of clients")
        if not reply.startswith(well):
            raise OSError(reply.removeprefix("-") or "the server closed the connection")
