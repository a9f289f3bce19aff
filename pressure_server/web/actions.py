"""Actions of the console: a table of what each does, by commands on a RESP connection inside the process.

So they have the checks of rights and arguments, the statistics and the guarantees that commands of Redis
clients have.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hiredis
from aiohttp import web

from pressure_server.errors import BackendError
from pressure_server.queues.database import Database
from pressure_server.queues.repair import Doctor
from pressure_server.text import counted
from pressure_server.web.http_requests import (
    CONTEXT,
    MAX_BODY,
    USER,
    json_object,
    queue_of,
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
Execute = Callable[..., Awaitable[Any]]


def _text(body: Body, name: str) -> bytes:
    return text_in(body, name).encode()


def _options(body: Body, names: Sequence[str]) -> list[bytes]:
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


def _state(body: Body) -> list[bytes]:
    state = _text(body, "state")
    return [state.upper()] if state else []


def _answer(text: str, *, is_done: bool = True) -> web.Response:
    return web.json_response({"done": is_done, "text": text})


def _queue_of(request: web.Request, body: Body) -> tuple[Database, bytes]:
    return queue_of(request, body.get("queue"), body.get("db", 0))


@contextlib.asynccontextmanager
async def _private_client(request: web.Request, body: Body) -> AsyncIterator[Execute]:
    """Yield a function that executes a command on the queue of the body, and returns its reply.

    The commands go over a RESP connection inside the process, with the rights of the request's user. The
    function raises hiredis.ReplyError for an error reply; or ConnectionError or TimeoutError.
    """
    context, (database, queue) = request.app[CONTEXT], _queue_of(request, body)
    connection = context.resp.connect()
    session = connection.session
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: cast(asyncio.Protocol, connection), ours)
    session.user, session.name, session.database = request[USER], b"console", database
    context.server.clients.welcome(connection)
    reader, writer = await asyncio.open_connection(sock=theirs)
    replies = hiredis.Reader()

    async def execute(command: str, *arguments: bytes) -> Any:
        words = (command.encode(), queue, *arguments)
        writer.write(hiredis.pack_command(words))  # type: ignore[arg-type] # the stub knows one word only
        async with asyncio.timeout(_TIMEOUT):
            while (reply := replies.gets()) is False:
                data = await reader.read(_READ)
                if not data:
                    raise ConnectionError("the server has closed the connection")
                replies.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    try:
        yield execute
    finally:
        writer.close()


@dataclass(frozen=True)
class _Command:
    """An action that is one command on a queue, and what it says; {} stands for the reply to the command.

    The command has `arguments`, and then the given ones of the `options`.
    """

    command: str
    says: str
    options: Sequence[str] = ()
    arguments: Callable[[Body], Sequence[bytes]] = lambda _: ()

    async def __call__(self, request: web.Request, body: Body) -> web.Response:
        async with _private_client(request, body) as execute:
            reply = await execute(self.command, *self.arguments(body), *_options(body, self.options))
        database, queue = _queue_of(request, body)
        survey, key = request.app[CONTEXT].survey, (database.database_number, queue)
        if key not in survey.queues:
            # Show a queue that is new: the next look of the survey may be minutes away.
            with contextlib.suppress(BackendError):
                await survey.look_at([key])
        return _answer(self.says.format(reply))


async def _take(request: web.Request, body: Body) -> web.StreamResponse:
    """Take a message, and answer with it as it is. It goes back if the browser does not get the answer.

    The message is reserved until the answer is written. If it cannot be acknowledged then, it goes back, too,
    and the browser has it already.
    """
    async with _private_client(request, body) as execute:
        reserved = await execute("PRESSURE.RESERVE")
        if reserved is None:
            return _answer("there is no message to take", is_done=False)
        _, job, message, _ = reserved
        response = web.Response(body=message, headers={"Content-Disposition": "attachment"})
        await response.prepare(request)
        await response.write_eof()
        if request.transport is not None and not request.transport.is_closing():
            with contextlib.suppress(hiredis.ReplyError, ConnectionError, TimeoutError):
                await execute("PRESSURE.ACK", b"%d" % job)
        return response


async def _bury(request: web.Request, body: Body) -> web.StreamResponse:
    async with _private_client(request, body) as execute:
        reserved = await execute("PRESSURE.RESERVE")
        if reserved is None:
            return _answer("there is no job to bury", is_done=False)
        job = b"%d" % reserved[1]
        if not await execute("PRESSURE.BURY", job):
            return _answer("the job could not be buried", is_done=False)
        return _answer(f"job {job.decode()} was buried")


async def _repair(request: web.Request, body: Body) -> web.StreamResponse:
    """Repair the problems of a queue that last for some seconds."""
    database, queue = _queue_of(request, body)
    if "administer" not in request[USER].rights:
        return _answer("NOPERM this user has no right to administer", is_done=False)
    doctor = Doctor(database, PATIENCE, queue)
    await doctor.look_for([queue])
    await doctor.confirm()
    if not doctor.cases:
        return _answer("the queue has no problem", is_done=False)
    done: list[str] = []
    await doctor.repair(lambda _case, _findings, words: done.extend(words))
    left = f"; {counted(len(doctor.cases), 'problem')} left" if doctor.cases else ""
    return _answer((", ".join(done) or "nothing was changed") + left, is_done=not doctor.cases)


async def _disconnect(request: web.Request, body: Body) -> web.StreamResponse:
    require_administrator(request)
    client = body.get("client")
    if type(client) is not int or not await request.app[CONTEXT].server.workers.disconnect([client], ""):
        return _answer("the client has left", is_done=False)
    return _answer(f"client {client} was disconnected")


_ALTERED = (
    "bound", "overflow", "max_bytes", "ttl", "max_deliveries", "dead_letter", "ack", "ack_ttr", "retry_delay",
    "retry_delay_max", "in_flight", "rate",
)  # fmt: skip
_ACTIONS: dict[str, Callable[[web.Request, Body], Awaitable[web.StreamResponse]]] = {
    "create": _Command("PRESSURE.CREATE", "the queue was created", ("bound", "overflow", "type")),
    "put": _Command(
        "PRESSURE.PUT",
        "the message was put",
        ("priority", "delay", "ttr", "expire"),
        lambda body: [_message(body), b"NOWAIT"],
    ),
    "kick": _Command("PRESSURE.KICK", "jobs kicked: {}", (), lambda body: [_text(body, "count") or b"1"]),
    "redrive": _Command("PRESSURE.REDRIVE", "dead letters put back: {}", ("to", "count")),
    "pause": _Command("PRESSURE.PAUSE", "the pause was set", (), lambda body: [_text(body, "seconds")]),
    "alter": _Command("PRESSURE.ALTER", "the queue was altered", _ALTERED),
    "close": _Command("PRESSURE.CLOSE", "the queue was closed"),
    "purge": _Command("PRESSURE.PURGE", "messages deleted: {}", (), _state),
    "delete": _Command("PRESSURE.DELETE", "the queue was deleted"),
    "take": _take,
    "bury": _bury,
    "repair": _repair,
    "disconnect": _disconnect,
}


class Actions:
    """The handlers of requests for actions."""

    def __init__(self) -> None:
        self._large_turns = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Execute {"action": …, "db": …, "queue": …, arguments} and answer with what was done."""
        is_small = 0 < (request.content_length or 0) <= MAX_BODY
        async with contextlib.nullcontext() if is_small else self._large_turns:
            body = await json_object(request, _MAX_BODY)
            name = text_in(body, "action")
            if name not in _ACTIONS:
                raise web.HTTPBadRequest(text="there is no such action\n")
            try:
                return await _ACTIONS[name](request, body)
            except hiredis.ReplyError as error:
                return _answer(str(error), is_done=False)
            except ConnectionError:
                text = "ERR the command could not be executed: are there too many clients?"
                return _answer(text, is_done=False)
