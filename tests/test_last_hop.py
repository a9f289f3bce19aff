"""The last hop: messages that were not handed to the socket of a client that leaves go back to their queue.

What the kernel has by then is gone: how much that is at most is known, and what comes back is all the rest,
in order. tests/test_disconnects.py has those who leave while they wait.
"""

from __future__ import annotations

import asyncio
import collections
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import hiredis
import pytest
import uvloop

from pressure_server.net.tcp_info import bytes_sent
from tests.support.faults import stopped
from tests.support.large import SIZE, fill, large, number_of, queued
from tests.support.native import NativeSteps, QueueClosedError, step_until
from tests.support.programs import (
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import Waiter, about, blocked, packed, wait_for_waiting

SEED = int(os.environ.get("PRESSURE_SEED", "1"))
ROUNDS = int(os.environ.get("PRESSURE_LAST_HOPS", "50"))

COUNT = 300
# What kernels may hold of a connection, in messages: send and receive buffers.
IN_KERNEL = {"tcp": 120, "unix": 5}


class Reader(Waiter):
    """A connection with a small buffer, which reads only when the test says so."""

    def __init__(self, address: int | Path) -> None:
        is_port = isinstance(address, int)
        self.socket = socket.socket(socket.AF_INET if is_port else socket.AF_UNIX)
        # So that its kernel holds less than was written.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.socket.connect(("127.0.0.1", address) if is_port else str(address))
        self._reader = hiredis.Reader()

    def send_often(self, count: int, *words: str) -> None:
        self.socket.sendall(packed(*words) * count)


@pytest.fixture
def backend(start_valkey: StartValkey) -> Valkey:
    """Return a backend without other servers."""
    return start_valkey()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "resp"


@pytest.fixture
def ours(start_server: StartServer, backend: Valkey, path: Path) -> Server:
    """Start a server that listens on a port and on a unix socket, and closes idle clients."""
    timeouts = ("--idle-timeout", "1", "--drain-timeout", "5")
    return start_server("--backend", backend.url, "--listen", f"resp+unix://{path}", *timeouts)


def is_right(client: Client, queue: str, length: int) -> bool:
    """Return whether the statistics agree with the length."""
    found = about(client, queue)
    messages = found[b"produced_messages"] - found[b"consumed_messages"]
    size = found[b"produced_bytes"] - found[b"consumed_bytes"]
    return (found[b"length"], messages, size) == (length, length, length * SIZE)


def close(reader: Reader, _client: Client) -> None:
    reader.close()


def reset(reader: Reader, _client: Client) -> None:
    reader.reset()


def half_close(reader: Reader, _client: Client) -> None:
    reader.socket.shutdown(socket.SHUT_WR)
    reader.reset()


def kill(reader: Reader, client: Client) -> None:
    assert client.execute_command("CLIENT", "KILL", "SKIPME", "yes") == 1


def be_idle(_reader: Reader, _client: Client) -> None:
    pass  # the server's limit is a second


ENDS: dict[str, Callable[[Reader, Client], None]] = {
    "close": close, "reset": reset, "half-close": half_close, "killed": kill, "idle": be_idle,
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_messages_not_yet_handed_to_the_socket_go_back_in_order(
    ours: Server, direct: Client, path: Path, transport: str, end: Callable[[Reader, Client], None]
) -> None:
    with ours.client() as client:
        fill(client, COUNT, "q")
        reader = Reader(path if transport == "unix" else ours.port)
        reader.send_often(COUNT, "SPOP", "q")
        read = [number_of(reader.reply()) for _ in range(7)]
        assert read == list(range(7))
        _wait_until_stuck(direct)
        taken = COUNT - direct.llen("__pressure__:q")
        end(reader, client)
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
        wait_until_settled(direct)
        left = queued(direct)
        assert left == list(range(COUNT))[-len(left) :]
        gone = COUNT - len(left)
        assert 7 <= gone <= 7 + IN_KERNEL[transport]
        assert gone < taken
        assert is_right(client, "q", len(left))
        print(f"{transport}: {taken} taken, 7 read, {gone - 7} gone with the kernel")
        reader.close()


def _wait_until_stuck(direct: Client) -> None:
    """Return when the client's replies are stuck, so that nothing more is taken."""
    lengths = [0]

    def is_stuck() -> bool:
        lengths.append(direct.llen("__pressure__:q"))
        return len(lengths) > 20 and len(set(lengths[-20:])) == 1

    wait_for(is_stuck, "the server to stop taking")


def test_a_client_that_half_closes_and_reads_on_gets_its_messages(ours: Server, direct: Client) -> None:
    with ours.client() as client:
        fill(client, COUNT, "q")
        reader = Reader(ours.port)
        reader.send_often(COUNT, "SPOP", "q")
        _wait_until_stuck(direct)
        received = [number_of(reply) for reply in reader.half_close()]
        assert received == list(range(len(received)))
        wait_until_settled(direct)
        assert received + queued(direct) == list(range(COUNT))
        assert is_right(client, "q", COUNT - len(received))


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_all_messages_of_an_unread_reply_go_back(
    ours: Server, direct: Client, path: Path, transport: str
) -> None:
    with ours.client() as client:
        fill(client, COUNT, "q")
        with Reader(path if transport == "unix" else ours.port) as reader:
            reader.send("SPOP", "q", 200)
            wait_for(lambda: reader.has_reply(), "the reply to begin")
            assert direct.llen("__pressure__:q") == 100
            reader.reset()
        wait_until_settled(direct)
        assert queued(direct) == list(range(COUNT))
        assert is_right(client, "q", COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "stop"])
@pytest.mark.parametrize("queues", [("q",), ("q", "r")], ids=["one queue", "two queues"])
def test_unread_messages_of_a_transaction_go_back(
    ours: Server, backend: Valkey, direct: Client, queues: tuple[str, ...], how: str
) -> None:
    with ours.client() as client:
        fill(client, COUNT, *queues)
    reader = Reader(ours.port)
    reader.send("MULTI")
    for queue in queues:
        reader.send("LPOP", queue)
        reader.send("LPOP", queue, 150)
    reader.send("EXEC")
    for _ in range(2 * len(queues) + 1):
        reader.reply()
    wait_for(reader.has_reply, "the reply to begin")
    if how == "reset":
        reader.reset()
    else:
        assert ours.stop() == 0
        assert "could not all be put back" not in ours.log
        assert not [name for name in direct.hkeys("__pressure__!peers") if name.decode() in ours.log]
    wait_until_settled(direct)
    for queue in queues:
        assert queued(direct, queue) == list(range(COUNT))
        assert int(direct.get(f"__pressure__:{queue}:stats:consumed_messages")) == 0
    reader.close()


def test_a_get_of_several_calls_gives_the_messages_of_all_calls_back(
    ours: Server, backend: Valkey, direct: Client
) -> None:
    """It is 30 MB, and a call brings one."""
    with ours.client() as client:
        fill(client, COUNT, "q")
        reader = Reader(ours.port)
        reader.send("SPOP", "q", COUNT)
        wait_for(lambda: direct.llen("__pressure__:q") < COUNT, "the first call")
        with stopped(backend.process):
            reader.reset()
            wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
        wait_until_settled(direct)
        assert queued(direct) == list(range(COUNT))
        assert is_right(client, "q", COUNT)


def test_messages_of_a_transaction_that_waits_for_a_delete_go_back(ours: Server, direct: Client) -> None:
    native = NativeSteps(direct, "r", "native")
    with ours.client() as client:
        client.rpush("q", "a", "b")
        client.rpush("r", "x")
        steps = native.put(b"y")
        step_until(steps, lambda: not direct.exists("__pressure__:r:producer_free"))
        reader = Reader(ours.port)
        for words in ("MULTI", "DEL r", "LPOP q", "EXEC"):
            reader.send(*words.split())
        wait_for(lambda: direct.llen("__pressure__:q") == 1, "the message to be taken")
        kill(reader, client)
        wait_until_settled(direct)
        assert client.lrange("q", 0, -1) == [b"a", b"b"]
        assert about(client, "q")[b"consumed_messages"] == 0
        with pytest.raises(QueueClosedError):
            collections.deque(steps)


def test_a_moved_message_does_not_go_back(ours: Server, direct: Client) -> None:
    with ours.client() as client:
        fill(client, COUNT, "q")
        reader = Reader(ours.port)
        reader.send_often(COUNT, "LMOVE", "q", "r", "LEFT", "RIGHT")
        _wait_until_stuck(direct)
        reader.reset()
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
        wait_until_settled(direct)
        assert queued(direct, "r") + queued(direct, "q") == list(range(COUNT))
        assert is_right(client, "q", len(queued(direct)))


def test_commands_after_a_waiting_get_take_nothing(ours: Server, direct: Client) -> None:
    with ours.client() as client:
        client.rpush("q", "a", "b")
        client.rpush("empty", "x")
        client.lpop("empty")
        for leave in (Reader.close, Reader.reset, Reader.half_close):
            reader = Reader(ours.port)
            reader.socket.sendall(packed("BLPOP", "empty", 0) + packed("LPOP", "q") + packed("PING"))
            wait_for_waiting(client, "empty", consumers=1)
            leave(reader)
            wait_for(lambda: blocked(client) == 0, "nobody to wait")
            assert client.lrange("q", 0, -1) == [b"a", b"b"]


def test_no_message_goes_back_to_a_deleted_queue(ours: Server, direct: Client) -> None:
    """Neither where it is there again: what was taken from it is gone with it."""
    with ours.client() as client:
        fill(client, COUNT, "q", "r")
        readers = [Reader(ours.port) for _ in "qr"]
        for reader, queue in zip(readers, "qr", strict=True):
            reader.send("LPOP", queue, 100)
            wait_for(reader.has_reply, "the reply to begin")
        client.delete("q", "r")
        client.rpush("r", "anew")
        for reader in readers:
            reader.reset()
        wait_until_settled(direct)
        assert client.exists("q") == 0
        assert client.lrange("r", 0, -1) == [b"anew"]
        assert about(client, "r")[b"consumed_messages"] == 0
    assert ours.stop() == 0
    assert "ERROR" not in ours.log
    assert not [key for key in keys_left(direct) if b":q" in key]


@pytest.mark.slow
def test_an_unused_queue_is_not_deleted_while_its_last_message_is_in_flight(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    server = start_server("--backend", backend.url, "--implicit-queue-ttl", "0.2")
    with server.client() as client:
        fill(client, COUNT, "q")
        client.rpush("witness", "x")
        reader = Reader(server.port)
        reader.send("LPOP", "q", COUNT)
        wait_for(reader.has_reply, "the reply to begin")
        client.lpop("witness")
        wait_for(lambda: not client.exists("witness"), "an unused queue to go")
        wait_for(lambda: client.rpush("witness", "x") and client.lpop("witness"), "the other")
        wait_for(lambda: not client.exists("witness"), "it to go again")
        reader.reset()
        wait_until_settled(direct)
        assert queued(direct) == list(range(COUNT))


@pytest.mark.slow
def test_clients_that_reset_while_they_read_double_no_message(ours: Server, direct: Client) -> None:
    """At any moment, also between two looks of the server at what was sent."""
    chance = random.Random(SEED)
    read = gone = 0
    with ours.client() as client:
        for _ in range(ROUNDS):
            direct.flushall()
            some = [large(number) for number in range(80)]
            client.rpush("q", *some)
            reader = Reader(ours.port)
            reader.send_often(len(some), "SPOP", "q")
            # Fast: parsed when it has gone.
            pieces, missing = [], chance.randrange(1, 80) * SIZE
            while missing > 0:
                pieces.append(reader.socket.recv(1 << 20))
                assert pieces[-1], "the server has closed"
                missing -= len(pieces[-1])
            reader.reset()
            parser = hiredis.Reader()
            parser.feed(b"".join(pieces))
            received = []
            while (reply := parser.gets()) is not False:
                received.append(number_of(reply))
            wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
            wait_until_settled(direct)
            left = queued(direct)
            assert received == list(range(len(received)))
            assert left == list(range(len(some)))[len(some) - len(left) :]
            assert len(received) + len(left) <= len(some)
            read += len(received)
            gone += len(some) - len(received) - len(left)
    print(f"seed {SEED}: {ROUNDS} clients have read {read} messages; {gone} are gone with the kernel")


class Writer(asyncio.Protocol):
    """Writes to whoever connects, and notes what is known of it when that connection has broken."""

    size = 20_000_000

    def __init__(self) -> None:
        self.broken: asyncio.Future[tuple[int | None, int]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(bytes(self.size))

    def connection_lost(self, exc: Exception | None) -> None:
        left = self._transport.get_write_buffer_size()
        self.broken.set_result((bytes_sent(self._transport), self.size - left))


def test_the_kernel_tells_the_bytes_sent_on_a_broken_connection() -> None:
    async def run() -> tuple[int, int | None, int]:
        loop = asyncio.get_running_loop()
        writer = Writer()
        server = await loop.create_server(lambda: writer, "127.0.0.1", 0)
        reader = socket.create_connection(server.sockets[0].getsockname())
        read = len(await asyncio.to_thread(reader.recv, 500_000, socket.MSG_WAITALL))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.close()
        sent, handed = await writer.broken
        server.close()
        return read, sent, handed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        read, sent, handed = runner.run(run())
    assert sent is not None
    assert 500_000 == read <= sent < Writer.size
    assert handed == Writer.size  # so it says
    print(f"{read} bytes read, {sent} sent, of {Writer.size} written")


@pytest.fixture(autouse=True)
def nothing_wrong_in_the_log(start_server: StartServer, tmp_path: Path) -> Iterator[None]:
    yield
    for log in tmp_path.glob("server-*.log"):
        assert "Traceback" not in log.read_text()
        assert "ERROR" not in log.read_text()
