"""The kinds of backends: from the URL to the address, and from the address to the route."""

from __future__ import annotations

from typing import TypeAlias

from pressure_server.backend import sentinel
from pressure_server.backend.address import Address, split_url
from pressure_server.backend.route import Route
from pressure_server.backend.sentinel import SentinelAddress, SentinelRoute
from pressure_server.keepalive import DEFAULT, Keepalive

_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
_ONLY_DATABASE_0 = "a cluster has only database 0: write redis+cluster://host:7000,host:7000"


class ClusterAddress:
    """The address of a cluster, from its URL: some of its nodes. Raises ValueError if the URL is invalid.

    A URL is `redis+cluster://[user:password@]host:port,host:port`, with redis-py's options for each node;
    `rediss+cluster://` uses TLS.
    """

    database = 0

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        parts = split_url(url)
        login, at, hosts = parts.netloc.rpartition("@")
        if not all(hosts.split(",")):
            raise ValueError("a node of the cluster is missing: write redis+cluster://host:7000,host:7000")
        if parts.path.strip("/") not in ("", "0"):
            raise ValueError(_ONLY_DATABASE_0)
        scheme = parts.scheme.partition("+")[0]
        # As Address.at writes it, so that a node of the map is known to be the same.
        query = f"?{parts.query}" if parts.query else ""
        self.nodes = [
            Address(f"{scheme}://{login}{at}{host}/0{query}", keepalive) for host in hosts.split(",")
        ]
        if self.nodes[0].database:
            raise ValueError(_ONLY_DATABASE_0)
        self.password = self.nodes[0].password
        self._shown = f"{parts.scheme}://{hosts}"

    def __str__(self) -> str:
        """Return the address without user, password and options."""
        return self._shown


BackendAddress: TypeAlias = Address | SentinelAddress | ClusterAddress


def address_of(url: str, keepalive: Keepalive = DEFAULT) -> BackendAddress:
    """Return the address in the URL of a backend, with `keepalive` for its connections. Raises ValueError."""
    scheme = url.partition("://")[0]
    if scheme in sentinel.SCHEMES:
        return SentinelAddress(url, keepalive)
    return ClusterAddress(url, keepalive) if scheme in _CLUSTER_SCHEMES else Address(url, keepalive)


def route_to(address: BackendAddress) -> Route:
    """Return a new route to the backend."""
    if isinstance(address, SentinelAddress):
        return SentinelRoute(address)
    return Route(*address.nodes, is_cluster=True) if isinstance(address, ClusterAddress) else Route(address)
