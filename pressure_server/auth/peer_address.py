"""Where a client comes from, as its transport tells."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_UNIX = "unix"


def address_of(transport: asyncio.BaseTransport) -> str:
    """The client's address and port, for people; `unix` for a unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return _UNIX
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Whether the client is on this machine: by a unix socket or the loopback interface."""
    address = _ip_of(transport)
    return address is None or address.is_loopback


def house_of(transport: asyncio.BaseTransport) -> str:
    """What clients that are maybe one and the same have in common: the address, of IPv6 the /64 network."""
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
