"""The address of a client, from its transport."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_UNIX = "unix"


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address and port as text for logs; `unix` for a Unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return _UNIX
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def client_address(transport: asyncio.BaseTransport) -> str:
    """Return the client's address in Redis's format; that of a Unix socket is its path."""
    return _redis_address(transport, "peername")


def server_address(transport: asyncio.BaseTransport) -> str:
    """Return the address to which the client has connected, in Redis's format."""
    return _redis_address(transport, "sockname")


def _redis_address(transport: asyncio.BaseTransport, which: str) -> str:
    name = transport.get_extra_info(which)
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    path = transport.get_extra_info("sockname")
    return f"{path if isinstance(path, str) else ''}:0"


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
