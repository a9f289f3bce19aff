"""A command that is a coroutine. It runs alone: after all replies before it, and before the next command."""

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from pressure_server.auth.users import NOBODY
from pressure_server.errors import StoppingError, forget_frames
from pressure_server.net.client import Client
from pressure_server.queues.operations.operation import Operation


class LoneCommand:
    """A parsed request whose command is a coroutine, from its execution to its reply.

    `taken` are the operations that have taken messages for it. One reply has all these messages: it delivers
    them together or not at all. `has_waited` is whether it has waited since it began.
    """

    __slots__ = ("_coroutine", "_request", "_task", "has_waited", "taken")

    def __init__(self, request: Any, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._request = request
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self.has_waited = False
        self.taken: list[Operation] = []

    @property
    def has_begun(self) -> bool:
        """Whether it runs: the replies before it are written."""
        return self._task is not None

    def begin(self, client: Client, on_reply: Callable[[bytes], None]) -> None:
        """Run the command for a client, and call `on_reply` with its reply, unless `end` is called before."""
        self._task = asyncio.create_task(self._run(client, on_reply))
        # A task that is cancelled before it begins leaves its coroutine as it was.
        self._task.add_done_callback(lambda _: self._coroutine.close())

    def end(self) -> None:
        """Cancel the command, and put back what it has taken."""
        self.put_back()
        task, self._task = self._task, None  # a cancelled task keeps the frames that refer to this
        if task is not None:
            task.cancel()
        else:
            self._coroutine.close()

    def put_back(self) -> None:
        """Put back the messages that the command has taken."""
        for operation in self.taken:
            operation.put_back()
        self.taken.clear()

    async def _run(self, client: Client, on_reply: Callable[[bytes], None]) -> None:
        statistics, began = client.command_statistics, perf_counter()
        # A client that has not logged in may do so with this command, which then has a password.
        has_logged_in = client.user is not NOBODY
        try:
            reply = client.encode(await self._coroutine)
        except StoppingError as error:
            self.put_back()
            reply = b""
            client.connection.drain()
            forget_frames(error)
        except Exception as error:
            self.put_back()
            reply = client.error_reply(error)
            statistics.fail(client.error_code(error, reply))
            forget_frames(error)
        if not self.has_waited:
            seconds = perf_counter() - began
            statistics.measure(seconds)
            if seconds >= client.clients.slow_log.threshold and has_logged_in:
                for words in client.words_of(self._request)[:1]:
                    client.note_slow(seconds, words)
        on_reply(reply)
