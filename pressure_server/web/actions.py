"""Actions of the console: a table of what each does, by commands on a RESP connection inside the process.

So they have the checks of rights and arguments, the statistics and the guarantees that commands of Redis
clients have.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
from aiohttp import web

from pressure_server.errors import BackendError
from pressure_server.queues.repair.doctor import Doctor
from pressure_server.text import counted
from pressure_server.web.http_requests import (
    CONTEXT,
    MAX_BODY,
    USER,
    database_of,
    json_object,
    name_of,
    require_access,
    require_administrator,
    text_in,
)
from pressure_server.web.problem_watch import PATIENCE

# The limit in bytes of an action's body, which may contain a message.
_MAX_BODY = 4 << 20
# Actions with large bodies that are read or executed at the same time; others are not read meanwhile.
_LARGE_AT_ONCE = 4
_READ = 1 << 16
# Seconds for one command.
_TIMEOUT = 20.0

Body = dict[str, Any]
Key = tuple[int, bytes]


class ActionFailedError(Exception):
    """An action was refused; the text is the error reply."""


def _text(body: Body, name: str) -> bytes:
    return text_in(body, name).encode("utf-8", "surrogateescape")


def _options(body: Body, *names: str) -> list[bytes]:
    """Return the options that are given, as in BOUND 10. `max_bytes` becomes MAX-BYTES."""
    found: list[bytes] = []
    for name in names:
        if value := _text(body, name):
            found += [name.upper().replace("_", "-").encode(), value]
    return found


def _message(body: Body) -> bytes:
    if digits := text_in(body, "hex"):
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise web.HTTPBadRequest(text="hex must be hexadecimal digits\n") from None
    return _text(body, "message")


@dataclass(frozen=True)
class Action:
    """An action on a queue: its command, and what it says; {} stands for the reply to the command."""

    command: str
    says: str
    arguments: Callable[[Body], Sequence[bytes]] = lambda _: ()


ACTIONS = {
    "create": Action(
        "PRESSURE.CREATE",
        "the queue was created",
        lambda body: _options(body, "bound", "overflow", "type"),
    ),
    "put": Action(
        "PRESSURE.PUT",
        "the message was put",
        lambda body: [_message(body), b"NOWAIT", *_options(body, "priority", "delay")],
    ),
    "kick": Action("PRESSURE.KICK", "jobs kicked: {}", lambda body: [_text(body, "count") or b"1"]),
    "pause": Action("PRESSURE.PAUSE", "the pause was set", lambda body: [_text(body, "seconds")]),
    "alter": Action(
        "PRESSURE.ALTER",
        "the queue was altered",
        lambda body: _options(body, "bound", "overflow", "max_bytes", "ttl", "max_deliveries", "dead_letter"),
    ),
    "close": Action("PRESSURE.CLOSE", "the queue was closed"),
    "purge": Action(
        "PRESSURE.PURGE",
        "messages deleted: {}",
        lambda body: [_text(body, "state").upper()] if _text(body, "state") else [],
    ),
    "delete": Action("PRESSURE.DELETE", "the queue was deleted"),
}


class Actions:
    """The handlers of requests for actions."""

    def __init__(self) -> None:
        self._large_turns = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Execute {"action": …, "db": …, "queue": …, arguments} and answer with what was done."""
        if (request.content_length or _MAX_BODY) <= MAX_BODY:
            return await self._act(request, await json_object(request))
        async with self._large_turns:
            return await self._act(request, await json_object(request, _MAX_BODY))

    async def _act(self, request: web.Request, body: Body) -> web.StreamResponse:
        name = text_in(body, "action")
        try:
            if name in _OTHER_ACTIONS:
                return await _OTHER_ACTIONS[name](request, body)
            if name not in ACTIONS:
                raise web.HTTPBadRequest(text="there is no such action\n")
            action = ACTIONS[name]
            async with _private_client(request, body) as client:
                reply = await client.do(action.command, *action.arguments(body))
            survey = request.app[CONTEXT].survey
            if client.key not in survey.queues:
                # Show a queue that is new: the next look of the survey may be minutes away.
                with contextlib.suppress(BackendError):
                    await survey.look_at([client.key])
            return _answer(action.says.format(reply))
        except ActionFailedError as error:
            return _answer(str(error), is_done=False)
        except ConnectionError:
            return _answer(
                "ERR the command could not be executed: are there too many clients?", is_done=False
            )


def _answer(text: str, *, is_done: bool = True) -> web.Response:
    return web.json_response({"done": is_done, "text": text})


class _PrivateClient:
    """The client's end of a RESP connection inside the process, for commands on the queue with this key."""

    def __init__(self, key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.key = key
        self._reader = reader
        self._writer = writer
        self._replies = hiredis.Reader()

    async def do(self, command: str, *arguments: bytes) -> Any:
        """Return the reply to a command on the queue.

        Raise ActionFailedError for an error reply; or ConnectionError or TimeoutError.
        """
        words = (command.encode(), self.key[1], *arguments)
        self._writer.write(hiredis.pack_command(words))  # type: ignore[arg-type] # the stub knows one word only
        async with asyncio.timeout(_TIMEOUT):
            while (reply := self._replies.gets()) is False:
                data = await self._reader.read(_READ)
                if not data:
                    raise ConnectionError("the server has closed the connection")
                self._replies.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise ActionFailedError(str(reply))
        return reply


@contextlib.asynccontextmanager
async def _private_client(request: web.Request, body: Body) -> AsyncIterator[_PrivateClient]:
    """Yield a client that acts as the user of the request, for the queue that the request names."""
    context, user, queue = request.app[CONTEXT], request[USER], name_of(body.get("queue"))
    require_access(user, queue)
    database = database_of(context.server.broker, body.get("db", 0))
    connection = context.resp.connect()
    session = connection.session
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
    session.user = user
    context.server.clients.welcome(connection)
    session.name = b"console"
    session.database = database
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield _PrivateClient((database.database_number, queue), reader, writer)
    finally:
        writer.close()


async def _take(request: web.Request, body: Body) -> web.StreamResponse:
    """Take a message, and answer with it as it is. It goes back if the browser does not get the answer.

    The message is reserved until the answer is written.
    """
    async with _private_client(request, body) as client:
        reserved = await client.do("PRESSURE.RESERVE")
        if reserved is None:
            return _answer("there is no message to take", is_done=False)
        _, job, message, _ = reserved
        response = web.Response(
            body=message,
            headers={"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"},
        )
        await response.prepare(request)
        await response.write_eof()
        if request.transport is not None and not request.transport.is_closing():
            await client.do("PRESSURE.ACK", b"%d" % job)
        return response


async def _bury(request: web.Request, body: Body) -> web.StreamResponse:
    """Bury the next job."""
    async with _private_client(request, body) as client:
        reserved = await client.do("PRESSURE.RESERVE")
        if reserved is None:
            return _answer("there is no job to bury", is_done=False)
        job = b"%d" % reserved[1]
        if not await client.do("PRESSURE.BURY", job):
            return _answer("the job could not be buried", is_done=False)
        return _answer(f"job {job.decode()} was buried")


async def _repair(request: web.Request, body: Body) -> web.StreamResponse:
    """Repair the problems of a queue that last for some seconds."""
    user = request[USER]
    queue = name_of(body.get("queue"))
    require_access(user, queue)
    if "administer" not in user.rights:
        raise ActionFailedError("NOPERM this user has no right to administer")
    doctor = Doctor(database_of(request.app[CONTEXT].server.broker, body.get("db", 0)), PATIENCE, queue)
    await doctor.look_for([queue])
    await doctor.confirm()
    if not doctor.cases:
        return _answer("the queue has no problem", is_done=False)
    done: list[str] = []
    await doctor.repair(lambda _case, _findings, words: done.extend(words))
    left = f"; {counted(len(doctor.cases), 'problem')} left" if doctor.cases else ""
    return _answer((", ".join(done) or "nothing was changed") + left, is_done=not doctor.cases)


async def _disconnect(request: web.Request, body: Body) -> web.StreamResponse:
    """Disconnect a client."""
    require_administrator(request[USER])
    client = body.get("client")
    if type(client) is not int or not await request.app[CONTEXT].server.workers.disconnect([client], ""):
        return _answer("the client has left", is_done=False)
    return _answer(f"client {client} was disconnected")


_OTHER_ACTIONS: dict[str, Callable[[web.Request, Body], Awaitable[web.StreamResponse]]] = {
    "take": _take,
    "bury": _bury,
    "repair": _repair,
    "disconnect": _disconnect,
}
