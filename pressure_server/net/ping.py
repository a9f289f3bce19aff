"""A one-line request to a running server, for `pressure-server ping`."""

from __future__ import annotations

import socket
import ssl

from pressure_server.net.listen import ListenerUrl

_MAX_REPLY = 1000


def request_line(listen: ListenerUrl, request: bytes, timeout: float) -> str:
    """Send the request and return the first line of the reply; empty if the server closes the connection.

    `timeout` is in seconds. Raise OSError if the connection fails.
    """
    with _connected(listen, timeout) as client, client.makefile("rb") as replies:
        client.sendall(request)
        return replies.readline(_MAX_REPLY).decode("utf-8", "replace").strip()


def _connected(listen: ListenerUrl, timeout: float) -> socket.socket:
    if listen.path:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(timeout)
        client.connect(listen.path)
    else:
        client = socket.create_connection((listen.host, listen.port), timeout)
    if not listen.tls:
        return client
    # Do not verify: nothing secret is sent, and certificates rarely name the address listened on.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(client)
