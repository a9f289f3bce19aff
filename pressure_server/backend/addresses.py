"""The kinds of backends: from the URL to the address, and from the address to the route."""

from __future__ import annotations

from typing import TypeAlias

from pressure_server.backend import cluster, sentinel
from pressure_server.backend.address import Address
from pressure_server.backend.cluster import ClusterAddress, ClusterRoute
from pressure_server.backend.route import Route
from pressure_server.backend.sentinel import SentinelAddress, SentinelRoute
from pressure_server.keepalive import DEFAULT, Keepalive

BackendAddress: TypeAlias = Address | SentinelAddress | ClusterAddress


def address_of(url: str, keepalive: Keepalive = DEFAULT) -> BackendAddress:
    """Return the address in the URL of a backend, with `keepalive` for its connections. Raises ValueError."""
    scheme = url.partition("://")[0]
    if scheme in sentinel.SCHEMES:
        return SentinelAddress(url, keepalive)
    return ClusterAddress(url, keepalive) if scheme in cluster.SCHEMES else Address(url, keepalive)


def route_to(address: BackendAddress) -> Route:
    """Return a new route to the backend."""
    if isinstance(address, SentinelAddress):
        return SentinelRoute(address)
    return ClusterRoute(address) if isinstance(address, ClusterAddress) else Route(address)
