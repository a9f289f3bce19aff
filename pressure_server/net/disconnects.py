"""The disconnect watch: which clients have closed their side of the connection, whether or not they are read.

A transport that is not read does not notice. Linux reports it by EPOLLRDHUP, whatever is unread. Elsewhere
a disconnect is noticed when the connection is read to its end, or when a reply cannot be written.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

# Events that are asked for at once.
_MOST_EVENTS = 64
# Seconds for which a poll answers `refresh`, too: a poll costs as much as a quarter of a get.
_FRESH = 100e-6


class Watched(Protocol):
    """A connection to a client."""

    @property
    def socket(self) -> Any:
        """Its socket; not one that is closed while a copy of it stays open."""

    def client_left(self) -> None:
        """The client has closed its side, or the connection is broken. Called once."""


class DisconnectWatch:
    """Tells connections when their clients disconnect."""

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        self._numbers: dict[Watched, int] = {}
        self._polled = 0.0
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.poll)

    def watch(self, peer: Watched) -> None:
        """Watch the connection until `unwatch`."""
        connected = peer.socket
        number = connected.fileno() if connected is not None else -1
        if self._epoll is not None and number >= 0:
            self._watched[number] = peer
            self._numbers[peer] = number
            self._epoll.register(number, select.EPOLLRDHUP)

    def unwatch(self, peer: Watched) -> None:
        """Stop watching the connection, if it is watched."""
        # The transport cannot be asked: once it is closed, its file number may belong to another connection.
        number = self._numbers.pop(peer, None)
        if number is not None and self._watched.get(number) is peer:
            del self._watched[number]
            if self._epoll is not None:
                with suppress(OSError, ValueError):
                    self._epoll.unregister(number)

    def refresh(self) -> None:
        """Poll, unless that was done less than a tenth of a millisecond ago."""
        if monotonic() - self._polled > _FRESH:
            self.poll()

    def poll(self) -> None:
        """Tell each connection whose client has disconnected since the last poll."""
        self._polled = monotonic()
        count = _MOST_EVENTS
        # All of them: `refresh` does not ask again for a while.
        while self._epoll is not None and count == _MOST_EVENTS:
            events = self._epoll.poll(0, _MOST_EVENTS)
            count = len(events)
            for number, _events in events:
                peer = self._watched.get(number)
                if peer is not None:
                    self.unwatch(peer)
                    peer.client_left()

    def close(self) -> None:
        """Stop watching all connections."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
