"""In a queue with ACK NEXT, a popped message stays reserved until its connection pops again, or quits."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.faults import NO_SCRIPTS
from tests.support.module_servers import module_server
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import LISTEN, MEMCACHED, Wire
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import (
    Waiter,
    Words,
    about,
    close_with_reset,
    create,
    is_refused,
    packed,
    wait_for_waiting,
)

QUEUES = ["TYPE FIFO", "TYPE JOBS", "TYPE LIFO", "TYPE RANDOM", "MAX-BYTES 1000000", "MAX-DELIVERIES 9"]
# By its name, a command that pops from q, and the messages in its reply.
POPS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "SPOP": (("SPOP", "q"), lambda reply: reply),
    "SPOP with a count": (("SPOP", "q", "1"), lambda reply: reply[0]),
    "LPOP": (("LPOP", "q"), lambda reply: reply),
    "RPOP": (("RPOP", "q"), lambda reply: reply),
    "BLPOP": (("BLPOP", "q", "1"), lambda reply: reply[1]),
    "BRPOP of two": (("BRPOP", "empty", "q", "1"), lambda reply: reply[1]),
    "LMPOP": (("LMPOP", "2", "empty", "q", "LEFT"), lambda reply: reply[1][0]),
    "BLMPOP": (("BLMPOP", "1", "1", "q", "LEFT"), lambda reply: reply[1][0]),
}


shared_server = module_server(*LISTEN)


def make(client: Client, *messages: str, options: str = "", queue: str = "q") -> None:
    create(client, queue, "ACK", "NEXT", *options.split())
    if messages:
        client.rpush(queue, *messages)


def reserved(client: Client, queue: str = "q") -> int:
    return int(about(client, queue)[b"reserved"])


def wait_for_length(client: Client, length: int, queue: str = "q") -> None:
    wait_for(lambda: client.llen(queue) == length, "messages to be back")


def test_an_acknowledgement_in_a_pipeline_with_the_next_pop_counts(client: Client, waiter: Waiter) -> None:
    make(client, "a", "b")
    assert waiter("LPOP", "q") == b"a"
    waiter.socket.sendall(packed("PRESSURE.ACK", "q") + packed("LPOP", "q"))
    assert [waiter.reply(), waiter.reply()] == [1, b"b"]


@pytest.mark.parametrize("acknowledge", ["LPOP q", "PRESSURE.ACK q"])
@pytest.mark.parametrize("options", ["MAX-DELIVERIES 5", "TYPE JOBS", ""])
def test_no_other_message_with_the_same_id_is_acknowledged(
    client: Client, direct: Client, waiter: Waiter, options: str, acknowledge: str
) -> None:
    """A backend that has lost its last changes gives the ids again."""
    make(client, "lost", options=options)
    assert waiter("LPOP", "q") == b"lost"
    direct.flushall()
    make(client, "m", options=options)
    waiter(*acknowledge.split())
    waiter.close()
    wait_for_length(client, 1)


@pytest.mark.parametrize("options", QUEUES)
@pytest.mark.parametrize("name", POPS)
def test_the_next_pop_acknowledges(server: Server, client: Client, options: str, name: str) -> None:
    words, message_in = POPS[name]
    make(client, "a", "b", "c", options=options)
    with Waiter(server.port) as worker:
        first = message_in(worker(*words))
        assert (client.llen("q"), reserved(client)) == (2, 1)
        second = message_in(worker(*words))
        assert (client.llen("q"), reserved(client)) == (1, 1)
    wait_for_length(client, 2)
    assert reserved(client) == 0
    left = set(client.smembers("q"))
    assert left == {b"a", b"b", b"c"} - {first}
    assert second in left


@pytest.mark.parametrize("options", QUEUES)
@pytest.mark.parametrize("end", ["close", "reset", "half close", "RESET"])
def test_without_another_pop_the_message_comes_back(
    server: Server, client: Client, options: str, end: str
) -> None:
    make(client, "a", "b", options=options)
    worker = Waiter(server.port)
    message = worker("SPOP", "q")
    assert worker("PING") == b"PONG"
    assert worker("RPUSH", "other", "x") == 1
    if end == "reset":
        close_with_reset(worker.socket)
    elif end == "half close":
        worker.half_close()
    elif end == "RESET":
        assert worker("RESET") == b"RESET"
    else:
        worker.close()
    wait_for_length(client, 2)
    if "RANDOM" not in options:
        assert client.spop("q") == message


# Commands of a worker, with their replies, and how many messages of q are reserved then; at the end, none.
STEPS: dict[str, list[tuple[str, Any, int | None]]] = {
    "QUIT": [("SPOP q", b"a", 1), ("QUIT", b"OK", 0)],
    "pop of an empty queue": [("SPOP q 2", [b"a", b"b"], 2), ("SPOP q", None, 0)],
    "pop of another such queue": [("SPOP q", b"a", 1), ("SPOP plain", b"1", 1), ("SPOP p", b"x", None)],
    "pop of a queue that had ACK NEXT before it was deleted": [
        ("RPUSH old x", 1, 0),
        ("PRESSURE.ALTER old ACK NEXT", b"OK", 0),
        ("SPOP old", b"x", 0),
        ("SPOP q", b"a", 1),
        ("DEL old", 1, 1),
        ("RPUSH old y", 1, 1),
        ("SPOP old", b"y", 1),
        ("PRESSURE.ACK q", 1, 0),
    ],
    "PRESSURE.ACK": [
        ("PRESSURE.ACK q", 0, 0),
        ("SPOP q", b"a", 1),
        ("PRESSURE.ACK other", 0, 1),
        ("PRESSURE.ACK q", 1, 0),
        ("PRESSURE.ACK q", 0, 0),
    ],
    "PRESSURE.ACK in EXEC": [
        ("SPOP q", b"a", 1),
        ("MULTI", b"OK", 1),
        ("PRESSURE.ACK q", b"QUEUED", 1),
        ("EXEC", [1], 0),
        ("PRESSURE.ACK q", 0, 0),
    ],
    "queue that is made anew": [
        ("SPOP q", b"a", 1),
        ("DEL q", 1, None),
        ("RPUSH q c b", 2, 0),
        ("SPOP q", b"c", 0),
    ],
}


@pytest.mark.parametrize("name", STEPS)
def test_what_else_acknowledges(server: Server, client: Client, name: str) -> None:
    make(client, "a", "b")
    make(client, "x", queue="p")
    client.rpush("plain", "1", "2")
    with Waiter(server.port) as worker:
        for line, reply, count in STEPS[name]:
            assert worker(*line.split()) == reply, line
            assert count is None or reserved(client) == count, line
        wait_for(lambda: reserved(client) == 0, "the acknowledgement")
    assert client.lrange("q", 0, -1) == ([] if "empty" in name else [b"b"])


def test_a_pop_of_a_queue_that_another_server_has_made_anew_acknowledges_nothing(
    server: Server, client: Client, backend: Valkey, start_server: StartServer
) -> None:
    make(client, "a")
    make(client, "x", queue="old", options="BOUND 9")
    with start_server("--backend", backend.url).client() as other, Waiter(server.port) as worker:
        assert worker("SPOP", "old") == b"x"
        assert worker("SPOP", "q") == b"a"
        other.delete("old")
        create(other, "old", "BOUND", 9)
        other.rpush("old", "y")
        wait_for(lambda: client.llen("old") == 1, "the news of the other server")
        assert worker("SPOP", "old") == b"y"
        assert reserved(client) == 1


def test_pipelined_pops_stay_open_together(server: Server, client: Client) -> None:
    make(client, *"abcde")
    with Waiter(server.port) as worker:
        worker.socket.sendall(b"SPOP q\r\nLPOP q\r\nSPOP q 2\r\n")
        assert [worker.reply() for _ in range(3)] == [b"a", b"b", [b"c", b"d"]]
        assert reserved(client) == 4
        assert worker("SPOP", "q") == b"e"
        assert reserved(client) == 1
    wait_for_length(client, 1)


def test_very_many_messages_of_one_pop_come_back_in_order(server: Server, client: Client) -> None:
    messages = [str(number).encode() for number in range(5000)]
    make(client, *(message.decode() for message in messages))
    with Waiter(server.port) as worker:
        assert worker("LPOP", "q", 6000) == messages
        assert (client.llen("q"), reserved(client)) == (0, 5000)
    wait_for_length(client, 5000)
    assert client.lrange("q", 0, -1) == messages


@pytest.mark.parametrize(
    "command", ["LPOP q 9007199254740992", "BLMPOP 1 2 kz q LEFT COUNT 9007199254740991"]
)
def test_a_count_beyond_all_messages(client: Client, waiter: Waiter, command: str) -> None:
    make(client, "a", "b", "c")
    assert waiter("SPOP", "q") == b"a"
    found = waiter(*command.split())
    assert found in ([b"b", b"c"], [b"q", [b"b", b"c"]])
    assert client.llen("q") == 0


def test_an_acknowledgement_that_failed_can_be_repeated(
    backend: Valkey, server: Server, client: Client
) -> None:
    make(client, "a", "b")
    for is_transaction in (False, True):
        with Waiter(server.port) as worker:
            assert worker("SPOP", "q") == b"a"
            if is_transaction:
                assert worker("WATCH", "q") == b"OK"
                client.rpush("q", "c")
                assert worker("MULTI") == b"OK"
                assert worker("PRESSURE.ACK", "q") == b"QUEUED"
                assert worker("EXEC") is None
            else:
                with NO_SCRIPTS(backend):
                    assert is_refused(worker("PRESSURE.ACK", "q"), "BACKEND")
        wait_for(lambda: client.lindex("q", 0) == b"a", "the message to be back")


@pytest.mark.parametrize("options", QUEUES)
def test_takes_that_are_final(server: Server, client: Client, direct: Client, options: str) -> None:
    make(client, *"abcd", options=options)
    with Waiter(server.port) as worker:
        worker("PRESSURE.GET", "q")
        worker("LMOVE", "q", "to", "LEFT", "RIGHT")
        assert worker("MULTI") == b"OK"
        assert worker("SPOP", "q") == b"QUEUED"
        assert isinstance(worker("EXEC")[0], bytes)
        assert (client.llen("q"), reserved(client)) == (1, 0)
    if options in ("TYPE FIFO", "MAX-BYTES 1000000"):
        NativeClient(direct, "q").get()
        assert (client.llen("q"), reserved(client)) == (0, 0)


@pytest.mark.parametrize("question", [("LRANGE", "q", 0, -1), ("SMEMBERS", "q"), ("SUNION", "q", "none")])
def test_messages_whose_time_to_run_is_over_are_read(client: Client, worker: Waiter, question: Words) -> None:
    make(client, "a", "b", options="ACK-TTR 0.02")
    assert worker("SPOP", "q") == b"a"
    time.sleep(0.05)  # until the reservation has ended, which nothing else may notice before the question
    assert worker(*question) == [b"a", b"b"]


def test_a_reservation_has_a_limit_if_the_queue_says_so(server: Server, client: Client) -> None:
    make(client, "a", options="ACK-TTR 0.05")
    assert about(client, "q")[b"ack_ttr_ms"] == 50
    with Waiter(server.port) as worker:
        assert worker("SPOP", "q") == b"a"
        wait_for_length(client, 1)
        with Waiter(server.port) as other:
            assert other("SPOP", "q") == b"a"
            # The reservation of the first worker has ended: its next pop ends no other one.
            assert worker("SPOP", "q") is None
            assert reserved(client) == 1
            assert other("QUIT") == b"OK"
    wait_for(lambda: reserved(client) == 0, "the message to be acknowledged")
    assert client.llen("q") == 0


@pytest.mark.parametrize("options", ["", "TYPE JOBS"])
def test_a_poison_message_goes_to_the_dead_letters(server: Server, client: Client, options: str) -> None:
    create(client, "q", "ACK", "NEXT", *options.split(), "MAX-DELIVERIES", 3, "DEAD-LETTER", "dead")
    client.rpush("q", "poison")
    for _ in range(3):
        with Waiter(server.port) as worker:
            assert worker("BLPOP", "q", 10) == [b"q", b"poison"]
    wait_for(lambda: client.llen("dead") == 1, "the dead letter")
    assert client.llen("q") == 0


def test_a_waiting_pop_has_acknowledged_and_follows_an_alteration(server: Server, client: Client) -> None:
    create(client, "q")
    with Waiter(server.port) as worker:
        for message, setting, count in ((b"a", "NEXT", 1), (b"b", "NEXT", 1), (b"c", "FINAL", 0)):
            worker.send("BLPOP", "q", 0)
            wait_for_waiting(client, "q", consumers=1)
            assert reserved(client) == 0
            client.execute_command("PRESSURE.ALTER", "q", "ACK", setting)
            client.rpush("q", message)
            assert worker.reply() == [b"q", message]
            assert reserved(client) == count


@pytest.mark.parametrize("request_", [b"get q\r\n", b"gets q\r\n", b"mg q v\r\n", b"get q/t=100\r\n"])
def test_gets_of_memcached_clients(server: Server, client: Client, request_: bytes) -> None:
    make(client)
    with Wire(MEMCACHED, server) as wire:
        assert wire(b"set q 5 0 1\r\na\r\n") == b"STORED"
        assert wire(b"set q 0 0 1\r\nb\r\n") == b"STORED"
        assert b"a" in wire(request_)
        assert reserved(client) == 1
        assert b"b" in wire(request_)
        assert (client.llen("q"), reserved(client)) == (0, 1)
    wait_for_length(client, 1)
    with Wire(MEMCACHED, server) as wire:
        assert b"b" in wire(request_)
        wire.socket.sendall(b"quit\r\n")
        assert wire.socket.recv(1) == b""
    assert (client.llen("q"), reserved(client)) == (0, 0)


def test_an_acknowledgement_is_repeated_until_it_is_done(
    backend: Valkey, server: Server, client: Client
) -> None:
    make(client, "a", "b")
    with Waiter(server.port) as worker:
        assert worker("SPOP", "q") == b"a"
        with NO_SCRIPTS(backend):
            assert is_refused(worker("SPOP", "q"), "BACKEND")
        wait_for(lambda: reserved(client) == 0, "the acknowledgement")
        assert client.lrange("q", 0, -1) == [b"b"]


def test_bad_options(worker: Waiter) -> None:
    series: Series = [
        *refusals("ERR syntax", "CREATE q", "ACK"),
        *refusals("ERR syntax error: 'SOON' is none of NEXT, FINAL", "CREATE q", "ACK SOON"),
        *refusals("ERR ACK-TTR needs ACK NEXT", "CREATE q", "ACK-TTR 5", "ACK FINAL ACK-TTR 5"),
        *refusals("ERR timeout", "CREATE q ACK NEXT", "ACK-TTR -1", "ACK-TTR x"),
        *refusals("ERR ACK NEXT", "CREATE q ACK NEXT", "TYPE LOG"),
        ("PRESSURE.CREATE q TYPE LOG", b"OK"),
        *refusals("TYPE ", "ALTER q", "ACK NEXT"),
    ]
    run_series(worker, series)


def test_the_log_tells_it_once_for_each_host(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url)
    with server.client() as client:
        make(client, "a")
        for _ in range(3):
            with Waiter(server.port) as worker:
                assert worker("BLPOP", "q", 10) == [b"q", b"a"]
        wait_for_length(client, 1)
    assert server.log.count("ended with an unacknowledged message of queue 'q'") == 1
