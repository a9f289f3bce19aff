"""What a client keeps for its next transaction, in memory: watched names and queued commands."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from handlers.resp import parser
from tests.support.waiters import packed
from tests.unit.net.fake_server import Server

KB = 1 << 10
# The limit of one client, which is that of its largest command.
LIMIT = 1 << 20
OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"


class Client:
    """A client of a server in memory, whose backend replies that each queue has version 1."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._server = self._runner.run(self._started())
        self._connection, self._transport = self._server.connect()

    async def _started(self) -> Server:
        return Server()

    def __call__(self, *words: str | bytes) -> bytes:
        """Send a command, and return its reply."""
        return self._runner.run(self._ask(packed(*words)))

    async def _ask(self, request: bytes) -> bytes:
        self._transport.written.clear()
        self._connection.data_received(request)
        link: Any = self._server.link
        while not self._transport.written:
            await asyncio.sleep(0)
            self._server.send()
            while link.calls:
                link.reply([0, [0, b"1"]])
        return b"".join(self._transport.written)

    @property
    def counted(self) -> int:
        """The bytes that the server's memory account counts for the client."""
        return self._server.clients.memory.held

    def close(self) -> None:
        self._server.close()
        self._runner.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(parser, "REQUEST_ALLOWANCE", 0)
    made = Client()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("begin", "command", "refused"),
    [
        (("PING",), ("WATCH",), b"-ERR too many watched queues"),
        (("MULTI",), ("SADD", "q"), b"-ERR the transaction is too large"),
    ],
    ids=["watched names", "queued commands"],
)
@pytest.mark.interpreted
def test_what_a_client_keeps_is_counted_and_has_a_limit(
    client: Client, begin: tuple[str], command: tuple[str, ...], refused: bytes
) -> None:
    client(*begin)
    most = LIMIT // (100 * KB)
    for number in range(most):
        assert client(*command, b"%02d" % number + bytes(100 * KB)) in (OK, QUEUED)
        assert number * 100 * KB <= client.counted < (number + 2) * 100 * KB + 4 * KB
    assert client(*command, bytes(100 * KB)).startswith(refused)
    client("RESET")
    client("PING")
    assert client.counted == 0


@pytest.mark.interpreted
def test_a_name_watched_again_is_counted_once(client: Client) -> None:
    names = [b"%d" % number + bytes(100 * KB) for number in range(10)]
    for _ in range(20):
        assert client("WATCH", bytes(100 * KB)) == OK
    assert client("WATCH", *names).startswith(b"-ERR too many watched queues")
    # The refused names are not counted.
    assert client("WATCH", *names[:9]) == OK


@pytest.mark.interpreted
def test_names_that_could_not_be_watched_are_not_counted(client: Client) -> None:
    for _ in range(20):
        assert client("WATCH", bytes(100 * KB) + b":bound").startswith(b"-ERR ")
    client("PING")
    assert client.counted == 0
