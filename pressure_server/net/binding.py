"""Binding: sockets for each address of a listener's host, all with the same port."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

# Hosts that stand for more addresses than the resolver returns. A socket for `::` takes no IPv4 clients, so
# that their addresses look the same on all listeners.
_MORE_HOSTS = {"localhost": ("127.0.0.1", "::1"), "::": ("0.0.0.0",)}  # noqa: S104 -- the user's choice
# The system has no such address, or not this family of addresses.
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# How many ports are tried if any will do, and the one that is free at the first address is in use at another.
_PORT_ATTEMPTS = 20


class _Address(NamedTuple):
    """One address of a host. `scope` follows the port in an IPv6 address."""

    family: socket.AddressFamily
    host: str
    scope: tuple[Any, ...]


async def bind_host(host: str, port: int, leave: Collection[str] = ()) -> list[socket.socket]:
    """Return sockets that are bound to all addresses of a host except `leave`. Raise OSError.

    With port 0, choose a port that is free at all of them.
    """
    addresses: dict[_Address, None] = {}
    for name in (host, *_MORE_HOSTS.get(host, ())):
        infos = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        for family, _, _, _, (address, _, *scope) in infos:
            if address not in leave:
                addresses[_Address(family, str(address), tuple(scope))] = None
    for _ in range(0 if port else _PORT_ATTEMPTS):
        try:
            return _bind_each(list(addresses), 0)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bind_each(list(addresses), port)


def _bind_each(addresses: Sequence[_Address], port: int) -> list[socket.socket]:
    """Return a socket for each address that the system has, which must be at least one. Raise OSError."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    with ExitStack() as opened:
        for family, host, scope in addresses:
            try:
                one = opened.enter_context(socket.socket(family))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((host, bound[0].getsockname()[1] if bound else port, *scope))
            except OSError as error:
                if error.errno not in _NO_ADDRESS:
                    raise
                missing = error
            else:
                bound.append(one)
        if not bound and missing is not None:
            raise missing
        opened.pop_all()
    return bound
