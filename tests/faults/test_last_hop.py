"""The last hop: messages that a leaving client's socket has not accepted are put back, in order.

Messages in the kernel's buffers are gone, and these tests bound their number. test_disconnects.py tests
clients that leave while they wait.
"""

import collections
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest

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
from tests.support.waiters import Waiter, about, packed

pytestmark = pytest.mark.usefixtures("no_error_in_the_log")

SEED = int(os.environ.get("PRESSURE_SEED", "1"))
ROUNDS = int(os.environ.get("PRESSURE_LAST_HOPS", "20"))

COUNT = 300
# The most messages that the kernel's send and receive buffers of a connection hold.
IN_KERNEL = {"tcp": 120, "unix": 5}


class Reader(Waiter):
    """A connection with a small receive buffer."""

    def __init__(self, address: int | Path) -> None:
        """Connect to a port or to a unix socket."""
        is_port = isinstance(address, int)
        self.socket = socket.socket(socket.AF_INET if is_port else socket.AF_UNIX)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.socket.connect(("127.0.0.1", address) if is_port else str(address))
        self._reader = hiredis.Reader()

    def send_often(self, count: int, *words: str) -> None:
        self.socket.sendall(packed(*words) * count)


@pytest.fixture
def backend(start_valkey: StartValkey) -> Valkey:
    """A backend without other servers."""
    return start_valkey()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The unix socket of the server."""
    return tmp_path / "resp"


@pytest.fixture
def server(start_server: StartServer, backend: Valkey, path: Path) -> Server:
    """A server that listens on a port and on a unix socket."""
    listen = ("--listen", f"resp+unix://{path}")
    # A fifth of the time is for what clients have not read: a busy machine needed two seconds.
    return start_server("--backend", backend.url, *listen, "--drain-timeout", "20")


def is_consistent(client: Client, queue: str, length: int) -> bool:
    """Return whether the queue has `length` messages, and its statistics agree."""
    found = about(client, queue)
    messages = found[b"produced_messages"] - found[b"consumed_messages"]
    size = found[b"produced_bytes"] - found[b"consumed_bytes"]
    return (found[b"length"], messages, size) == (length, length, length * SIZE)


def wait_until_gone(client: Client) -> None:
    """Return when the server has no other client."""
    wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")


def wait_until_stuck(direct: Client) -> None:
    """Return when the server takes no more messages, because the client does not read its replies."""
    lengths: list[int] = []

    def is_stuck() -> bool:
        lengths.append(direct.llen("__pressure__:q"))
        return len(lengths) > 20 and len(set(lengths[-20:])) == 1

    wait_for(is_stuck, "the server to stop taking messages")


def half_close_and_reset(reader: Reader) -> None:
    reader.socket.shutdown(socket.SHUT_WR)
    reader.reset()


def kill_others(client: Client) -> None:
    assert client.execute_command("CLIENT", "KILL", "SKIPME", "yes") == 1


DISCONNECTS: dict[str, Callable[[Reader, Client], None]] = {
    "close": lambda reader, _: reader.close(),
    "reset": lambda reader, _: reader.reset(),
    "half-close": lambda reader, _: half_close_and_reset(reader),
    "killed": lambda _, client: kill_others(client),
}


@pytest.mark.parametrize("disconnect", DISCONNECTS.values(), ids=DISCONNECTS)
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_messages_not_accepted_by_the_socket_go_back_in_order(
    server: Server,
    client: Client,
    direct: Client,
    path: Path,
    transport: str,
    disconnect: Callable[[Reader, Client], None],
) -> None:
    fill(client, COUNT, "q")
    reader = Reader(path if transport == "unix" else server.port)
    reader.send_often(COUNT, "SPOP", "q")
    read = [number_of(reader.reply()) for _ in range(7)]
    assert read == list(range(7))
    wait_until_stuck(direct)
    taken = COUNT - direct.llen("__pressure__:q")
    disconnect(reader, client)
    wait_until_gone(client)
    wait_until_settled(direct)
    left = queued(direct)
    assert left == list(range(COUNT))[-len(left) :]
    gone = COUNT - len(left)
    assert 7 <= gone <= 7 + IN_KERNEL[transport]
    assert gone < taken
    assert is_consistent(client, "q", len(left))
    print(f"{transport}: {taken} taken, 7 read, {gone - 7} gone with the kernel")
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "stop"])
def test_unread_messages_of_a_transaction_go_back(
    server: Server, client: Client, direct: Client, how: str
) -> None:
    queues = ("q", "r")
    fill(client, COUNT, *queues)
    reader = Reader(server.port)
    reader.send("MULTI")
    for queue in queues:
        reader.send("LPOP", queue)
        reader.send("LPOP", queue, 150)
    reader.send("EXEC")
    for _ in range(5):
        reader.reply()
    wait_for(reader.has_reply, "the reply to begin")
    if how == "reset":
        reader.reset()
    else:
        assert server.stop() == 0
        assert "could not all be put back" not in server.log
        assert not [name for name in direct.hkeys("__pressure__!peers") if name.decode() in server.log]
    wait_until_settled(direct)
    for queue in queues:
        assert queued(direct, queue) == list(range(COUNT))
        assert int(direct.get(f"__pressure__:{queue}:stats:consumed_messages")) == 0
    reader.close()


def test_messages_of_a_transaction_that_waits_for_a_delete_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    native = NativeSteps(direct, "r", "native")
    client.rpush("q", "a", "b")
    client.rpush("r", "x")
    steps = native.put(b"y")
    step_until(steps, lambda: not direct.exists("__pressure__:r:producer_free"))
    reader = Reader(server.port)
    for words in ("MULTI", "DEL r", "LPOP q", "EXEC"):
        reader.send(*words.split())
    wait_for(lambda: direct.llen("__pressure__:q") == 1, "the message to be taken")
    kill_others(client)
    wait_until_settled(direct)
    assert client.lrange("q", 0, -1) == [b"a", b"b"]
    assert about(client, "q")[b"consumed_messages"] == 0
    with pytest.raises(QueueClosedError):
        collections.deque(steps)


def test_no_message_goes_back_to_a_queue_deleted_or_created_again(
    server: Server, client: Client, direct: Client
) -> None:
    fill(client, COUNT, "q", "r")
    readers = [Reader(server.port) for _ in "qr"]
    for reader, queue in zip(readers, "qr", strict=True):
        reader.send("LPOP", queue, 100)
        wait_for(reader.has_reply, "the reply to begin")
    client.delete("q", "r")
    client.rpush("r", "new")
    for reader in readers:
        reader.reset()
    wait_until_settled(direct)
    assert client.exists("q") == 0
    assert client.lrange("r", 0, -1) == [b"new"]
    assert about(client, "r")[b"consumed_messages"] == 0
    assert server.stop() == 0
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
        wait_for(lambda: not client.exists("witness"), "the unused queue to be deleted")
        wait_for(lambda: client.rpush("witness", "x") and client.lpop("witness"), "a new queue to be used")
        wait_for(lambda: not client.exists("witness"), "the new queue to be deleted")
        reader.reset()
        wait_until_settled(direct)
        assert queued(direct) == list(range(COUNT))


@pytest.mark.slow
def test_clients_that_reset_while_they_read_double_no_message(
    server: Server, client: Client, direct: Client
) -> None:
    # Some reset between two of the server's checks of the bytes sent.
    chance = random.Random(SEED)
    read = gone = 0
    for _ in range(ROUNDS):
        direct.flushall()
        some = [large(number) for number in range(80)]
        client.rpush("q", *some)
        reader = Reader(server.port)
        reader.send_often(len(some), "SPOP", "q")
        # Replies are parsed after the reset: reading must be fast.
        pieces, missing = [], chance.randrange(1, 80) * SIZE
        while missing > 0:
            pieces.append(reader.socket.recv(1 << 20))
            assert pieces[-1], "the server has closed"
            missing -= len(pieces[-1])
        reader.reset()
        parser = hiredis.Reader()
        parser.feed(b"".join(pieces))
        received = [number_of(reply) for reply in iter(parser.gets, False)]
        wait_until_gone(client)
        wait_until_settled(direct)
        left = queued(direct)
        assert received == list(range(len(received)))
        assert left == list(range(len(some)))[len(some) - len(left) :]
        assert len(received) + len(left) <= len(some)
        read += len(received)
        gone += len(some) - len(received) - len(left)
    print(f"seed {SEED}: {ROUNDS} clients have read {read} messages; {gone} are gone with the kernel")
