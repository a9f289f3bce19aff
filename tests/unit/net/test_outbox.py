"""The outbox in memory: which replies with messages count as delivered, and which go back."""

import asyncio
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.net.connection import Connection
from pressure_server.net.outbox import Deliveries, Outbox
from pressure_server.net.tcp_info import TcpCounts, counts_of
from pressure_server.queues.operations.operation import Delivery, Operation
from tests.support.programs import wait_for
from tests.unit.net.fake_server import FakeTransport
from tests.unit.queues.operations_of import get


class Replies:
    """Replies written to an outbox, each with one message."""

    def __init__(self, transport: FakeTransport | None = None, outbox: Outbox | None = None) -> None:
        self.transport = transport or FakeTransport()
        self.transport.abort = lambda: None  # type: ignore[method-assign]
        self.outbox = outbox or Outbox(self.transport)
        self.operations: list[Operation] = []
        self.back: list[Operation] = []

    def write(self, *sizes: int, is_silent: bool = False) -> None:
        """Write replies of these sizes together."""
        taken, at = [], 0
        for size in sizes:
            operation = get()
            operation.results = [b"m"]
            Delivery(1, lambda: None, self.back.append).add([operation])
            self.operations.append(operation)
            taken.append((at, at + size, operation))
            at += size
        self.outbox.write(b"x" * at, taken, is_silent=is_silent)

    @property
    def delivered(self) -> list[bool]:
        return [operation.deliveries is None for operation in self.operations]

    @property
    def put_back(self) -> list[bool]:
        return [operation in self.back for operation in self.operations]


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


@pytest.mark.parametrize(
    ("error", "delivered"), [(None, [True, True, True]), (ConnectionResetError(), [True, False, False])]
)
def test_after_a_regular_end_everything_is_delivered_and_after_an_error_what_was_taken(
    error: Exception | None, delivered: list[bool]
) -> None:
    replies = Replies()
    replies.write(10, 10, 10)
    replies.transport.buffered = 15
    replies.outbox.update_delivered()
    replies.outbox.end(error)
    assert replies.delivered == delivered
    assert replies.put_back == [not one for one in delivered]
    assert replies.outbox.unaccepted == []


def test_a_transport_without_a_socket_cannot_tell_what_a_client_has_acknowledged() -> None:
    assert not Replies().outbox.require_acknowledgements()


class SocketTransport(FakeTransport):
    """A transport on one end of a pair of sockets; what is written is sent when the test says so."""

    def __init__(self, ours: socket.socket, *, is_tls: bool = False) -> None:
        super().__init__()
        self._extra = {"socket": ours, "sslcontext": object() if is_tls else None}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    """Closes the sockets that a test has entered."""
    with ExitStack() as stack:
        yield stack


Pair = tuple[socket.socket, socket.socket]


def tcp_pair(sockets: ExitStack) -> Pair:
    """Return the server's and the client's end of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = sockets.enter_context(socket.create_connection(listening.getsockname()))
        ours = sockets.enter_context(listening.accept()[0])
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


@pytest.fixture
def tcp(sockets: ExitStack) -> Pair:
    return tcp_pair(sockets)


def unix_pair(sockets: ExitStack) -> Pair:
    """Return the server's and the client's end of a connection over a unix socket."""
    ours, theirs = socket.socketpair()
    return sockets.enter_context(ours), sockets.enter_context(theirs)


@pytest.fixture
def unix(sockets: ExitStack) -> Pair:
    return unix_pair(sockets)


def until_acknowledged(ours: socket.socket, size: int) -> None:
    """Wait until the other kernel has acknowledged `size` bytes."""
    wait_for(lambda: cast(TcpCounts, counts_of(ours)).acknowledged == size, "the acknowledgement")


def until_delivered(replies: Replies, number: int) -> None:
    """Update the outbox until `number` replies are delivered: the kernel acknowledges them a moment later."""

    def are_delivered() -> bool:
        replies.outbox.update_delivered()
        return sum(replies.delivered) == number

    wait_for(are_delivered, f"{number} replies to be delivered")


def test_over_tcp_replies_are_delivered_when_a_half_closed_client_has_acknowledged_them(tcp: Pair) -> None:
    ours, _ = tcp
    replies = Replies(SocketTransport(ours))
    for _ in range(2):
        assert replies.outbox.require_acknowledgements()
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    replies.write(10, 10)
    replies.outbox.update_delivered()
    assert replies.delivered == [False, False]  # nothing has been sent
    for number in (1, 2):
        ours.sendall(b"x" * 10)
        until_delivered(replies, number)
    assert not replies.outbox.is_reset


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_reset_takes_back_what_was_not_acknowledged(tcp: Pair, is_acknowledged: bool) -> None:
    ours, theirs = tcp
    replies = Replies(SocketTransport(ours))
    replies.outbox.require_acknowledgements()
    replies.write(10)
    if is_acknowledged:
        ours.sendall(b"x" * 10)
        until_delivered(replies, 1)
    assert not replies.outbox.is_reset
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    select.select([ours], [], [], 5)
    replies.outbox.update_delivered()
    assert replies.outbox.is_reset is not is_acknowledged
    replies.outbox.end(None)
    assert (replies.delivered, replies.put_back) == ([is_acknowledged], [not is_acknowledged])


def test_replies_to_a_silent_client_are_delivered_when_its_kernel_has_acknowledged_them(tcp: Pair) -> None:
    ours, _ = tcp
    replies = Replies(SocketTransport(ours))
    replies.write(10)
    replies.outbox.update_delivered()
    ours.sendall(b"x" * 10)
    until_acknowledged(ours, 10)
    replies.write(10, is_silent=True)
    replies.write(10)
    replies.outbox.update_delivered()
    assert replies.delivered == [True, False, False]  # nothing more has been sent
    ours.sendall(b"x" * 10)
    # The client is there, so that the system's word is enough for later replies.
    until_delivered(replies, 3)
    replies.write(10)
    replies.outbox.update_delivered()
    assert replies.delivered == [True] * 4


@pytest.mark.parametrize(
    ("error", "delivered"), [(None, [True, True, True]), (TimeoutError(), [True, False, False])]
)
def test_what_a_silent_client_has_not_acknowledged_goes_back_if_the_connection_breaks(
    tcp: Pair, error: Exception | None, delivered: list[bool]
) -> None:
    ours, _ = tcp
    replies = Replies(SocketTransport(ours))
    replies.write(10, is_silent=True)
    ours.sendall(b"x" * 10)
    until_acknowledged(ours, 10)
    replies.write(10, 10, is_silent=True)
    replies.outbox.end(error)
    assert replies.delivered == delivered
    assert replies.put_back == [not one for one in delivered]


def test_a_client_that_has_not_acknowledged_earlier_replies_is_slow_and_not_silent(tcp: Pair) -> None:
    ours, _ = tcp
    replies = Replies(SocketTransport(ours))
    fill(ours)
    replies.write(10, is_silent=True)
    replies.outbox.update_delivered()
    assert replies.delivered == [True]


@pytest.mark.parametrize("is_half_closed", [False, True])
def test_an_error_over_tcp_leaves_what_was_sent_or_what_a_half_closed_client_had_acknowledged(
    tcp: Pair, is_half_closed: bool
) -> None:
    ours, _ = tcp
    replies = Replies(SocketTransport(ours))
    if is_half_closed:
        replies.outbox.require_acknowledgements()
    replies.write(10, 10)
    replies.transport.buffered = 0 if is_half_closed else 20
    ours.sendall(b"x" * 15)
    until_acknowledged(ours, 15)
    replies.outbox.end(ConnectionResetError())
    assert (replies.delivered, replies.put_back) == ([True, False], [False, True])


@pytest.mark.parametrize("is_silent", [False, True])
def test_over_a_unix_socket_no_acknowledgement_is_needed(unix: Pair, is_silent: bool) -> None:
    ours, _ = unix
    replies = Replies(SocketTransport(ours))
    assert replies.outbox.socket is ours
    if not is_silent:
        assert replies.outbox.require_acknowledgements()
    replies.write(10, is_silent=is_silent)
    assert replies.outbox.update_delivered() == 0
    assert replies.delivered == [True]


def test_if_the_server_ends_the_connection_what_was_not_taken_goes_back_and_unread_input_is_discarded(
    unix: Pair,
) -> None:
    ours, theirs = unix
    ours.setblocking(False)
    theirs.sendall(b"x" * 10_000)
    replies = Replies(SocketTransport(ours))
    replies.write(10, 10)
    replies.transport.buffered = 10
    replies.outbox.break_off()
    replies.outbox.end(None, is_broken_off=True)
    assert (replies.delivered, replies.put_back) == ([True, False], [False, True])
    with pytest.raises(BlockingIOError):
        ours.recv(1)


@pytest.mark.parametrize("pair", [tcp_pair, unix_pair])
def test_when_the_server_ends_the_connection_a_client_that_reads_at_that_moment_gets_nothing_twice(
    sockets: ExitStack, pair: Callable[[ExitStack], tuple[socket.socket, socket.socket]]
) -> None:
    ours, theirs = pair(sockets)
    ours.setblocking(False)

    async def play() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        replies = Replies(outbox=Outbox(transport))
        replies.write(*[10_000] * 2000)
        replies.outbox.break_off()
        # uvloop waits for events once more before the connection ends. By then, the socket has room again.
        received = len(theirs.recv(20_000_000))
        while more := await asyncio.to_thread(theirs.recv, 20_000_000):
            received += len(more)
        assert 0 < sum(replies.delivered) == received // 10_000 < 2000

    uvloop.run(play())


def fill(ours: socket.socket) -> None:
    """Send until the other end has to receive something first."""
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(b"x" * 100_000)


def test_over_tls_whose_records_are_not_counted_a_writable_socket_has_taken_all(unix: Pair) -> None:
    ours, theirs = unix
    replies = Replies(SocketTransport(ours, is_tls=True))
    assert not replies.outbox.require_acknowledgements()
    fill(ours)
    replies.write(10)
    replies.outbox.update_delivered()
    assert replies.delivered == [False]
    theirs.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            theirs.recv(1 << 20)
    for buffered in (1, 0):
        replies.transport.buffered = buffered
        replies.outbox.update_delivered()
        assert replies.delivered == [not buffered]
    replies.write(10)
    replies.outbox.end(None)  # whether this arrived is not known
    assert (replies.delivered, replies.put_back) == ([True, False], [False, True])


class LookedAt(Connection):
    """A connection that is looked at until its socket has taken everything."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def acknowledge_sent(self) -> bool:
        self.left -= 1
        return self.left <= 0


async def test_a_connection_is_looked_at_in_the_next_iteration_and_then_until_it_is_done() -> None:
    deliveries, quick, slow = Deliveries(), LookedAt(1), LookedAt(3)
    for connection in (quick, slow, quick):
        deliveries.watch(connection)
    assert (quick.left, slow.left) == (1, 3)
    await asyncio.sleep(0)
    assert (quick.left, slow.left) == (0, 2)
    async with asyncio.timeout(5):
        while deliveries._is_looking:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (quick.left, slow.left) == (0, 0)


async def test_a_connection_is_looked_at_again_for_each_reply() -> None:
    deliveries, looks = Deliveries(), LookedAt(1)
    for left in (0, -1, -2):
        deliveries.watch(looks)
        await asyncio.sleep(0)
        assert (looks.left, deliveries._is_looking) == (left, False)


async def test_many_slow_connections_are_looked_at_less_often() -> None:
    deliveries = Deliveries()
    loop, pauses = asyncio.get_running_loop(), list[float]()

    def call_later(seconds: float, _follows: object) -> None:
        pauses.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        for count in (1, 999):
            for _ in range(count):
                deliveries.watch(LookedAt(3))
            await asyncio.sleep(0)
            deliveries._look_at_slow()
    assert pauses == [0.01, 0.01, pytest.approx(999 * 20e-6)]
