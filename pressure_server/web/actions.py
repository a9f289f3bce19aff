"""Actions of the console: a table of what each does, by commands that are executed with the user's rights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
from aiohttp import web

from pressure_server.errors import BackendError
from pressure_server.net.client_facts import sessions_of
from pressure_server.queues.repair.doctor import Case, Doctor
from pressure_server.web.bodies import MAX_BODY, json_object, text_in
from pressure_server.web.clients_page import require_administrator
from pressure_server.web.private_client import PrivateClient, private_client
from pressure_server.web.problems import PATIENCE
from pressure_server.web.queue_ids import database_of, name_of, require_access
from pressure_server.web.shown import SHOWN, USER, Shown

# The limit in bytes of an action's body, which may contain a message.
_MAX_BODY = 4 << 20
# Actions with large bodies that are read or executed at the same time; others are not read meanwhile.
_LARGE_AT_ONCE = 4

Body = dict[str, Any]


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
    """An action on a queue: its command without the queue's name, and what it says about the reply."""

    command: str
    arguments: Callable[[Body], Sequence[bytes]] = lambda _: ()
    says: Callable[[Any], str] = lambda _: "done"


ACTIONS = {
    "create": Action(
        "PRESSURE.CREATE",
        lambda body: _options(body, "bound", "overflow", "type"),
        lambda _: "the queue was created",
    ),
    "put": Action(
        "PRESSURE.PUT",
        lambda body: [_message(body), b"NOWAIT", *_options(body, "priority", "delay")],
        lambda _: "the message was put",
    ),
    "kick": Action(
        "PRESSURE.KICK",
        lambda body: [_text(body, "count") or b"1"],
        lambda count: f"jobs kicked: {count}",
    ),
    "pause": Action(
        "PRESSURE.PAUSE",
        lambda body: [_text(body, "seconds")],
        lambda _: "the pause was set",
    ),
    "alter": Action(
        "PRESSURE.ALTER",
        lambda body: _options(body, "bound", "overflow", "max_bytes", "ttl", "max_deliveries", "dead_letter"),
        lambda _: "the queue was altered",
    ),
    "close": Action("PRESSURE.CLOSE", says=lambda _: "the queue was closed"),
    "purge": Action(
        "PRESSURE.PURGE",
        lambda body: [_text(body, "state").upper()] if _text(body, "state") else [],
        lambda count: f"messages deleted: {count}",
    ),
    "delete": Action("PRESSURE.DELETE", says=lambda _: "the queue was deleted"),
}


class Actions:
    """The handlers of requests for actions."""

    def __init__(self) -> None:
        self._large_turns = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._others: dict[str, Callable[[web.Request, Body], Awaitable[web.StreamResponse]]] = {
            "take": _take,
            "bury": _bury,
            "repair": _repair,
            "disconnect": _disconnect,
        }

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Execute {"action": …, "db": …, "queue": …, arguments} and answer with what was done."""
        if (request.content_length or _MAX_BODY) <= MAX_BODY:
            return await self._act(request, await json_object(request))
        async with self._large_turns:
            return await self._act(request, await json_object(request, _MAX_BODY))

    async def _act(self, request: web.Request, body: Body) -> web.StreamResponse:
        name = text_in(body, "action")
        try:
            if name in self._others:
                return await self._others[name](request, body)
            if name not in ACTIONS:
                raise web.HTTPBadRequest(text="there is no such action\n")
            action = ACTIONS[name]
            async with _client(request, body) as (client, queue):
                reply = await _done(client, action.command.encode(), queue, *action.arguments(body))
            await _note(request.app[SHOWN], body, queue)
            return _answer(action.says(reply))
        except ActionFailedError as error:
            return _answer(str(error), is_done=False)
        except ConnectionError:
            return _answer(
                "ERR the command could not be executed: are there too many clients?", is_done=False
            )


def _answer(text: str, *, is_done: bool = True) -> web.Response:
    return web.json_response({"done": is_done, "text": text})


@contextlib.asynccontextmanager
async def _client(request: web.Request, body: Body) -> AsyncIterator[tuple[PrivateClient, bytes]]:
    """Yield a private client for the user of a request, and the name of the queue."""
    shown, user, queue = request.app[SHOWN], request[USER], name_of(body.get("queue"))
    require_access(user, queue)
    number = database_of(shown.context.broker, body.get("db", 0)).database_number
    async with private_client(shown.context, user, number) as client:
        yield client, queue


async def _note(shown: Shown, body: Body, queue: bytes) -> None:
    """Show a queue that is new: the next look of the survey may be minutes away."""
    key = (database_of(shown.context.broker, body.get("db", 0)).database_number, queue)
    if key not in shown.survey.queues:
        with contextlib.suppress(BackendError):
            await shown.survey.look_at([key])


async def _done(client: PrivateClient, *words: bytes) -> Any:
    """Return the reply to a command. Raise ActionFailedError for an error reply."""
    reply = await client.command(*words)
    if isinstance(reply, hiredis.ReplyError):
        raise ActionFailedError(str(reply))
    return reply


async def _take(request: web.Request, body: Body) -> web.StreamResponse:
    """Take a message, and answer with it as it is. It goes back if the browser does not get the answer.

    The message is reserved until the answer is written.
    """
    async with _client(request, body) as (client, queue):
        reserved = await _done(client, b"PRESSURE.RESERVE", queue)
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
            await _done(client, b"PRESSURE.ACK", queue, b"%d" % job)
        return response


async def _bury(request: web.Request, body: Body) -> web.StreamResponse:
    """Bury the next job."""
    async with _client(request, body) as (client, queue):
        reserved = await _done(client, b"PRESSURE.RESERVE", queue)
        if reserved is None:
            return _answer("there is no job to bury", is_done=False)
        job = b"%d" % reserved[1]
        if not await _done(client, b"PRESSURE.BURY", queue, job):
            return _answer("the job could not be buried", is_done=False)
        return _answer(f"job {job.decode()} was buried")


async def _repair(request: web.Request, body: Body) -> web.StreamResponse:
    """Repair the problems of a queue that last for some seconds."""
    shown, user = request.app[SHOWN], request[USER]
    queue = name_of(body.get("queue"))
    require_access(user, queue)
    if "administer" not in user.rights:
        raise ActionFailedError("NOPERM this user has no right to administer")
    doctor = Doctor(database_of(shown.context.broker, body.get("db", 0)), PATIENCE, queue)
    cases: dict[bytes, Case] = {}
    await doctor.look_for([queue], cases)
    await doctor.confirm(cases)
    if not cases:
        return _answer("the queue has no problem", is_done=False)
    done: list[str] = []
    await doctor.repair(cases, lambda _case, _findings, words: done.extend(words))
    left = f"; {len(cases)} problems are left" if cases else ""
    return _answer((", ".join(done) or "nothing was changed") + left, is_done=not cases)


async def _disconnect(request: web.Request, body: Body) -> web.StreamResponse:
    """Disconnect a client."""
    require_administrator(request[USER])
    clients = request.app[SHOWN].context.clients
    wanted = [one for one in sessions_of(clients) if one.id == body.get("client")]
    if not wanted:
        return _answer("the client has left", is_done=False)
    wanted[0].break_off()
    return _answer(f"client {wanted[0].id} was disconnected")
