"""Jobs over RESP: owners, rare states, dead servers, unique jobs, refusals; the simulator does the rest."""

import signal
from typing import Any

import pytest

from pressure_server.client import Queue
from tests.support.programs import Client, Server, StartServer, Valkey, run_command, wait_for
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, Words, about, create, wait_for_blocked


def put(client: Client, message: str, *options: Words | str | float) -> Any:
    return client.execute_command("PRESSURE.PUT", "q", message, *options)


def messages(reply: Any) -> list[bytes]:
    """Return the messages of a reply of PRESSURE.RESERVE with COUNT."""
    return [message for _, _, message, _ in reply or []]


@pytest.mark.parametrize("names", [("q", "r"), ("r", "q")])
def test_a_job_whose_delay_has_ended_unnoticed_may_be_the_best_of_several_queues(
    client: Client, direct: Client, worker: Waiter, names: Words
) -> None:
    create(client, "q")
    create(client, "r")
    older = client.execute_command("PRESSURE.PUT", "r", "older", "DELAY", 60)
    put(client, "newer", "PRIORITY", 1024)
    (member,) = direct.zrange("__pressure__:r:ext:delayed", 0, -1)
    direct.zadd("__pressure__:r:ext:delayed", {member: 1}, xx=True)
    assert worker("PRESSURE.RESERVE", *names) == [b"r", older, b"older", 1]
    assert worker("PRESSURE.RESERVE", *names)[2] == b"newer"


@pytest.mark.parametrize("names", [("q", "dead"), ("dead", "q")])
def test_a_job_that_has_just_become_a_dead_letter_may_be_the_best_of_several_queues(
    client: Client, direct: Client, worker: Waiter, names: Words
) -> None:
    create(client, "dead", "TYPE", "JOBS")
    create(client, "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    put(client, "m", "PRIORITY", 1)
    assert worker("PRESSURE.RESERVE", "q", "TTR", 60)[2] == b"m"
    (member,) = direct.zrange("__pressure__:q:ext:reserved", 0, -1)
    direct.zadd("__pressure__:q:ext:reserved", {member: 1}, xx=True)
    name, _, message, _ = worker("PRESSURE.RESERVE", *names)
    assert (name, message) == (b"dead", b"m")


def test_a_kick_makes_buried_jobs_ready_then_delayed_ones(worker: Waiter) -> None:
    series: Series = [
        ("PRESSURE.CREATE q TYPE JOBS", b"OK"),
        ("RPUSH q a b c", 3),
        ("PRESSURE.PUT q later DELAY 100", 4),
        ("PRESSURE.RESERVE q COUNT 3", [[b"q", 1, b"a", 1], [b"q", 2, b"b", 1], [b"q", 3, b"c", 1]]),
        ("PRESSURE.BURY q 2", 1),
        ("PRESSURE.BURY q 1", 1),
        ("PRESSURE.PEEK q BURIED", [2, b"b"]),
        ("PRESSURE.KICK q 1", 1),
        ("PRESSURE.PEEK q READY", [2, b"b"]),
        ("PRESSURE.KICK q 5", 1),
        ("PRESSURE.KICK q 5", 1),
        ("PRESSURE.PEEK q DELAYED", None),
        ("PRESSURE.KICK q 5", 0),
    ]
    run_series(worker, series)


@pytest.mark.parametrize(
    ("options", "target"),
    [("TYPE JOBS", "q"), ("", "q"), ("MAX-DELIVERIES 1 DEAD-LETTER dead", "dead")],
    ids=["jobs", "list", "dead_letters"],
)
def test_jobs_of_a_server_that_is_killed_are_ready_again(
    backend: Valkey, start_server: StartServer, options: str, target: str
) -> None:
    doomed = start_server("--backend", backend.url, "--proxy-timeout", "1")
    with doomed.client() as client, Waiter(doomed.port) as worker:
        create(client, "q", *options.split())
        client.rpush("q", *range(4))
        assert worker("PRESSURE.RESERVE", "q", "DETACHED", "kept")[2] == b"0"
        found = worker("PRESSURE.RESERVE", "q", "COUNT", 2)
        assert [message for _, _, message, _ in found] == [b"1", b"2"]
        doomed.process.kill()
    other = start_server("--backend", backend.url, "--proxy-timeout", "1")
    expected = [b"1", b"2"] if target == "dead" else [b"1", b"2", b"3"]
    with other.client() as client:
        wait_for(lambda: client.lrange(target, 0, -1) == expected, "the jobs to be back")
        assert client.execute_command("PRESSURE.ACK", "q", 1, "TOKEN", "kept") == 1


def test_messages_of_a_fifo_that_becomes_a_queue_of_jobs_keep_their_order(client: Client) -> None:
    client.rpush("q", *range(5000))
    client.execute_command("PRESSURE.PAUSE", "q", 60)
    assert about(client, "q")[b"ready"] == 5000
    client.execute_command("PRESSURE.PAUSE", "q", 0)
    put(client, "urgent", "PRIORITY", 1)
    put(client, "late", "PRIORITY", 5000)
    expected = [b"urgent", *(b"%d" % number for number in range(5000)), b"late"]
    assert client.lpop("q", 6000) == expected


def test_a_reservation_that_was_not_delivered_ends_no_later_one_of_its_consumer(
    client: Client, worker: Waiter, server: Server
) -> None:
    create(client, "q")
    # More than the kernel accepts for a client that does not read.
    job = put(client, "x" * 8_000_000, "TTR", 0.2)
    with Waiter(server.port) as leaving:
        leaving.send("PRESSURE.RESERVE", "q", "DETACHED", "ann")
        wait_for(leaving.has_reply, "the reply to begin")
        wait_for(lambda: client.scard("q") == 1, "the reservation to end")
        assert worker("PRESSURE.RESERVE", "q", "DETACHED", "ann", "TTR", 60)[3] == 2
    wait_for(lambda: client.info("clients")["connected_clients"] == 2, "the client to be gone")
    assert client.scard("q") == 0
    assert worker("PRESSURE.ACK", "q", job, "TOKEN", "ann") == 1


def test_a_job_without_a_place_for_dead_letters_is_buried(client: Client, worker: Waiter) -> None:
    create(client, "q", "MAX-DELIVERIES", 1)
    create(client, "closed", "MAX-DELIVERIES", 1, "DEAD-LETTER", "full")
    create(client, "full")
    client.execute_command("PRESSURE.CLOSE", "full")
    for queue in ("q", "closed"):
        job = client.execute_command("PRESSURE.PUT", queue, "m", "PRIORITY", 5)
        assert worker("PRESSURE.RESERVE", queue)[1] == job
        assert worker("PRESSURE.RELEASE", queue, job) == 1
        assert client.execute_command("PRESSURE.JOB", queue, job)[b"state"] == b"buried"
        assert client.execute_command("PRESSURE.KICK", queue) == 1
        assert worker("PRESSURE.RESERVE", queue)[1] == job


@pytest.mark.parametrize("unique", ["QUEUED", "UNFINISHED"])
def test_an_equal_job_is_not_put_into_a_queue_of_unique_jobs(
    client: Client, worker: Waiter, unique: str
) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "UNIQUE", unique)
    first = put(client, "m", "PRIORITY", 5)
    assert put(client, "m", "DELAY", 5) == first
    assert client.sadd("q", "m", "other") == 1
    assert client.lpush("q", "m", "m") == 2
    assert client.llen("q") == 2
    assert worker("PRESSURE.RESERVE", "q")[1] == first
    if unique == "UNFINISHED":
        assert put(client, "m", "PRIORITY", 5) == first
        assert worker("PRESSURE.BURY", "q", first) == 1
        assert client.sadd("q", "m") == 0
    else:
        second = put(client, "m", "PRIORITY", 5)
        assert second != first
        assert worker("PRESSURE.RELEASE", "q", first) == 1
        assert client.execute_command("PRESSURE.ACK", "q", second) == 1
        assert put(client, "m", "PRIORITY", 5) == first
    assert client.execute_command("PRESSURE.ACK", "q", first) == 1
    assert put(client, "m", "PRIORITY", 5) not in (first, None)


def test_each_push_into_a_queue_of_unique_jobs_returns_the_length_after_it(client: Client) -> None:
    create(client, "q", "UNIQUE", "QUEUED", "BOUND", 9, "OVERFLOW", "error")
    with client.pipeline(transaction=False) as pipeline:
        for messages in ("a", "ab", "b", "bacdc", "e", "abcdefgh", "f"):
            pipeline.rpush("q", *messages)
        *lengths, full, last = pipeline.execute(raise_on_error=False)
    assert (lengths, last) == ([1, 2, 2, 4, 5], 6)
    assert str(full).startswith("FULL ")


def test_names_make_jobs_unique(client: Client, direct: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "UNIQUE", "QUEUED")
    first = put(client, "a", "UNIQUE-BY", "x" * 100)
    assert put(client, "b", "UNIQUE-BY", "x" * 100) == first
    assert put(client, "b", "UNIQUE-BY", "") != first
    assert client.execute_command("PRESSURE.ACK", "q", first) == 1
    assert put(client, "c", "UNIQUE-BY", "x" * 100) > first
    assert client.spop("q") == b"b"
    assert client.spop("q") == b"c"
    assert not direct.exists("__pressure__:q:ext:single", "__pressure__:q:ext:jobs")


REFUSED: Series = [
    ("PRESSURE.CREATE fifo TYPE FIFO", b"OK"),
    ("PRESSURE.CREATE q", b"OK"),
    *refusals("ERR ", "RESERVE q", "TTR x", "TTR", "COUNT 0", "COUNT 1001", "DETACHED ''"),
    *refusals("ERR ", "ACK q", "-1", "1 TOKEN"),
    *refusals("ERR ", "RELEASE q 1", "PRIORITY 4294967296", "DELAY -1"),
    *refusals("ERR ", "PUT q m", "PRIORITY -1", "PRIORITY 1 NX", "DELAY 4294967296"),
    *refusals("ERR ", "PEEK q", "nothing"),
    *refusals("ERR ", "KICK q", "-1"),
    *refusals("ERR syntax error", "CREATE new", "TYPE RING"),
    *refusals("ERR UNIQUE needs TYPE JOBS", "CREATE new", "TYPE FIFO UNIQUE QUEUED"),
    *refusals("ERR DEAD-LETTER needs MAX-DELIVERIES", "CREATE new", "DEAD-LETTER d"),
    *refusals("ERR a queue cannot be its own", "CREATE new", "MAX-DELIVERIES 1 DEAD-LETTER new"),
    *refusals("ERR count should be greater than 0", "CREATE new", "MAX-DELIVERIES 0"),
    *refusals("TYPE queue 'fifo' was created as a fifo", "PUT fifo m", "PRIORITY 1"),
    *refusals("TYPE queue 'fifo' was created as a fifo", "PAUSE fifo", "1"),
    *refusals("TYPE queue 'q' was not created with UNIQUE", "PUT q m", "UNIQUE-BY x"),
    *refusals("ERR NX cannot be combined", "PUT q m", "UNIQUE NX"),
    ("PRESSURE.EXISTS new", 0),
    ("LLEN q", 0),
]


def test_what_a_command_or_a_type_of_queue_cannot_do_is_refused(worker: Waiter) -> None:
    run_series(worker, REFUSED)


def test_the_doctor_counts_jobs(backend: Valkey, client: Client, worker: Waiter, direct: Client) -> None:
    create(client, "q")
    client.lpush("q", "a", "b", "c")
    put(client, "d", "DELAY", 100)
    assert messages(worker("PRESSURE.RESERVE", "q", "COUNT", 2)) == [b"a", b"b"]
    assert worker("PRESSURE.BURY", "q", 1) == 1
    client.rpush("listed", "a")
    assert worker("PRESSURE.RESERVE", "listed")[2] == b"a"
    doctor = ("doctor", "--backend", backend.url, "--wait", "0.2")
    assert run_command(*doctor).stdout == "2 queues checked: no problems\n"
    direct.decrby("__pressure__:q:stats:produced_messages", 3)
    assert "produced - consumed is 1, but there are 4 messages" in run_command(*doctor, "--repair").stdout
    assert run_command(*doctor).stdout == "2 queues checked: no problems\n"
    assert client.spop("q") == b"c"


def test_the_included_native_client_puts_and_gets_jobs(
    backend: Valkey, client: Client, direct: Client
) -> None:
    create(client, "q")
    assert put(client, "a", "PRIORITY", 9) == 1
    with Queue("q", backend.url) as queue:
        queue.put("b")
        assert client.execute_command("PRESSURE.PEEK", "q", 2) == [2, b"b"]
        assert queue.length() == 2
        assert [queue.get(), queue.get()] == [b"a", b"b"]
    assert set(direct.hgetall("__pressure__!blocks").values()) == {b"__pressure__:q"}
    assert not direct.keys("__pressure__:q:ext:jobs")


def test_a_client_may_wait_for_many_queues(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url)
    names = [f"q{number}" for number in range(600)]
    with server.client() as client, Waiter(server.port) as waiter:
        for name in names[:3]:
            create(client, name)
        client.execute_command("PRESSURE.PAUSE", names[0], 100)
        client.execute_command("PRESSURE.PUT", names[0], "paused", "PRIORITY", 1)
        waiter.send("PRESSURE.RESERVE", *names, "TIMEOUT", 20)
        wait_for_blocked(client, 1)
        client.execute_command("PRESSURE.PUT", names[1], "late", "DELAY", 0.1)
        assert waiter.reply()[:3:2] == [names[1].encode(), b"late"]
        client.rpush(names[-1], "listed")
        client.execute_command("PRESSURE.PUT", names[2], "urgent", "PRIORITY", 1023)
        assert [waiter("PRESSURE.RESERVE", *names)[2] for _ in range(2)] == [b"urgent", b"listed"]
        assert waiter("PRESSURE.RESERVE", *names) is None
        assert waiter("PRESSURE.RESERVE", *names, "TIMEOUT", 0.05) is None
        waiter.send("PRESSURE.RESERVE", *names, "TIMEOUT", 0)
        wait_for_blocked(client, 1)
        server.process.send_signal(signal.SIGTERM)
        assert waiter.ends_without_reply()


@pytest.mark.parametrize(
    ("words", "state", "deliverable"),
    [
        (("PRESSURE.ACK", "q", 1), None, False),
        (("PRESSURE.RELEASE", "q", 1), b"ready", True),
        (("PRESSURE.RELEASE", "q", 1, "DELAY", 9), b"delayed", False),
        (("PRESSURE.BURY", "q", 1), b"buried", False),
        (("PRESSURE.TOUCH", "q", 1), b"reserved", False),
    ],
)
def test_only_the_owner_may_end_a_reservation(
    client: Client, worker: Waiter, words: Words, state: bytes | None, deliverable: bool
) -> None:
    create(client, "q")
    put(client, "m", "PRIORITY", 7)
    assert worker("PRESSURE.RESERVE", "q") == [b"q", 1, b"m", 1]
    assert client.execute_command(*words) == 0
    assert worker(*words) == 1
    about = client.execute_command("PRESSURE.JOB", "q", 1)
    assert (about[b"state"] if about else None) == state
    assert (worker("PRESSURE.RESERVE", "q") is not None) == deliverable


def test_a_unique_put_returns_the_id_of_the_queued_job(client: Client) -> None:
    create(client, "q")
    client.lpush("q", "old")
    first = put(client, "m", "UNIQUE")
    assert put(client, "m", "UNIQUE") == first
    assert put(client, "old", "UNIQUE", "PRIORITY", 3) == first - 1
    assert put(client, "m", "PRIORITY", 3) > first
    assert client.llen("q") == 3


def test_sets_and_lists_work_on_a_queue_of_jobs(worker: Waiter, client: Client) -> None:
    create(client, "q")
    put(client, "urgent", "PRIORITY", 1)
    put(client, "later", "DELAY", 100)
    series: Series = [
        ("SADD q plain urgent later", 1),
        ("SCARD q", 3),
        ("SMEMBERS q", [b"urgent", b"plain", b"later"]),
        ("SMISMEMBER q later none", [1, 0]),
        ("SREM q later", 1),
        ("LPOP q", b"urgent"),
        ("SPOP q", b"plain"),
        ("SPOP q", None),
    ]
    run_series(worker, series)
    found = about(client, "q")
    assert (found[b"type"], found[b"produced_messages"], found[b"consumed_messages"]) == (b"jobs", 3, 3)
