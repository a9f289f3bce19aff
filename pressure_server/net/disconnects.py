"""The disconnect watch: notice when a client closes its side of the connection.

A transport whose reading is paused does not notice. Linux reports a disconnect by EPOLLRDHUP even if there is
unread data. Other systems notice it when the connection is read to its end or a write fails.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection

# The most events of one poll.
_MAX_EVENTS: Final = 64
# Seconds after a poll during which `refresh` does not poll again: a poll costs a quarter of a get.
_FRESH: Final = 100e-6


class DisconnectWatch:
    """A watch that notifies connections when their clients disconnect."""

    def __init__(self) -> None:
        self._watched: dict[int, Connection] = {}
        self._numbers: dict[Connection, int] = {}
        self._polled = 0.0
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.poll)

    def watch(self, peer: Connection) -> None:
        """Watch the connection until `unwatch`, or until its client disconnects.

        Close copies of its socket before: epoll would keep it registered.
        """
        connected = peer.socket
        number = connected.fileno() if connected is not None else -1
        if self._epoll is not None and number >= 0:
            self._watched[number] = peer
            self._numbers[peer] = number
            self._epoll.register(number, select.EPOLLRDHUP)

    def unwatch(self, peer: Connection) -> None:
        """Stop watching the connection, if it is watched."""
        # Not the transport's file number: after a close, that may belong to another connection.
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
        """Notify each connection whose client has disconnected since the last poll."""
        self._polled = monotonic()
        count = _MAX_EVENTS
        # Process all events, because `refresh` does not poll again for a while.
        while self._epoll is not None and count == _MAX_EVENTS:
            events = self._epoll.poll(0, _MAX_EVENTS)
            count = len(events)
            for number, event in events:
                peer = self._watched.get(number)
                if peer is not None:
                    self.unwatch(peer)
                    peer.client_disconnected(entirely=bool(event & (select.EPOLLHUP | select.EPOLLERR)))

    def close(self) -> None:
        """Stop watching all connections."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
