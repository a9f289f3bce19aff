"""Relays for the connections between the nodes of a cluster, which cut a node off from the others.

A node's outgoing connections come from a loopback address of its own, by which a relay knows the node.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from tests.support.backend_relay import ThreadRelay
from tests.support.relay import Link, Relay, connected

_LOCAL = "127.0.0.1"


def source_address(number: int) -> str:
    """Return the address from which the node with this number connects to others."""
    return f"127.0.1.{number + 1}"


class _BusLink(Link):
    _relay: BusRelays

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        super().__init__(relay, near, far)
        self._source, self._target = near.getpeername()[0], far.getpeername()[1]

    @property
    def is_cut(self) -> bool:
        """Whether a node at one of its ends is cut off."""
        cut = self._relay.cut_off
        return self._source in map(source_address, cut) or self._target in [
            self._relay.targets[number] for number in cut
        ]

    async def run(self) -> None:
        if not self.is_cut:
            await super().run()


class BusRelays(ThreadRelay):
    """A relay for each node. The nodes announce the `ports` of the relays, and listen on the `targets`."""

    new_link = _BusLink

    def __init__(self, ports: Sequence[int], targets: Sequence[int]) -> None:
        self.targets = targets
        self.cut_off: set[int] = set()
        super().__init__(
            *(
                (socket.create_server((_LOCAL, port)), partial(connected, (_LOCAL, target)))
                for port, target in zip(ports, targets, strict=True)
            )
        )

    def cut_node(self, number: int) -> None:
        """Close all connections from and to the node, and refuse new ones."""
        self.cut_off = {*self.cut_off, number}
        self._loop.call_soon_threadsafe(self._break_cut_links)

    def heal_node(self, number: int) -> None:
        """Accept the node's connections again."""
        self.cut_off = self.cut_off - {number}

    def _break_cut_links(self) -> None:
        for task, link in self._links.items():
            if isinstance(link, _BusLink) and link.is_cut:
                task.cancel()
