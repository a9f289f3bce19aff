"""A relay between a server and its backend that cuts, slows and holds back what passes it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.support.programs import join

_CHUNK = 4096
_BUFFER = 16384
# Bytes. Of several replies in one packet, half would have the first of them whole.
_LONGEST_CUT = 8


class BackendRelay:
    """Listens on TCP, until `close`, in a thread of its own; every connection goes on to a unix socket.

    `delay` (seconds) is how long what passes is on its way, `rate` how many bytes a second pass each way of
    a connection, 0 as many as there are. Where `cuts` says so of a reply's bytes, half of them are passed on,
    no more than eight, and the connection is reset. Where `holds` says so of them, they wait until `release`.
    Where `drops` says so of a request's bytes, they are not passed on, and the connection is reset.
    """

    def __init__(self, backend: Path, *, delay: float = 0.0, rate: int = 0) -> None:
        self.delay = delay
        self.rate = rate
        self.backend = backend
        # How often something has been held back.
        self.held = 0
        self.cuts: Callable[[bytes], bool] = _never
        self.drops: Callable[[bytes], bool] = _never
        self._holds: Callable[[bytes], bool] = _never
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._listener = socket.socket()
        # So small that who sends faster than `rate` notices.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        # As on a network: loopback's segments are larger than that buffer.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self, replies: Callable[[bytes], bool]) -> None:
        """Hold back what this says so of, and what follows it on the same connection."""
        self._released.clear()
        self._holds = replies

    def release(self) -> None:
        """Hold nothing back any longer."""
        self._holds = _never
        self._loop.call_soon_threadsafe(self._released.set)

    def _run(self) -> None:
        listening = asyncio.start_server(self._connected, sock=self._listener, limit=_BUFFER)
        server = self._loop.run_until_complete(listening)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        await asyncio.sleep(0)  # who was just accepted is among them
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            backend_reader, backend_writer = await asyncio.open_unix_connection(str(self.backend))
        except OSError:
            writer.transport.abort()
            return
        for source, target, is_reply in ((reader, backend_writer, False), (backend_reader, writer, True)):
            task = self._loop.create_task(self._pass_on(source, target, is_reply=is_reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: writer.transport.abort())
            task.add_done_callback(lambda _: backend_writer.transport.abort())

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        try:
            while data := await source.read(_CHUNK if self.rate else 1 << 16):
                if is_reply and self._holds(data):
                    self.held += 1
                    await self._released.wait()
                if not is_reply and self.drops(data):
                    return
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)
                if is_reply and self.cuts(data):
                    target.write(data[: min(len(data) // 2, _LONGEST_CUT)])
                    return
                if self.delay:
                    self._loop.call_later(self.delay, target.write, data)
                else:
                    target.write(data)
                await target.drain()
        except OSError:
            pass  # reset, by whoever

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        join(self._thread)
        self._listener.close()

    def __enter__(self) -> BackendRelay:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _never(_data: bytes) -> bool:
    return False
