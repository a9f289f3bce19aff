"""Cluster: the address of a cluster, and the route to the node that has one slot of it."""

from __future__ import annotations

from typing import Any

from pressure_server.backend.address import Address, split_url
from pressure_server.backend.route import Route
from pressure_server.keepalive import DEFAULT, Keepalive

SCHEMES = ("redis+cluster", "rediss+cluster")
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


class ClusterRoute(Route):
    """The route to the node of a cluster that has the slot of a shard."""

    fails_over = True
    is_cluster = True

    def __init__(self, address: ClusterAddress) -> None:
        super().__init__(address.nodes[0])
        self._given = address.nodes
        self._nodes = list(address.nodes)

    def note_cluster(self, at: Address, slots: list[Any], key: bytes) -> None:
        """See Route. The nodes that were given stay: all others may have gone one day."""
        try:
            super().note_cluster(at, slots, key)
        finally:
            self._nodes = list(dict.fromkeys([*self._nodes, *self._given]))
