"""Full queues: puts wait for room in order of arrival or are refused, and senders are throttled."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.measures import MB, memory
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, join, wait_for
from tests.support.waiters import (
    Waiter,
    about,
    create,
    is_refused,
    packed,
    wait_for_waiting,
    waiters,
)

# The total of 24 MB is more than the buffers of the sockets hold.
PIPE_MESSAGES = 2000
MESSAGE_BYTES = 12 << 10


@pytest.mark.slow
def test_a_full_queue_throttles_its_producer(start_server: StartServer, start_valkey: StartValkey) -> None:
    """Messages are taken one by one while the producer waits, and then as fast as possible."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    messages = [b"%d" % number + b"." * MESSAGE_BYTES for number in range(PIPE_MESSAGES)]
    slowly = 100
    sent = 0
    received: list[bytes] = []
    lengths: list[int] = []

    def produce() -> None:
        nonlocal sent
        for message in messages:
            producer.socket.sendall(packed("LPUSH", "pipe", message))
            sent += 1

    def read_replies() -> None:
        lengths.extend(producer.reply() for _ in messages)

    with (
        server.client() as client,
        backend.client() as direct,
        Waiter(server.port) as producer,
        Waiter(server.port) as consumer,
    ):
        create(client, "pipe", "BOUND", 5)
        producer.socket.settimeout(None)
        before = memory(server)
        producing = threading.Thread(target=produce, daemon=True)
        producing.start()
        for _ in range(slowly):
            wait_for(lambda: about(client, "pipe")[b"waiting_producers"], "the producer to wait")
            assert direct.llen("__pressure__:pipe") == 5
            received += consumer("BLPOP", "pipe", 0)[1:]
        sent_while_slow, grown = sent, memory(server, "VmHWM") - before
        reading = threading.Thread(target=read_replies, daemon=True)
        reading.start()
        while len(received) < PIPE_MESSAGES:
            received += consumer("BLMPOP", 0, 1, "pipe", "LEFT", "COUNT", 100)[1]
        join(producing)
        join(reading)
        assert client.llen("pipe") == 0
    assert received == messages
    # LPUSH returns the length of the queue, which the backend counts in the same step.
    assert len(lengths) == PIPE_MESSAGES
    assert max(lengths) == 5
    # The buffers of the sockets and one read fill up, and then the producer blocks.
    assert sent_while_slow < PIPE_MESSAGES * 0.9
    assert grown < 16 * MB


def take_one_by_one(client: Client, _direct: Client, count: int) -> list[bytes]:
    return [wait_for(lambda: client.spop("q"), "a message") for _ in range(count)]


def take_at_once(client: Client, _direct: Client, count: int) -> list[bytes]:
    messages: list[bytes] = []

    def take() -> bool:
        messages.extend(client.spop("q", count - len(messages)))
        return len(messages) == count

    wait_for(take, f"{count} messages")
    return messages


def take_natively(_client: Client, direct: Client, count: int) -> list[bytes]:
    return [NativeClient(direct, "q").get() for _ in range(count)]


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("take", [take_one_by_one, take_at_once, take_natively])
def test_waiting_puts_are_done_in_order_of_arrival(
    server: Server, client: Client, direct: Client, take: Callable[..., list[bytes]], bound: int
) -> None:
    create(client, "q", "BOUND", bound)
    expected = [b"x%d" % number for number in range(bound)]
    client.sadd("q", *expected)
    with waiters(server, 20) as waiting:
        for number, waiter in enumerate(waiting):
            some = [b"%d.%d" % (number, part) for part in range(1 + number % 3)]
            waiter.send("SADD" if number % 2 else "LPUSH", "q", *some)
            expected += some
            wait_for_waiting(client, "q", producers=number + 1)
        assert take(client, direct, len(expected)) == expected
        for number, waiter in enumerate(waiting):
            reply = waiter.reply()
            assert reply == 1 + number % 3 if number % 2 else reply <= bound
    assert client.scard("q") == 0


def test_a_later_put_does_not_overtake_puts_that_wait_for_room(
    server: Server, client: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "a", "b")
    waiter.send("SADD", "q", "c", "d")
    wait_for_waiting(client, "q", producers=1)
    with Waiter(server.port) as later:
        for _ in range(20):  # the room is for c, then d, however many other puts come
            later.send("PRESSURE.PUT", "q", "e", "NOWAIT")
        assert client.spop("q") == b"a"
        assert all(is_refused(later.reply(), "FULL") for _ in range(20))
    assert client.spop("q") == b"b"
    assert waiter.reply() == 2
    assert client.smembers("q") == {b"c", b"d"}


def test_a_put_with_overflow_error_puts_all_messages_or_none(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 5, "OVERFLOW", "ERROR")
    assert waiter("SADD", "q", 1, 2, 3) == 3
    assert is_refused(waiter("SADD", "q", 4, 5, 6), "FULL")
    assert client.smembers("q") == {b"1", b"2", b"3"}
    assert waiter("SADD", "q", 1, 4, 2, 5) == 2
    assert is_refused(waiter("SADD", "q", 6), "FULL")
    assert waiter("SADD", "q", 1) == 0  # already in the queue, so it needs no room
    assert is_refused(waiter("LPUSH", "q", 7), "FULL")


def test_the_overflow_option_of_the_server_is_the_default(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--overflow", "error")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 1)
        create(client, "b", "BOUND", 1, "OVERFLOW", "BLOCK")
        assert waiter("SADD", "q", 1) == 1
        assert is_refused(waiter("SADD", "q", 2), "FULL")
        assert waiter("SADD", "b", 1) == 1
        waiter.send("SADD", "b", 2)
        wait_for_waiting(client, "b", producers=1)
        assert client.spop("b") == b"1"
        assert waiter.reply() == 1


@pytest.mark.parametrize("command", ["SADD", "LPUSH"])
def test_a_put_of_more_messages_than_the_bound_is_done_in_parts(
    client: Client, waiter: Waiter, command: str
) -> None:
    create(client, "q", "BOUND", 3)
    waiter.send(command, "q", *range(10))
    wait_for_waiting(client, "q", producers=1)
    taken: list[bytes] = []
    for _ in range(10):
        assert not waiter.has_reply() or len(taken) >= 7
        taken.append(wait_for(lambda: client.spop("q"), "a message"))
    assert taken == [b"%d" % number for number in range(10)]
    assert waiter.reply() == (10 if command == "SADD" else 3)


def test_a_put_that_times_out_is_refused_as_full_and_puts_no_more(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--put-timeout", "0.3")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 2)
        began = time.monotonic()
        assert is_refused(waiter("SADD", "q", *range(5)), "FULL")
        assert 0.29 <= time.monotonic() - began < 3
        assert client.spop("q", 10) == [b"0", b"1"]
        wait_for_waiting(client, "q")
        assert client.scard("q") == 0
        assert about(client, "q")[b"produced_messages"] == 2
        client.sadd("q", "x", "y")
        assert is_refused(waiter("PRESSURE.PUT", "q", "z", "TIMEOUT", "0.05"), "FULL")
        assert is_refused(waiter("PRESSURE.PUT", "q", "z", "NOWAIT"), "FULL")
        assert client.scard("q") == 2


def test_a_move_that_times_out_is_refused_as_full_and_moves_nothing(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--put-timeout", "0.3")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "d", "BOUND", 1)
        client.sadd("d", "x")
        for move in ("LMOVE s d LEFT RIGHT", "RPOPLPUSH s d", "SMOVE s d m", "BLMOVE s d LEFT RIGHT 0.05"):
            client.sadd("s", "m")
            assert is_refused(waiter(*move.split()), "FULL"), move
            assert (client.smembers("s"), client.smembers("d")) == ({b"m"}, {b"x"})
            client.spop("s")
            assert waiter(*move.split()) in (None, 0), move  # the source is empty


@pytest.mark.parametrize("overflow", ["ERROR", "OVERWRITE"])
def test_a_put_without_a_timeout_does_not_wait_for_one_that_has_a_timeout(
    server: Server, client: Client, waiter: Waiter, overflow: str
) -> None:
    create(client, "q", "BOUND", 1, "OVERFLOW", overflow)
    client.rpush("q", "old")
    with Waiter(server.port) as patient:
        patient.send("PRESSURE.PUT", "q", "last", "TIMEOUT", 0)
        wait_for_waiting(client, "q", producers=1)
        reply = waiter("RPUSH", "q", "new")
        assert reply == 1 if overflow == "OVERWRITE" else is_refused(reply, "FULL")
        client.spop("q")
        assert patient.reply() == 1
    assert client.spop("q") == b"last"
