"""Waiting clients are tried again when a delay, a reservation or a pause ends, whatever else happens."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from pressure_server.client import Queue
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, MEMCACHED, Wire
from tests.support.waiters import (
    Waiter,
    blocked,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
)

# Seconds: of delays and times to run; and for a reply that comes when they end.
SHORT = 0.25
SOON = 4.0


BLPOP, RESERVE = "BLPOP q 0", "PRESSURE.RESERVE other q TIMEOUT 0"
# How many keys the server watches for each: of the queue that is missing, then of the other.
WATCHED = {BLPOP: 4, RESERVE: 5 + 4}


class Event(NamedTuple):
    """Commands of a client before another one waits for q, those that end the wait, and what it gets."""

    before: str
    act: str
    wanted: str = "b'm'"


JOBS = "PRESSURE.CREATE q TYPE JOBS"
DELAYED = f"{JOBS}|RPUSH q other|PRESSURE.RESERVE q|PRESSURE.PUT q m DELAY {SHORT}"
# Something is due already, but later.
LATER = "PRESSURE.PUT q later DELAY 60"
RESERVED = f"{JOBS}|PRESSURE.PUT q m PRIORITY 1|PRESSURE.RESERVE q"
PAUSED = f"{JOBS}|PRESSURE.PAUSE q 60|RPUSH q m"
# The job that is left could still come back.
CLOSING = f"{RESERVED}|PRESSURE.CLOSE q"
# The reply to a question did not have the due time, and the server then dropped its timer.
QUESTIONS = (
    "LLEN q|EXISTS q|INFO queues|PRESSURE.INFO q|PRESSURE.PEEK q READY|SISMEMBER q x|SPOP q|LRANGE q 0 -1|"
    "PRESSURE.TOUCH q 1|PRESSURE.BURY q 1|PRESSURE.ACK q 1"
)


EVENTS = {
    **{f"delay beside {line}": Event(DELAYED, line) for line in QUESTIONS.split("|")},
    "reservation beside LLEN": Event(f"RPUSH q m|PRESSURE.RESERVE q TTR {SHORT}", "LLEN q"),
    "delay": Event(f"{JOBS}|{LATER}", f"PRESSURE.PUT q m DELAY {SHORT}"),
    "delay in EXEC": Event(f"{JOBS}|{LATER}", f"MULTI|PRESSURE.PUT q m DELAY {SHORT}|EXEC"),
    "release with a delay": Event(f"{RESERVED}|{LATER}", f"PRESSURE.RELEASE q 1 DELAY {SHORT}"),
    "last delivery elsewhere": Event(
        "PRESSURE.CREATE work TYPE JOBS MAX-DELIVERIES 1 DEAD-LETTER q|PRESSURE.CREATE q|RPUSH work m",
        f"PRESSURE.RESERVE work TTR {SHORT}",
    ),
    "end of a pause": Event(PAUSED, "PRESSURE.PAUSE q 0"),
    "shorter pause": Event(PAUSED, f"PRESSURE.PAUSE q 60|PRESSURE.PAUSE q {SHORT}"),
    "last job acknowledged": Event(CLOSING, "PRESSURE.ACK q 1", "CLOSED "),
    "last job acknowledged in EXEC": Event(CLOSING, "MULTI|PRESSURE.ACK q 1|EXEC", "CLOSED "),
    "last job buried": Event(CLOSING, "PRESSURE.BURY q 1", "CLOSED "),
    "last job purged": Event(CLOSING, "PRESSURE.PURGE q RESERVED", "CLOSED "),
    "DEL": Event(JOBS, "DEL q", "NOQUEUE "),
    "FLUSHALL": Event(JOBS, "FLUSHALL", "NOQUEUE "),
}


def _watched_keys(direct: Client) -> int:
    return int(direct.info("stats")["tracking_total_keys"])


@pytest.mark.parametrize(
    ("wait", "at"),
    [(BLPOP, "same server"), (RESERVE, "same server"), (BLPOP, "other server"), (RESERVE, "other server")],
)
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_wait_ends_in_time(
    client: Client,
    direct: Client,
    waiter: Waiter,
    busy_at: Callable[[str], Waiter],
    event: Event,
    wait: str,
    at: str,
) -> None:
    with busy_at(at) as busy:
        for line in event.before.split("|"):
            busy(*line.split())
        wanted = _watched_keys(direct) + WATCHED[wait]
        waiter.send(*wait.split())
        # A queue that is deleted before that has never been there for a client that waits on several queues.
        # On a busy machine a delay may have ended before that.
        wait_for(
            lambda: waiter.has_reply() or (blocked(client) == 1 and _watched_keys(direct) >= wanted),
            "the client to wait, and the server to watch the queues",
        )
        for line in event.act.split("|"):
            busy(*line.split())
        assert event.wanted in str(waiter.reply(SOON))


@pytest.mark.parametrize("wait", [BLPOP, RESERVE])
def test_what_becomes_due_after_the_time_noted_ends_a_wait(
    client: Client, worker: Waiter, waiter: Waiter, busy_at: Callable[[str], Waiter], wait: str
) -> None:
    """The note stays when its job goes, and a later job does not change it: nobody looked again."""
    create(client, "q", "TYPE", "jobs")
    client.execute_command("PRESSURE.PUT", "q", "gone", "DELAY", 4 * SHORT)
    waiter.send(*wait.split())
    wait_for_blocked(client, 1)
    assert worker("PRESSURE.PURGE", "q", "DELAYED") == 1
    with busy_at("other server") as elsewhere:
        elsewhere("PRESSURE.PUT", "q", "m", "DELAY", 5 * SHORT)
    assert b"m" in waiter.reply(SOON)


def test_the_end_of_a_pause_serves_the_readers_of_a_group_at_another_server(
    client: Client, waiter: Waiter, busy_at: Callable[[str], Waiter]
) -> None:
    create(client, "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.rpush("log", "m")
    client.execute_command("PRESSURE.PAUSE", "log+g", 60)
    waiter.send("PRESSURE.READ", "log", "GROUP", "g", "ann", "TIMEOUT", 0)
    wait_for_blocked(client, 1)
    with busy_at("other server") as elsewhere:
        elsewhere("PRESSURE.PAUSE", "log+g", 0)
    assert "b'm'" in str(waiter.reply(SOON))


def test_dead_letters_come_after_the_queue_has_got_its_dead_letters(
    client: Client, worker: Waiter, waiter: Waiter
) -> None:
    create(client, "q", "TYPE", "jobs")
    client.rpush("q", "m")
    worker("PRESSURE.RESERVE", "q", "TTR", SHORT)
    client.execute_command("PRESSURE.ALTER", "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    assert waiter("BLPOP", "dead", SOON) == [b"dead", b"m"]


def test_a_queue_without_dead_letters_is_not_looked_at(client: Client, direct: Client) -> None:
    """Its time stayed in the set of the queues that have some, and was looked at 100 times a second."""
    create(client, "q", "TYPE", "jobs", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", 60)
    assert direct.zcard("__pressure__!due") == 1
    client.execute_command("PRESSURE.ALTER", "q", "DEAD-LETTER", "")
    assert direct.zcard("__pressure__!due") == 0


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


@pytest.mark.parametrize("wait", ["BLPOP other q 0", RESERVE])
def test_waits_on_several_queues_count(backend: Valkey, start_server: StartServer, wait: str) -> None:
    """Reserves from several queues were not counted."""
    server = start_server("--backend", backend.url, "--max-waiting", "3")
    with server.client() as client, Waiter(server.port) as one, Waiter(server.port) as another:
        create(client, "q")
        one.send(*wait.split())
        wait_for_waiting(client, "q", consumers=1)
        assert is_refused(another(*wait.split()), "OVERLOAD")
        wait_for_waiting(client, "q", consumers=1)
        one.close()
        wait_for_waiting(client, "q", consumers=0)
        another.send(*wait.split())
        wait_for_waiting(client, "q", consumers=1)


def test_an_outdated_time_of_dead_letters_is_forgotten(client: Client, direct: Client) -> None:
    """A server of another version may delete a queue without it."""
    client.rpush("q", "m")
    direct.zadd("__pressure__!due", {"__pressure__:q": 1, "__pressure__:gone": 1, "__pressure__:z": 9e15})
    wait_for(lambda: direct.zcard("__pressure__!due") == 1, "the times to be forgotten")
    assert client.exists("q", "gone") == 1


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


@pytest.mark.parametrize("before", ["buried", "delayed"])
@pytest.mark.parametrize("wait", [BLPOP, RESERVE])
def test_a_job_that_was_reserved_by_its_id_comes_back(
    backend: Valkey, start_server: StartServer, wait: str, before: str
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
        waiter.send(*wait.split())
        wait_for_blocked(client, 1)
        assert wire(b"reserve-job 1\r\n").startswith(b"RESERVED 1")
        assert b"m" in str(waiter.reply(SOON)).encode()


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
