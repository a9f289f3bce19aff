"""HTTP requests to a server: well-formed ones, and bytes as an attacker sends them."""

import base64
import http.client
import json
import socket
from typing import Any, NamedTuple

from tests.support.programs import TIMEOUT, Server


class Response(NamedTuple):
    """A response: its status, its headers with lower-case names, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: Any = None,
    login: tuple[str, str] | None = None,
) -> Response:
    """Send a request and return the response. `body` is sent as JSON, unless it is bytes."""
    sent = dict(headers or {})
    if login is not None:
        sent["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if data is not None:
        sent.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=TIMEOUT)
    try:
        connection.request(method, path, body=data, headers=sent)
        got = connection.getresponse()
        found = {name.lower(): value for name, value in got.getheaders()}
        return Response(got.status, found, got.read())
    finally:
        connection.close()


def connect(server: Server) -> socket.socket:
    """Return a new connection to the HTTP listener."""
    return socket.create_connection(("127.0.0.1", server.port_of("http")), TIMEOUT)


def send_raw(server: Server, data: bytes) -> bytes:
    """Send bytes, and return everything until the server closes the connection."""
    received = b""
    with connect(server) as connection:
        try:
            connection.sendall(data)
            while some := connection.recv(65536):
                received += some
        except ConnectionError:
            pass  # the server has closed the connection before it read everything
    return received
