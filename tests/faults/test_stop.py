"""A stop of the server (SIGTERM): a command that gets no reply was not done, so it may be sent again.

Clients notice the end of their connection, as at a stop of Redis: they reconnect, and send the command again.
"""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.native import NativeClient
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, join, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import Waiter, create, is_refused, packed, wait_for_blocked

# Commands that wait for a role of {q} that a native client holds; {o} is another queue, and {f} is full.
CHANGES = """
SADD {q} x|RPUSH {q} x y|LPUSH {q} x|SPOP {q}|SPOP {q} 2|LPOP {q}|RPOP {q} 2|BLPOP {q} 0|BLPOP {q} {e} 0
BLMPOP 0 1 {q} LEFT|SREM {q} m1|LREM {q} 1 m1|LTRIM {q} 1 -1|LMOVE {q} {o} LEFT RIGHT
BLMOVE {q} {o} LEFT RIGHT 0|LMOVE {o} {q} LEFT RIGHT|RPOPLPUSH {q} {o}|SMOVE {q} {o} m1|SMOVE {o} {q} o1
PRESSURE.PUT {q} x|PRESSURE.PUT {q} x TXN t1|PRESSURE.GET {q}
PRESSURE.GET {q} TIMEOUT 60|PRESSURE.RESERVE {q} TIMEOUT 0|PRESSURE.PURGE {q}
SUNIONSTORE {q} {o}
MULTI;RPUSH {o} x;SPOP {q};RPUSH {q} x;EXEC|MULTI;PING;SPOP {q};EXEC
RPUSH {f} x|SADD {f} x|PRESSURE.PUT {f} x|LMOVE {o} {f} LEFT RIGHT|RPUSH {f} x;RPUSH {f} y;RPUSH {f} z
"""
# Of memcached and of beanstalk.
OTHER_CHANGES = {
    MEMCACHED: "set {q} 0 0 1\r\nx\r\n|get {q}\r\n|get {q}/t=60000\r\n",
    BEANSTALK: "watch {q}\r\nignore default\r\nreserve\r\n",
}
_ERRORS = (b"STOPPING", b"DRAINING", b"SERVER_ERROR")
# The reply to a command that would follow.
_AFTER = (b"\r\n$-1\r\n", b"\r\n:1\r\n")
_MESSAGES = ("m0", "m1", "m2")


def _lines(text: str) -> list[str]:
    return [line for lines in text.strip().splitlines() for line in lines.split("|")]


class _Cell:
    """A client with a command that waits, and the queues that the command names."""

    def __init__(self, number: int, protocol: Protocol, line: str, direct: Client, client: Client) -> None:
        self.line = line
        self._names = {letter: f"{letter}{number}" for letter in "qoef"}
        self._direct = direct
        held, other, full = (self._names[letter] for letter in "qof")
        client.rpush(held, *_MESSAGES)
        client.rpush(other, "o1")
        create(client, full, "BOUND", 1)
        client.rpush(full, "f1")
        direct.delete(f"__pressure__:{held}:producer_free", f"__pressure__:{held}:consumer_free")
        self._before = self._contents()
        filled = line.format(**self._names)
        if protocol is RESP:
            self._commands = [packed(*command.split()) for command in filled.split(";")]
        else:
            self._commands = [filled.encode()]
        self._protocol = protocol

    def send(self, server: Server, stack: ExitStack) -> None:
        """Send the command, or the pipeline of commands."""
        self.wire = stack.enter_context(Wire(self._protocol, server))
        self.wire.send(b"".join(self._commands))

    def _contents(self) -> list[list[bytes]]:
        return [self._direct.lrange(f"__pressure__:{name}", 0, -1) for name in self._names.values()]

    def judge(self) -> str:
        """Return what is wrong after the stop, or ""."""
        received = self.wire.rest()
        if received.endswith(_AFTER) or any(code in received for code in _ERRORS):
            return f"{self.line} received {received!r}"
        after = self._contents()
        return f"{self.line} was done in part: {self._before} became {after}" if after != self._before else ""


def test_a_command_that_waits_and_gets_no_reply_has_done_nothing(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "60", *LISTEN)
    cells: list[_Cell] = []
    with server.client() as client, ExitStack() as stack:
        for protocol, text in [(RESP, CHANGES), *OTHER_CHANGES.items()]:
            for line in _lines(text) if protocol is RESP else text.split("|"):
                cells.append(_Cell(len(cells), protocol, line, direct, client))
        for cell in cells:
            cell.send(server, stack)
        wait_for_blocked(client, len(cells))
        server.process.terminate()
        wrong = [found for cell in cells if (found := cell.judge())]
        assert server.process.wait(TIMEOUT) == 0
    assert not wrong, wrong
    assert "Traceback" not in server.log


def test_a_command_that_waits_before_one_that_is_done_gets_an_error(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    """Otherwise the client would take the reply to the second command for that to the first."""
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "m")
        direct.delete("__pressure__:q:consumer_free")
        waiter.socket.sendall(packed("SPOP", "q") + packed("RPUSH", "o", "x"))
        wait_for_blocked(client, 1)
        wait_for(lambda: client.llen("o") == 1, "the second command")
        server.process.terminate()
        assert is_refused(waiter.reply(), "STOPPING")
        assert waiter.reply() == 1
        assert waiter.ends_without_reply()


def test_a_deletion_that_has_begun_says_so(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    NativeClient(direct, "q").create()
    direct.delete("__pressure__:q:producer_free")
    with server.client() as client, Waiter(server.port) as waiter:
        waiter.send("PRESSURE.DELETE", "q")
        wait_for_blocked(client, 1)
        server.process.terminate()
        assert is_refused(waiter.reply(), "INUSE")


class _Producer(threading.Thread):
    """A client that puts without end, with many commands under way, and counts the replies."""

    WINDOW = 64

    def __init__(self, protocol: Protocol, server: Server, number: int) -> None:
        super().__init__()
        self.queue = b"%b-%d" % (protocol.name.encode(), number)
        self._wire = Wire(protocol, server)
        self.replies: list[bytes] = []

    def run(self) -> None:
        sent = 0
        with self._wire, contextlib.suppress(ConnectionError):
            while True:
                more = range(sent, len(self.replies) + self.WINDOW)
                put = self._wire.protocol.put
                self._wire.send(b"".join(put(self.queue, b"%08d" % number) for number in more))
                sent = more.stop
                self.replies.append(self._wire.reply())


@pytest.fixture
def producers() -> Iterator[list[_Producer]]:
    started: list[_Producer] = []
    yield started
    for producer in started:
        join(producer)


@each_protocol
@pytest.mark.parametrize("after", [3, 50, 400])
def test_what_a_producer_has_put_is_what_it_has_replies_for(
    start_server: StartServer, backend: Valkey, direct: Client, protocol: Protocol, after: int,
    producers: list[_Producer],
) -> None:  # fmt: skip
    server = start_server("--backend", backend.url, *LISTEN)
    producers += [_Producer(protocol, server, number) for number in range(4)]
    for producer in producers:
        producer.start()
    wait_for(lambda: len(producers[0].replies) > after, "replies")
    assert server.stop() == 0
    for producer in producers:
        join(producer)
        assert not any(reply.startswith((b"-", b"SERVER_ERROR", b"DRAINING")) for reply in producer.replies)
        with start_server("--backend", backend.url).client() as client:
            stored = client.lrange(producer.queue, 0, -1)
        assert stored == [b"%08d" % number for number in range(len(producer.replies))]
    producers.clear()


@pytest.mark.parametrize(
    ("protocol", "commands"),
    [
        (RESP, packed("BLPOP", "q", 0) + packed("PING")),
        (RESP, packed("BLPOP", "q", 0) + packed("MULTI") + packed("RPUSH", "o", "x") + packed("EXEC")),
        (BEANSTALK, b"reserve\r\nlist-tube-used\r\n"),
    ],
)
def test_a_command_without_a_queue_after_one_that_waits_gets_no_reply_either(
    start_server: StartServer, backend: Valkey, direct: Client, protocol: Protocol, commands: bytes
) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    with server.client() as client, Wire(protocol, server) as wire:
        wire.send(commands)
        wait_for_blocked(client, 1)
        assert server.stop() == 0
        assert wire.rest() == b""
    assert not direct.exists("__pressure__:o")
