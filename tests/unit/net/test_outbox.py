"""The outbox in memory: which replies with messages count as delivered, and which go back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.net.outbox import Deliveries, Outbox
from pressure_server.queues.operations.operation import Delivery, Operation
from tests.unit.net.fake_server import FakeTransport
from tests.unit.queues.operations_of import get


class Replies:
    """Replies written to an outbox, each with one message."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.transport.abort = lambda: None  # type: ignore[method-assign]
        self.outbox = Outbox(self.transport)
        self.operations: list[Operation] = []
        self.back: list[Operation] = []

    def write(self, *sizes: int) -> None:
        """Write replies of these sizes together."""
        taken, at = [], 0
        for size in sizes:
            operation = get()
            operation.results = [b"m"]
            Delivery(1, lambda: None, self.back.append).add(operation)
            self.operations.append(operation)
            taken.append((at, at + size, operation))
            at += size
        self.outbox.write(b"x" * at, taken)

    @property
    def delivered(self) -> list[bool]:
        return [operation.deliveries is None for operation in self.operations]

    @property
    def put_back(self) -> list[bool]:
        return [operation in self.back for operation in self.operations]


def test_replies_that_the_socket_has_taken_are_delivered() -> None:
    replies = Replies()
    replies.write(10, 10)
    assert replies.delivered == [False, False]
    assert replies.outbox.update_delivered() == 0
    assert replies.delivered == [True, True]
    assert replies.outbox.unaccepted == []


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5), st.data())
def test_a_reply_is_delivered_when_its_last_byte_has_been_taken(
    writes: list[list[int]], data: st.DataObject
) -> None:
    replies, ends, at = Replies(), list[int](), 0
    for sizes in writes:
        replies.write(*sizes)
        for size in sizes:
            at += size
            ends.append(at)
    left = at
    while left:
        left = data.draw(st.integers(0, left - 1))
        replies.transport.buffered = left
        assert replies.outbox.update_delivered() == left
        assert replies.delivered == [end <= at - left for end in ends]


def test_replies_without_messages_count_as_bytes_only() -> None:
    replies = Replies()
    replies.outbox.write(b"x" * 100)
    replies.write(10)
    replies.transport.buffered = 5
    replies.outbox.update_delivered()
    assert replies.delivered == [False]
    replies.transport.buffered = 0
    replies.outbox.update_delivered()
    assert replies.delivered == [True]
    assert replies.outbox.written == 110


def test_after_a_regular_end_everything_is_delivered() -> None:
    replies = Replies()
    replies.write(10)
    replies.outbox.end(None)
    assert (replies.delivered, replies.put_back) == ([True], [False])


def test_after_an_error_what_was_not_taken_goes_back() -> None:
    replies = Replies()
    replies.write(10, 10, 10)
    replies.transport.buffered = 15
    replies.outbox.update_delivered()
    replies.outbox.end(ConnectionResetError())
    assert replies.delivered == [True, False, False]
    assert replies.put_back == [False, True, True]
    assert replies.outbox.unaccepted == []


def test_if_the_server_ends_the_connection_what_was_not_taken_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = Replies()
    monkeypatch.setattr(Outbox, "_discard_input", lambda _: None)
    replies.write(10, 10)
    replies.transport.buffered = 10
    replies.outbox.break_off()
    replies.outbox.end(None)
    assert (replies.delivered, replies.put_back) == ([True, False], [False, True])


def test_a_transport_without_a_socket_cannot_tell_what_a_client_has_acknowledged() -> None:
    assert not Replies().outbox.require_acknowledgements()


# ---------------------------------------------------------------- looking at the outboxes


class Connection:
    """A connection that is looked at until its socket has taken everything."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def acknowledge_sent(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_a_connection_is_looked_at_in_the_next_iteration_and_then_until_it_is_done(
    runner: asyncio.Runner,
) -> None:
    async def play() -> None:
        deliveries, quick, slow = Deliveries(), Connection(1), Connection(3)
        for connection in (quick, slow, quick):
            deliveries.watch(connection)
        assert (quick.left, slow.left) == (1, 3)
        await asyncio.sleep(0)
        assert (quick.left, slow.left) == (0, 2)
        async with asyncio.timeout(5):
            while deliveries._is_looking:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (quick.left, slow.left) == (0, 0)

    runner.run(play())
