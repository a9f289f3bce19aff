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
    Delivery(1, lambda: None, back.append).add(operation)
    return operation


async def run(
    coroutine: Coroutine[Any, Any, Any], during: Callable[[LoneCommand], None] = lambda _: None
) -> tuple[list[bytes], list[Operation], FakeTransport]:
    """Run a command that has taken a message, and call `during` when it has begun.

    Return its replies, what it has put back, and the client's transport.
    """
    server = Server()
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
    server.close()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    return replies, back, transport


async def one() -> int:
    return 1


async def fail(error: Exception) -> None:
    raise error


def test_the_reply_is_the_encoded_result_and_the_messages_stay_taken() -> None:
    replies, back, _ = asyncio.run(run(one()))
    assert (replies, back) == ([b":1\r\n"], [])


def test_after_an_error_the_messages_go_back() -> None:
    replies, back, _ = asyncio.run(run(fail(QueueFullError("q"))))
    assert replies[0].startswith(b"-FULL ")
    assert len(back) == 1


def test_a_command_that_a_stop_leaves_undone_has_no_reply_and_ends_the_connection() -> None:
    replies, back, transport = asyncio.run(run(fail(StoppingError())))
    assert (replies, transport.written, len(back)) == ([b""], [], 1)
    assert transport.is_closed


def test_a_command_that_ends_before_its_first_step_is_closed_and_has_no_reply() -> None:
    replies, back, _ = asyncio.run(run(one(), LoneCommand.end))
    assert (replies, len(back)) == ([], 1)


def test_a_command_that_has_not_begun_is_closed() -> None:
    coroutine, back = one(), list[Operation]()
    command = LoneCommand([b"KEYS", b"*"], coroutine)
    command.taken.append(taken(back))
    command.end()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert (len(back), command.taken) == (1, [])


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_command_that_has_waited_is_not_measured(has_waited: bool) -> None:
    async def play() -> int:
        server = Server()
        connection, _ = server.connect()
        statistics = connection.session.command_statistics
        before = sum(statistics.latencies)
        command = LoneCommand([b"KEYS", b"*"], one())
        command.has_waited = has_waited
        command.begin(connection.session, lambda _: None)
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
        return sum(statistics.latencies) - before

    assert asyncio.run(play()) == (not has_waited)
