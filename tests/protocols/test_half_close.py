"""Clients that close their sending side after their requests: all the requests are done and answered.

A client that has closed altogether looks the same until it is answered. tests/faults/test_leaving.py and
tests/faults/test_disconnects.py test that no message is lost to it.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import stopped
from tests.support.programs import Client, Server, Valkey, wait_for, wait_until_settled
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import about, create, packed, wait_for_blocked, wait_for_waiting

# By protocol: requests that are sent together, and their replies.
PIPELINES = {
    RESP: (
        b"PING\r\nRPUSH q one\r\nLPOP q\r\nRPUSH q two three\r\nBLPOP z q 0\r\nLMPOP 2 z q LEFT\r\n"
        b"MULTI\r\nRPUSH q four\r\nLPOP q\r\nEXEC\r\nLLEN q\r\n",
        b"+PONG\r\n:1\r\n$3\r\none\r\n:2\r\n*2\r\n$1\r\nq\r\n$3\r\ntwo\r\n*2\r\n$1\r\nq\r\n*1\r\n$5\r\nthree\r\n"
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n$4\r\nfour\r\n:0\r\n",
    ),
    MEMCACHED: (
        b"set q 0 0 3\r\none\r\nget q\r\nset q 0 0 3\r\ntwo\r\nget z q\r\nset q 0 0 5\r\nthree\r\n"
        b"get q/t=60000\r\nget q\r\n",
        b"STORED\r\nVALUE q 0 3\r\none\r\nEND\r\nSTORED\r\nVALUE q 0 3\r\ntwo\r\nEND\r\nSTORED\r\n"
        b"VALUE q/t=60000 0 5\r\nthree\r\nEND\r\nEND\r\n",
    ),
    BEANSTALK: (
        b"use q\r\nput 0 0 60 3\r\none\r\nwatch q\r\nignore default\r\nreserve\r\ndelete 1\r\n"
        b"reserve-with-timeout 0\r\n",
        b"USING q\r\nINSERTED 1\r\nWATCHING 2\r\nWATCHING 1\r\nRESERVED 1 3\r\none\r\nDELETED\r\n"
        b"TIMED_OUT\r\n",
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unix socket of the server's RESP listener."""
    return tmp_path_factory.mktemp("unix") / "resp"


@pytest.fixture(scope="module")
def listening_server(
    shared_backend: Valkey, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    started = Server(log, "--backend", shared_backend.url, "--listen", f"resp+unix://{path}", *LISTEN)
    yield started
    started.end_well()
    assert "Traceback" not in started.log
    assert "ERROR" not in started.log


@pytest.fixture
def server(backend: Valkey, listening_server: Server) -> Server:
    """A server with listeners for all protocols, on a backend without data."""
    return listening_server


def connect(server: Server, protocol: Protocol = RESP, path: Path | None = None) -> Wire:
    """Connect over TCP, or to the unix socket at `path`."""
    return Wire(protocol, server if path is None else str(path))


@each_protocol
def test_all_requests_before_the_end_are_answered_in_order(
    server: Server, protocol: Protocol, path: Path
) -> None:
    requests, replies = PIPELINES[protocol]
    for place in (None, path) if protocol is RESP else (None,):
        with connect(server, protocol, place) as wire:
            wire.send(requests)
            assert wire.half_close() == replies


@each_protocol
def test_requests_are_answered_that_come_with_the_end_of_the_input(
    server: Server, client: Client, protocol: Protocol
) -> None:
    """The server sees requests and the end at the same time."""
    with connect(server, protocol) as wire:
        with stopped(server.process):
            wire.send(protocol.put(b"q", b"m") + protocol.get(b"q"))
            wire.socket.shutdown(socket.SHUT_WR)
        assert wire.replies(2) == [protocol.stored(1), protocol.got(b"q", b"m")]
        assert wire.is_closed()


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_requests_in_flight_are_answered(
    server: Server, client: Client, backend: Valkey, path: Path, unix: bool
) -> None:
    client.rpush("q", *range(100))
    with connect(server, path=path if unix else None) as wire:
        with stopped(backend.process):
            wire.send((packed("LPOP", "q") + packed("LMPOP", 2, "z", "q", "LEFT")) * 50)
            client.ping()
            wire.socket.shutdown(socket.SHUT_WR)
            client.ping()
        for number in range(0, 100, 2):
            assert wire.message() == b"%d" % number
            assert wire.reply().endswith(b"\r\n%d" % (number + 1))
        assert wire.is_closed()
    assert client.llen("q") == 0


def test_more_requests_than_the_server_reads_at_once_are_answered(server: Server, client: Client) -> None:
    """Reading is paused again and again: by commands in flight, by their size, and by unread replies."""
    some = packed("RPUSH", "q", "x" * 100) + packed("LMPOP", 2, "z", "q", "LEFT") + packed("PING")
    with connect(server) as wire:
        wire.send(some * 800)
        found = wire.half_close()
    assert found.count(b"+PONG\r\n") == 800
    assert found.count(b"x" * 100) == 800


def test_a_slow_reader_gets_all_replies(server: Server, client: Client, direct: Client) -> None:
    """More replies than the kernel holds: the server reads the rest of the requests later, and the end."""
    count, message = 200, b"x" * 100_000
    client.rpush("q", *[message] * count)
    with Wire(RESP, server, small_buffers=True) as wire:
        wire.send(packed("LPOP", "q") * count)
        wire.socket.shutdown(socket.SHUT_WR)
        wait_for(lambda: client.llen("q") < count, "the first message to be taken")
        assert [wire.message() for _ in range(count)] == [message] * count
        assert wire.is_closed()
    wait_until_settled(direct)
    assert about(client, "q")[b"length"] == 0


@pytest.mark.parametrize("requests", ["BLPOP z 0", "BLPOP z y 0", "BLMOVE z q LEFT RIGHT 0"])
def test_a_command_that_waits_ends_and_those_before_it_are_answered(
    server: Server, client: Client, requests: str
) -> None:
    """As in Redis, the connection then ends: later commands are not done."""
    create(client, "z")
    client.rpush("q", "m")
    with connect(server) as wire:
        wire.send(packed("LPOP", "q") + packed(*requests.split()) + packed("RPUSH", "q", "later"))
        assert wire.half_close() == b"$1\r\nm\r\n"
    wait_for_waiting(client, "z")
    wait_for_blocked(client, 0)
    assert client.rpush("z", "n") == 1
    assert client.llen("q") == 0


def test_a_reply_before_a_command_that_waits_is_not_cut(server: Server, client: Client) -> None:
    create(client, "z")
    client.rpush("q", "x" * 5_000_000)
    with Wire(RESP, server, small_buffers=True) as wire:
        wire.send(packed("LPOP", "q") + packed("BLPOP", "z", 0))
        wait_for_waiting(client, "z", consumers=1)
        wire.socket.shutdown(socket.SHUT_WR)
        wait_for_blocked(client, 0)
        assert len(wire.message() or b"") == 5_000_000
        assert wire.is_closed()


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize(
    "request_", [packed("LPOP", "q"), packed("LMPOP", 2, "z", "q", "LEFT"), packed("LPOP", "q") * 20]
)
def test_a_client_that_half_closes_and_then_closes_takes_no_message(
    server: Server, client: Client, direct: Client, backend: Valkey, path: Path, request_: bytes, unix: bool
) -> None:
    client.rpush("q", *range(200))
    for _ in range(5):
        with stopped(backend.process):
            leaving = [connect(server, path=path if unix else None) for _ in range(5)]
            for wire in leaving:
                wire.send(request_)
            client.ping()
            for wire in leaving:
                wire.socket.shutdown(socket.SHUT_WR)
                wire.close()
            client.ping()
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the clients to be gone")
        wait_until_settled(direct)
        messages = client.lrange("q", 0, -1)
        # Over TCP the messages of each client go back when its reset comes: see docs/reliability.md.
        assert (messages if unix else sorted(messages, key=int)) == [b"%d" % number for number in range(200)]
        assert about(client, "q")[b"consumed_messages"] == 0


def test_a_message_goes_back_when_its_client_closes_after_another_reply(
    server: Server, client: Client, direct: Client, backend: Valkey
) -> None:
    """The client reads on after it has half-closed, and closes before the reply with the message."""
    client.rpush("q", "m")
    wire = connect(server)
    with stopped(backend.process):
        wire.send(packed("PING") + packed("LPOP", "q"))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.reply() == b"+PONG"
        wire.close()
    wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
    wait_until_settled(direct)
    assert client.lrange("q", 0, -1) == [b"m"]
