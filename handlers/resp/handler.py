"""What the core knows of this handler: how to make a connection, and how to ask whether a server is well."""

from __future__ import annotations

import socket
import ssl

from handlers.resp import commands
from handlers.resp.connection import RespConnection
from handlers.resp.parser import Limits
from pressure_server.handler import Context
from pressure_server.settings import Listen

_LONGEST_REPLY = 1000


class RespHandler:
    """See pressure_server.handler.Handler."""

    def __init__(self, context: Context) -> None:
        commands.load()
        self._context = context
        self._limits = Limits(context.settings.max_message_bytes)

    def connect(self) -> RespConnection:
        """A connection for a client that has just come."""
        return RespConnection(self._context, self._limits)

    @staticmethod
    def ping(listen: Listen, timeout: float, *, ready: bool) -> None:
        """Send PING, or PRESSURE.READY. Raises OSError with the reason if it is not well, or ready."""
        with _connected(listen, timeout) as client, client.makefile("rb") as replies:
            client.sendall(b"PRESSURE.READY\r\n" if ready else b"PING\r\n")
            reply = replies.readline(_LONGEST_REPLY).decode("utf-8", "replace").strip()
        # Who asks for a login is well.
        if not reply.startswith(("+", "-NOAUTH")):
            raise OSError(reply.removeprefix("-") or "it closes the connection")


def _connected(listen: Listen, timeout: float) -> socket.socket:
    if listen.path:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(timeout)
        client.connect(listen.path)
    else:
        client = socket.create_connection((listen.host, listen.port), timeout)
    if not listen.tls:
        return client
    # Nothing secret is sent, and the certificate is seldom for the address that is listened on.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(client)
