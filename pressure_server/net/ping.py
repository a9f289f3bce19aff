"""Asking a running server one thing, in a protocol of lines: what `pressure-server ping` does."""

from __future__ import annotations

import socket
import ssl

from pressure_server.net.listen import Listen

_LONGEST_REPLY = 1000


def ask(listen: Listen, request: bytes, timeout: float) -> str:
    """The first line of the reply, empty where the connection is closed. Raises OSError."""
    with _connected(listen, timeout) as client, client.makefile("rb") as replies:
        client.sendall(request)
        return replies.readline(_LONGEST_REPLY).decode("utf-8", "replace").strip()


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
