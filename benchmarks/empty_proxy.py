"""A uvloop proxy that only forwards bytes: the upper limit of what a proxy in Python can reach.

Usage: python empty_proxy.py LISTEN_PORT BACKEND_PORT. Each client gets its own connection to the backend.
"""

import asyncio
import sys
from typing import cast

import uvloop


class _Backend(asyncio.Protocol):
    """The connection to the backend for one client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._client.close()


class _Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, backend_port: int) -> None:
        self._backend_port = backend_port
        self._backend: asyncio.Transport | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._backend, _ = await loop.create_connection(
            lambda: _Backend(self._transport), "127.0.0.1", self._backend_port
        )
        self._backend.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._backend is None:
            self._early += data
        else:
            self._backend.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._backend is not None:
            self._backend.close()


async def _serve(port: int, backend_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(backend_port), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
