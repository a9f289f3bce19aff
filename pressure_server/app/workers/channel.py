"""The channel between the supervisor and a worker: each end asks the other questions.

A message is its length and a pickle of (number, question, arguments); an answer has the question's number and
no question. Both ends are processes of one server, so the pickles are trusted.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from pressure_server.app.settings import Settings
from pressure_server.net.listener import BoundSockets, ListenerUrl

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("!Q")
# If the other end has this many bytes still to read, `tell` sends it nothing more.
_MAX_UNSENT = 8 << 20
# The number of messages that want no answer.
_TELLS = 0

# The channel of the other end answers this itself, so its event loop runs.
_ALIVE = "alive"
# A worker asks for its Assignment, tells that it accepts clients, and asks all workers a question of
# net/workers.py. The supervisor asks it those questions.
WORK = "work"
READY = "ready"
ASK_ALL = "ask all"

# Answers a question of the other end.
Answer = Callable[[str, tuple[Any, ...]], Awaitable[Any]]


@dataclass(frozen=True)
class Assignment:
    """The assignment of a worker. Workers are numbered from 1; with the supervisor they are `processes`.

    `listening` has the URL of each listener, and the file descriptors of its sockets in the worker.
    """

    number: int
    processes: int
    settings: Settings
    listening: tuple[tuple[ListenerUrl, tuple[int, ...]], ...]

    def sockets(self) -> list[BoundSockets]:
        """Return the sockets of the listeners, for the worker. Call it once."""
        return [
            BoundSockets(listen, [socket.socket(fileno=one) for one in files])
            for listen, files in self.listening
        ]


class ChannelClosedError(Exception):
    """The other end has gone."""


class Channel:
    """One end of a channel. `closed` is done when the other end has gone; `answer` answers its questions."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer | None
    ) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer = answer
        self._writer = writer
        self._numbers = count(_TELLS + 1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def over(cls, end: socket.socket, answer: Answer | None = None) -> Channel:
        """Return this end of the channel over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=end), answer)

    async def ask(self, question: str, *arguments: Any) -> Any:
        """Return the other end's answer; None if it could not answer. Raises ChannelClosedError."""
        if self._is_closing:
            raise ChannelClosedError
        number = next(self._numbers)
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, question, arguments)
            return await answered
        finally:
            del self._asked[number]

    async def check_alive(self) -> None:
        """Return when the event loop of the other end has answered. Raises ChannelClosedError."""
        await self.ask(_ALIVE)

    def tell(self, what: str, *arguments: Any) -> None:
        """Tell the other end something. It is left out if that end reads too slowly, or has gone."""
        if not self._is_closing and self._writer.transport.get_write_buffer_size() < _MAX_UNSENT:
            self._send(_TELLS, what, arguments)

    @property
    def _is_closing(self) -> bool:
        # The transport knows earlier than the reader that the other end has gone.
        return self.closed.done() or self._writer.transport.is_closing()

    def close(self) -> None:
        """Close this end."""
        self._reading.cancel()
        self._end()

    def _send(self, number: int, question: str | None, content: Any) -> None:
        data = pickle.dumps((number, question, content))
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                # Sent by a process of this server: see above.
                number, question, content = pickle.loads(await reader.readexactly(length))  # noqa: S301
                if question is not None:
                    answering = asyncio.create_task(self._reply(number, question, content))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
                elif number in self._asked and not self._asked[number].done():
                    self._asked[number].set_result(content)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the other end has gone
        except Exception:
            logger.exception("cannot read what another process of this server has sent")
        self._end()

    async def _reply(self, number: int, question: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = await self.answer(question, arguments) if question != _ALIVE and self.answer else None
        except Exception:  # the other end must get an answer all the same
            logger.exception("error while answering '%s' of another process of this server", question)
            answer = None
        if number != _TELLS and not self._is_closing:
            self._send(number, None, answer)

    def _end(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._writer.close()
        for answered in self._asked.values():
            if not answered.done():
                answered.set_exception(ChannelClosedError())
