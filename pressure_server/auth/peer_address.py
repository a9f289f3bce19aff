"""The addresses of a connection, from its transport."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple

_UNIX = "unix"


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address and port as text for logs; `unix` for a Unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return _UNIX
    return _with_port(name)


class Addresses(NamedTuple):
    """The addresses of a connection, taken when it opens: a closed transport no longer tells them.

    `client` and `server` are in Redis's format, which shows the path of a Unix socket; logs name the
    client as `shown`.
    """

    client: str
    server: str
    shown: str

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Addresses:
        """Return the addresses of an open connection."""
        server = transport.get_extra_info("sockname")
        if not isinstance(server, tuple):
            path = f"{server if isinstance(server, str) else ''}:0"
            return cls(path, path, _UNIX)
        client = transport.get_extra_info("peername")
        # A client that has left already may have no address.
        shown = _with_port(client) if isinstance(client, tuple) else "?:0"
        return cls(shown, _with_port(server), shown)


def _with_port(address: tuple[Any, ...]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Return whether the client is on this machine: it uses a Unix socket or a loopback address."""
    address = _ip_of(transport)
    return address is None or address.is_loopback


def network_of(transport: asyncio.BaseTransport) -> str:
    """Return the address by which to count a client: its IPv4 address, or its IPv6 /64 network.

    One IPv6 client can use every address of its /64 network.
    """
    address = _ip_of(transport)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address) >> 64 << 64, 64)))
    return _UNIX if address is None else str(address)


def _ip_of(transport: asyncio.BaseTransport) -> IPv4Address | IPv6Address | None:
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return None
    address = ip_address(name[0])
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
