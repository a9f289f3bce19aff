"""Relays for the connections between the nodes of a cluster, which cut a node off from the others.

A node's outgoing connections come from a loopback address of its own, by which a relay knows the node.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from tests.support.programs import TIMEOUT

_LOCAL = "127.0.0.1"
_PIECE = 1 << 16


def source_address(number: int) -> str:
    """Return the address from which the node with this number connects to others."""
    return f"127.0.1.{number + 1}"


class BusRelays:
    """A relay for each node, in a thread: a test may block its own loop longer than the node timeout.

    The nodes announce the `ports` of the relays, and listen on the `targets`.
    """

    def __init__(self, ports: Sequence[int], targets: Sequence[int]) -> None:
        self._ports = ports
        self._targets = targets
        self._cut: set[int] = set()
        # The nodes at both ends of each connection.
        self._open: dict[asyncio.Task[Any], set[int]] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bus relays", daemon=True)

    def start(self) -> None:
        """Listen on all ports."""
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        """Close all connections and listeners."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, number: int) -> None:
        """Close all connections from and to the node, and refuse new ones."""
        self._do(self._cut_off(number))

    def heal(self, number: int) -> None:
        """Accept the node's connections again."""
        self._cut.discard(number)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    async def _listen(self) -> None:
        for target, port in enumerate(self._ports):
            self._servers.append(await asyncio.start_server(_Relay(self, target).accept, _LOCAL, port))

    async def _cut_off(self, number: int) -> None:
        self._cut.add(number)
        for task, ends in self._open.items():
            if number in ends:
                task.cancel()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        open_ones = list(self._open)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    async def pass_on(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on to the node with this number, unless it or the source is cut off."""
        address = writer.get_extra_info("peername")[0]
        sources = [number for number in range(len(self._ports)) if source_address(number) == address]
        ends = {*sources, target}
        if ends & self._cut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = ends
        transports = [writer.transport]
        try:
            far_reader, far_writer = await asyncio.open_connection(_LOCAL, self._targets[target])
            transports.append(far_writer.transport)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer))
                both.create_task(_pump(far_reader, writer))
        except* OSError:
            pass  # the connection is over
        except* asyncio.CancelledError:
            pass  # cut
        finally:
            del self._open[task]
            for transport in transports:
                transport.abort()


class _Relay:
    """One of the relays."""

    def __init__(self, relays: BusRelays, target: int) -> None:
        self._relays = relays
        self._target = target

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on (called by asyncio)."""
        await self._relays.pass_on(self._target, reader, writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on. Raise OSError at the end, which ends both directions."""
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError
