"""A command that runs alone, in memory: its reply, and what becomes of the messages that it has taken."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pressure_server.errors import QueueFullError, StoppingError
from pressure_server.net.lone_command import LoneCommand
from pressure_server.queues.operations.operation import Delivery, Operation
from tests.unit.net.fake_server import FakeTransport, Server
from tests.unit.queues.operations_of import get


def taken(back: list[Operation]) -> Operation:
    """Return an operation that has taken a message. It is in `back` when the message is put back."""
    operation = get()
    operation.results = [b"m"]
    Delivery(1, lambda: None, back.append).add([operation])
    return operation


async def run(
    server: Server,
    coroutine: Coroutine[Any, Any, Any],
    during: Callable[[LoneCommand], None] = lambda _: None,
) -> tuple[list[bytes], list[Operation], FakeTransport]:
    """Run a command that has taken a message, and call `during` when it has begun.

    Return its replies, what it has put back, and the client's transport.
    """
    connection, transport = server.connect()
    replies: list[bytes] = []
    back: list[Operation] = []
    command = LoneCommand([b"KEYS", b"*"], coroutine)
    command.taken.append(taken(back))
    assert not command.has_begun
    command.begin(connection.session, replies.append)
    assert command.has_begun
    during(command)
    for _ in range(5):
        await asyncio.sleep(0)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    return replies, back, transport


async def one() -> int:
    return 1


async def fail(error: Exception) -> None:
    raise error


async def test_the_reply_is_the_encoded_result_and_the_messages_stay_taken(server: Server) -> None:
    replies, back, _ = await run(server, one())
    assert (replies, back) == ([b":1\r\n"], [])


async def test_the_messages_go_back_after_an_error_and_if_the_command_ends_before_its_first_step(
    server: Server,
) -> None:
    replies, back, _ = await run(server, fail(QueueFullError("q")))
    assert replies[0].startswith(b"-FULL ")
    assert len(back) == 1
    replies, back, _ = await run(server, one(), LoneCommand.end)
    assert (replies, len(back)) == ([], 1)


async def test_a_command_that_a_stop_leaves_undone_has_no_reply_and_ends_the_connection(
    server: Server,
) -> None:
    replies, back, transport = await run(server, fail(StoppingError()))
    assert (replies, transport.written, len(back)) == ([b""], [], 1)
    assert transport.is_closed


def test_a_command_that_has_not_begun_is_closed() -> None:
    coroutine, back = one(), list[Operation]()
    command = LoneCommand([b"KEYS", b"*"], coroutine)
    command.taken.append(taken(back))
    command.end()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert (len(back), command.taken) == (1, [])


@pytest.mark.parametrize("has_waited", [False, True])
async def test_a_command_that_has_waited_is_not_measured(server: Server, has_waited: bool) -> None:
    connection, _ = server.connect()
    statistics = connection.session.command_statistics
    before = sum(statistics.latencies)
    command = LoneCommand([b"KEYS", b"*"], one())
    command.has_waited = has_waited
    command.begin(connection.session, lambda _: None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(statistics.latencies) - before == (not has_waited)
