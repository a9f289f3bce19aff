"""CLIENT REPLY: the replies that a client gets are those of Redis, and what it sends is done without them."""

import socket

import pytest

from tests.support.measures import MB, memory, reset_peak
from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.side_by_side import Pair, split, words
from tests.support.waiters import packed

# What a client sends. The stream of replies is compared, whether or not it is sent as one pipeline.
PROGRAMS = {
    "OFF": "PING|CLIENT REPLY OFF|PING|SADD q a|SPOP q|NONSENSE|SADD q|GET|CLIENT ID|CLIENT REPLY ON|PING",
    "ON": "CLIENT REPLY ON|CLIENT REPLY ON|client reply on|PING",
    "SKIP": "CLIENT REPLY SKIP|PING|PING|CLIENT REPLY SKIP|SADD q a|SADD q a|SADD q a|SCARD q",
    "SKIP an error": "CLIENT REPLY SKIP|NONSENSE|PING|CLIENT REPLY SKIP|SADD q|SADD q|PING",
    "SKIP twice": "CLIENT REPLY SKIP|CLIENT REPLY SKIP|PING|PING",
    "SKIP, then ON": "CLIENT REPLY SKIP|CLIENT REPLY ON|PING",
    "SKIP, then OFF": "CLIENT REPLY SKIP|CLIENT REPLY OFF|PING|PING|CLIENT REPLY ON|PING",
    "SKIP while OFF": "CLIENT REPLY OFF|CLIENT REPLY SKIP|PING|PING|CLIENT REPLY ON|PING",
    "SKIP, coroutine": "SADD q a|CLIENT REPLY SKIP|SMEMBERS q|SMEMBERS q|CLIENT REPLY SKIP|TYPE q|TYPE q",
    "OFF, and coroutines": "SADD q a|CLIENT REPLY OFF|SMEMBERS q|EXISTS q|SPOP q|CLIENT REPLY ON|SCARD q",
    "SKIP a wait": "RPUSH q a b|CLIENT REPLY SKIP|BLPOP q 0|BLPOP q 0|PING",
    "OFF, and a wait": "RPUSH q a b|CLIENT REPLY OFF|BLPOP q 0|BLPOP none 0.01|CLIENT REPLY ON|BLPOP q 0",
    "a transaction without replies": (
        "CLIENT REPLY OFF|MULTI|SADD q a|SCARD q|EXEC|EXEC|CLIENT REPLY ON|SCARD q"
    ),
    "OFF before EXEC": "MULTI|SADD q a|EXEC|CLIENT REPLY SKIP|MULTI|SADD q b|EXEC|SCARD q",
    "RESET": "CLIENT REPLY OFF|PING|RESET|PING|CLIENT REPLY SKIP|RESET|PING",
    "HELLO": "CLIENT REPLY OFF|HELLO 3|CLIENT REPLY ON|SPOP q|CLIENT REPLY SKIP|HELLO 2|SPOP q",
    "wrong words": "CLIENT REPLY|CLIENT REPLY NO|CLIENT REPLY ON OFF|CLIENT REPLY SKIP|CLIENT REPLY x|PING",
    "many equal puts after SKIP": "CLIENT REPLY SKIP|" + "RPUSH q a|" * 40 + "LLEN q",
    "many equal puts after OFF": "CLIENT REPLY OFF|" + "RPUSH q a|" * 40 + "CLIENT REPLY ON|LLEN q",
    "changes in between": (
        "RPUSH q a|RPUSH q b|CLIENT REPLY OFF|RPUSH q c|RPUSH q d|CLIENT REPLY ON|RPUSH q e|"
        "CLIENT REPLY SKIP|RPUSH q f|RPUSH q g"
    ),
}

END = b"$3\r\nend\r\n"


def requests_of(program: str) -> list[bytes]:
    lines = split(program)
    lines += ["CLIENT REPLY ON", "ECHO end"]
    return [packed(*words(line)) for line in lines]


@pytest.mark.clients
@pytest.mark.parametrize("is_pipeline", [True, False], ids=["pipeline", "one by one"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_replies_are_those_of_redis(pair: Pair, name: str, is_pipeline: bool) -> None:
    requests = requests_of(PROGRAMS[name])
    streams: list[bytes] = []
    for wire in pair.connect():
        for request in [b"".join(requests)] if is_pipeline else requests:
            wire.send(request)
        stream = b""
        while not stream.endswith(END):
            stream += wire.line()
        streams.append(stream)
    expected, found = (stream.replace(b"7.0.15", b"") for stream in streams)
    assert found.count(b"\r\n") == expected.count(b"\r\n"), (expected, found)
    if "REPLY OFF|HELLO" not in PROGRAMS[name] and "GET|" not in PROGRAMS[name]:
        assert found == expected


@pytest.mark.parametrize("request_", [packed("QUIT"), b"*x\r\n"], ids=["QUIT", "a broken request"])
def test_a_connection_ends_without_a_reply(server: Server, request_: bytes) -> None:
    """Redis leaves it open: it closes a connection after a reply."""
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connected:
        connected.sendall(packed("CLIENT", "REPLY", "OFF") + packed("PING") + request_)
        assert connected.recv(100) == b""


def test_in_a_transaction_it_is_refused(client: Client) -> None:
    with client.pipeline() as pipe:
        pipe.sadd("q", "a").execute_command("CLIENT", "REPLY", "OFF").scard("q")
        first, refusal, last = pipe.execute(raise_on_error=False)
    assert (first, str(refusal), last) == (1, "CLIENT REPLY is not allowed in a transaction", 1)
    assert client.ping()


def test_a_sender_that_reads_nothing_loses_nothing(server: Server, client: Client) -> None:
    """It sends without a pause, and leaves: the server does all of it, and keeps no replies."""
    count = 100_000
    puts = b"".join(packed("RPUSH", b"q%d" % (number % 7), number) for number in range(count))
    reset_peak(server)
    before = memory(server)
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender.sendall(packed("CLIENT", "REPLY", "OFF") + puts)
    wait_for(lambda: sum(client.llen(f"q{number}") for number in range(7)) == count, "all puts to be done")
    for number in range(7):
        expected = [b"%d" % one for one in range(number, count, 7)]
        assert client.lrange(f"q{number}", 0, -1) == expected
    assert memory(server, "VmHWM") - before < 64 * MB


def test_a_message_whose_reply_is_off_is_taken(client: Client, direct: Client, server: Server) -> None:
    client.rpush("q", *range(10))
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as taker:
        taker.sendall(packed("CLIENT", "REPLY", "OFF") + packed("LPOP", "q") * 3 + packed("LPOP", "q", 2))
        taker.sendall(packed("PRESSURE.RESERVE", "q", "DETACHED", "t") + packed("CLIENT", "REPLY", "ON"))
        assert taker.recv(100) == b"+OK\r\n"
    wait_for(lambda: not direct.keys("*!calls:*") or client.llen("q") == 4, "the messages to be taken")
    assert client.llen("q") == 4
