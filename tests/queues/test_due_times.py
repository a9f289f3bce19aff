"""Waiting clients are tried again when a delay, a reservation or a pause ends, whatever else happens."""

from contextlib import ExitStack

import pytest

from pressure_server.client import Queue
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, MEMCACHED, Wire
from tests.support.waiters import Waiter, Words, create, is_refused, wait_for_blocked, wait_for_waiting

# Seconds: of delays and times to run; and for a reply that comes when they end.
SHORT = 0.25
SOON = 4.0


@pytest.fixture
def peer(backend: Valkey, server: Server, start_server: StartServer) -> Server:
    """Return a second server on the backend, which both servers know of."""
    return start_server("--backend", backend.url)


WAITS: list[Words] = [
    ("BLPOP", "q", 0),
    ("BLMPOP", 0, 1, "q", "LEFT"),
    ("BLMOVE", "q", "elsewhere", "LEFT", "RIGHT", 0),
    ("PRESSURE.RESERVE", "q", "TIMEOUT", 0),
    ("BLPOP", "other", "q", 0),
    ("PRESSURE.RESERVE", "other", "q", "TIMEOUT", 0),
]
QUESTIONS: list[Words] = [
    ("LLEN", "q"),
    ("EXISTS", "q"),
    ("INFO", "queues"),
    ("PRESSURE.INFO", "q"),
    ("PRESSURE.PEEK", "q", "READY"),
    ("SISMEMBER", "q", "x"),
    ("SPOP", "q"),
    ("LRANGE", "q", 0, -1),
    ("PRESSURE.TOUCH", "q", 1),
    ("PRESSURE.BURY", "q", 1),
    ("PRESSURE.ACK", "q", 1),
]


def by_name(words: Words) -> str:
    return " ".join(map(str, words))


def reserved(worker: Waiter, **options: float) -> int:
    """Reserve the next job of `q`, and return its id."""
    words = [word for pair in options.items() for word in pair]
    return int(worker("PRESSURE.RESERVE", "q", *words)[1])


# What a reply says of due jobs does not depend on what waits: each question meets two waits, each wait one
# question.
@pytest.mark.parametrize(
    ("wait", "question"),
    [
        *((wait, question) for wait in (WAITS[0], WAITS[5]) for question in QUESTIONS),
        *((wait, QUESTIONS[0]) for wait in WAITS[1:5]),
    ],
    ids=by_name,
)
def test_questions_do_not_end_the_wait_for_a_delay(
    client: Client, worker: Waiter, waiter: Waiter, wait: Words, question: Words
) -> None:
    """The reply to a question did not have the due time, and the server then dropped its timer."""
    create(client, "q", "TYPE", "jobs")
    client.rpush("q", "other")
    assert reserved(worker) == 1
    client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", SHORT)
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    worker(*question)
    assert b"m" in str(waiter.reply(SOON)).encode()


@pytest.mark.parametrize("wait", WAITS, ids=by_name)
def test_questions_do_not_end_the_wait_for_a_reservation(
    client: Client, worker: Waiter, waiter: Waiter, wait: Words
) -> None:
    client.rpush("q", "m")
    reserved(worker, TTR=SHORT)
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    assert worker("LLEN", "q") == 0
    assert b"m" in str(waiter.reply(SOON)).encode()


EVENTS: dict[str, list[Words]] = {
    "put": [("PRESSURE.PUT", "q", "m", "DELAY", SHORT)],
    "put in EXEC": [("MULTI",), ("PRESSURE.PUT", "q", "m", "DELAY", SHORT), ("EXEC",)],
    "release": [
        ("PRESSURE.PUT", "q", "m", "PRIORITY", 1),
        ("PRESSURE.RESERVE", "q"),
        ("PRESSURE.RELEASE", "q", 1, "DELAY", SHORT),
    ],
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("at", ["same server", "other server"])
@pytest.mark.parametrize("wait", [WAITS[0], WAITS[3], WAITS[5]], ids=by_name)
def test_what_becomes_due_earlier_ends_a_wait(
    client: Client, server: Server, peer: Server, waiter: Waiter, wait: Words, at: str, event: list[Words]
) -> None:
    """A script noted an earlier due time only if its server knew of another server."""
    create(client, "q", "TYPE", "jobs")
    with Waiter((server if at == "same server" else peer).port) as busy:
        for words in event[:-1]:
            busy(*words)
        # Something is due already, but later.
        client.execute_command("PRESSURE.PUT", "q", "later", "DELAY", 60)
        waiter.send(*wait)
        wait_for_blocked(client, 1)
        busy(*event[-1])
        assert b"m" in str(waiter.reply(SOON)).encode()


@pytest.mark.parametrize("wait", [WAITS[0], WAITS[3], WAITS[5]], ids=by_name)
def test_what_becomes_due_after_the_time_noted_ends_a_wait(
    client: Client, peer: Server, worker: Waiter, waiter: Waiter, wait: Words
) -> None:
    """The note stays when its job goes, and a later job does not change it: nobody looked again."""
    create(client, "q", "TYPE", "jobs")
    client.execute_command("PRESSURE.PUT", "q", "gone", "DELAY", 4 * SHORT)
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    assert worker("PRESSURE.PURGE", "q", "DELAYED") == 1
    with Waiter(peer.port) as elsewhere:
        elsewhere("PRESSURE.PUT", "q", "m", "DELAY", 5 * SHORT)
    assert b"m" in str(waiter.reply(SOON)).encode()


@pytest.mark.parametrize("before", ["buried", "delayed"])
@pytest.mark.parametrize("wait", [WAITS[0], WAITS[5]], ids=by_name)
def test_a_job_that_was_reserved_by_its_id_comes_back(
    backend: Valkey, start_server: StartServer, wait: Words, before: str
) -> None:
    server = start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")
    with Wire(BEANSTALK, server) as wire, Waiter(server.port) as waiter, server.client() as client:
        wire(b"use q\r\n")
        if before == "delayed":
            wire(b"put 0 60 1 1\r\nm\r\n")
        else:
            wire(b"watch q\r\n")
            wire(b"put 0 0 1 1\r\nm\r\n")
            wire(b"reserve\r\n")
            wire(b"bury 1 0\r\n")
        waiter.send(*wait)
        wait_for_blocked(client, 1)
        assert wire(b"reserve-job 1\r\n").startswith(b"RESERVED 1")
        assert b"m" in str(waiter.reply(SOON)).encode()


@pytest.mark.parametrize(
    "wait", [("BLPOP", "dead", 0), ("PRESSURE.RESERVE", "other", "dead", "TIMEOUT", 0)], ids=by_name
)
def test_dead_letters_come_when_the_last_delivery_ends(
    client: Client, worker: Waiter, waiter: Waiter, wait: Words
) -> None:
    """No client waits on the job's queue, or uses it."""
    create(client, "q", "TYPE", "jobs", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    client.rpush("q", "m")
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    reserved(worker, TTR=SHORT)
    assert b"m" in str(waiter.reply(SOON)).encode()


def test_dead_letters_come_after_the_queue_has_got_its_dead_letters(
    client: Client, worker: Waiter, waiter: Waiter
) -> None:
    create(client, "q", "TYPE", "jobs")
    client.rpush("q", "m")
    reserved(worker, TTR=SHORT)
    client.execute_command("PRESSURE.ALTER", "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    assert waiter("BLPOP", "dead", SOON) == [b"dead", b"m"]


def test_a_queue_without_dead_letters_is_not_looked_at(client: Client, direct: Client) -> None:
    """Its time stayed in the set of the queues that have some, and was looked at 100 times a second."""
    create(client, "q", "TYPE", "jobs", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", 60)
    assert direct.zcard("__pressure__!due") == 1
    client.execute_command("PRESSURE.ALTER", "q", "DEAD-LETTER", "")
    assert direct.zcard("__pressure__!due") == 0


@pytest.mark.parametrize("times", [(0,), (60, 0), (60, SHORT)], ids=str)
@pytest.mark.parametrize("wait", [WAITS[0], WAITS[5]], ids=by_name)
def test_a_shorter_pause_ends_a_wait(
    client: Client, waiter: Waiter, wait: Words, times: tuple[float, ...]
) -> None:
    create(client, "q", "TYPE", "jobs")
    client.execute_command("PRESSURE.PAUSE", "q", 60)
    client.rpush("q", "m")
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    for seconds in times:
        client.execute_command("PRESSURE.PAUSE", "q", seconds)
    assert b"m" in str(waiter.reply(SOON)).encode()


ENDS: dict[str, list[Words]] = {
    "acknowledged": [("PRESSURE.ACK", "q", 1)],
    "buried": [("PRESSURE.BURY", "q", 1)],
    "purged": [("PRESSURE.PURGE", "q", "RESERVED")],
    "acknowledged in EXEC": [("MULTI",), ("PRESSURE.ACK", "q", 1), ("EXEC",)],
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("of", ["jobs", "fifo"])
@pytest.mark.parametrize("wait", [WAITS[0], WAITS[2], WAITS[3], WAITS[4], WAITS[5]], ids=by_name)
def test_waits_end_with_the_last_job_of_a_closed_queue(
    client: Client, worker: Waiter, waiter: Waiter, wait: Words, of: str, end: list[Words]
) -> None:
    """They were not woken up, and a BLMOVE got -CLOSED at once, although the job could have come back."""
    create(client, "q", "TYPE", of)
    client.rpush("q", "m")
    assert reserved(worker) == 1
    client.execute_command("PRESSURE.CLOSE", "q")
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    for words in end:
        worker(*words)
    assert is_refused(waiter.reply(SOON), "CLOSED")


@pytest.mark.parametrize("deletion", [("DEL", "q"), ("FLUSHALL",)], ids=by_name)
@pytest.mark.parametrize("wait", [WAITS[0], WAITS[3], WAITS[5]], ids=by_name)
def test_a_wait_on_a_deleted_queue_fails(
    client: Client, waiter: Waiter, wait: Words, deletion: Words
) -> None:
    create(client, "q", "TYPE", "jobs")
    waiter.send(*wait)
    wait_for_blocked(client, 1)
    client.execute_command(*deletion)
    assert is_refused(waiter.reply(SOON), "NOQUEUE")


@pytest.mark.parametrize("tubes", [1, 2])
def test_a_worker_goes_on_waiting_in_a_deleted_tube(
    backend: Valkey, start_server: StartServer, tubes: int
) -> None:
    server = start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")
    with Wire(BEANSTALK, server) as wire, server.client() as client:
        create(client, "q", "TYPE", "jobs")
        wire(b"watch q\r\n")
        if tubes == 1:
            wire(b"ignore default\r\n")
        wire.send(b"reserve\r\n")
        wait_for_blocked(client, 1)
        client.delete("q")
        create(client, "q")
        client.rpush("q", "m")
        assert wire.replies(1) == [b"RESERVED 1\r\nm"]


def test_a_native_client_waits_for_a_ready_job(backend: Valkey, client: Client) -> None:
    """It did not watch the ready jobs, and looked again only every five seconds."""
    create(client, "q", "TYPE", "jobs")
    client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", SHORT)
    assert Queue("q", backend.url).get(timeout=SOON) == b"m"


def test_a_peek_waits_for_a_delay(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--listen", "memcached://127.0.0.1:0")
    with Wire(MEMCACHED, server) as wire, server.client() as client:
        create(client, "q", "TYPE", "jobs")
        client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", SHORT)
        wire.send(b"get q/peek/t=4000\r\n")
        wait_for_blocked(client, 1)
        assert client.llen("q") == 1
        assert wire.replies(1) == [b"VALUE q/peek/t=4000 0 1\r\nm\r\nEND"]


def test_clients_that_wait_on_several_queues_have_their_turn(
    client: Client, server: Server, waiter: Waiter
) -> None:
    """They got nothing while other clients waited on only one of the queues."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(Waiter(server.port)) for _ in range(6)]
        for number, one in enumerate(waiting, 1):
            one.send("PRESSURE.RESERVE", "q", *(["other"] if number % 2 else []), "TIMEOUT", 0)
            wait_for_blocked(client, number)
        for number, one in enumerate(waiting):
            waiter("RPUSH", "q", number)
            assert one.reply(SOON)[2] == b"%d" % number


def test_the_last_try_comes_when_the_time_is_up(client: Client, server: Server) -> None:
    """The job becomes ready in the millisecond in which the time is up."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(Waiter(server.port)) for _ in range(40)]
        for number, one in enumerate(waiting):
            create(client, f"q{number}", "TYPE", "jobs")
            # The job is put before the wait begins, and so is due before the wait ends.
            client.execute_command("PRESSURE.PUT", f"q{number}", "m", "DELAY", SHORT)
            one.send("BLPOP", f"q{number}", *(["other"] if number % 2 else []), SHORT)
        assert [one.reply(SOON)[1] for one in waiting] == [b"m"] * 40


@pytest.mark.parametrize("wait", [WAITS[4], WAITS[5]], ids=by_name)
def test_waits_on_several_queues_count(backend: Valkey, start_server: StartServer, wait: Words) -> None:
    """Reserves from several queues were not counted."""
    server = start_server("--backend", backend.url, "--max-waiting", "3")
    with server.client() as client, Waiter(server.port) as one, Waiter(server.port) as another:
        create(client, "q")
        one.send(*wait)
        wait_for_waiting(client, "q", consumers=1)
        assert is_refused(another(*wait), "OVERLOAD")
        wait_for_waiting(client, "q", consumers=1)
        one.close()
        wait_for_waiting(client, "q", consumers=0)
        another.send(*wait)
        wait_for_waiting(client, "q", consumers=1)


def test_an_outdated_time_of_dead_letters_is_forgotten(client: Client, direct: Client) -> None:
    """A server of another version may delete a queue without it."""
    client.rpush("q", "m")
    direct.zadd("__pressure__!due", {"__pressure__:q": 1, "__pressure__:gone": 1, "__pressure__:z": 9e15})
    wait_for(lambda: direct.zcard("__pressure__!due") == 1, "the times to be forgotten")
    assert client.exists("q", "gone") == 1
