"""The answers to actions, with a backend that fails in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from pressure_server.web import actions
from tests.support.ports import free_ports

TAKE = b'{"action": "take", "queue": "q"}'
REQUEST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(TAKE), TAKE)
ERRORS = [hiredis.ReplyError("BACKEND it is away"), ConnectionResetError(), TimeoutError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_message_that_cannot_be_acknowledged_is_answered_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    responses: list[web.StreamResponse] = []

    @asynccontextmanager
    async def private_client(*_: object) -> AsyncIterator[actions.Execute]:
        async def execute(command: str, *_: bytes) -> Any:
            if command == "PRESSURE.ACK":
                raise error
            return [b"q", 1, b"message", 1]

        yield execute

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        responses.append(await handler(request))
        return responses[-1]

    monkeypatch.setattr(actions, "_private_client", private_client)
    application, (port,) = web.Application(middlewares=[note]), free_ports(1)
    application.router.add_post("/", actions.Actions().act)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(REQUEST)
        answer = await reader.readuntil(b"message")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    await runner.cleanup()
    assert [isinstance(one, web.Response) and one.body for one in responses] == [b"message"] * 2
