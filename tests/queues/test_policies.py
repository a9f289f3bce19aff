"""Policies of queues of jobs: retry delays, jobs in flight, and the rate at which jobs are taken."""

import time

import pytest

from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, about, create, packed, wait_for_waiting

TYPES = ["TYPE JOBS", "TYPE LIFO", "TYPE RANDOM", ""]


shared_server = module_server(*LISTEN)


def delays(client: Client, job: int) -> float:
    """Return for how many seconds the job is delayed; 0 if it is not."""
    found = client.execute_command("PRESSURE.JOB", "q", job)
    return float(found[b"time_left_ms"]) / 1000 if found[b"state"] == b"delayed" else 0


def fail(server: Server, how: str) -> int:
    """Let the reservation of the next job fail; return the job's id."""
    with Waiter(server.port) as worker:
        ttr = ("TTR", "0.01") if how == "TTR" else ()
        _, job, _, _ = worker("PRESSURE.RESERVE", "q", "TIMEOUT", 10, *ttr)
        if how == "release":
            assert worker("PRESSURE.RELEASE", "q", job) == 1
        elif how == "TTR":
            with server.client() as client:
                wait_for(lambda: about(client, "q")[b"delayed"] == 1, "the reservation to end")
    return int(job)


@pytest.mark.parametrize("how", ["release", "TTR", "leave"])
@pytest.mark.parametrize("options", TYPES)
def test_a_failed_job_is_tried_again_later(server: Server, client: Client, options: str, how: str) -> None:
    create(client, "q", *options.split(), "RETRY-DELAY", 100)
    client.rpush("q", "m")
    job = fail(server, how)
    wait_for(lambda: about(client, "q")[b"delayed"] == 1, "the job to be delayed")
    assert 80 < delays(client, job) <= 110


def test_the_delay_doubles_up_to_the_maximum(server: Server, client: Client) -> None:
    create(client, "q", "RETRY-DELAY", 100, "RETRY-DELAY-MAX", 500)
    client.rpush("q", "m")
    for expected in (100, 200, 400, 500, 500):
        job = fail(server, "release")
        assert 0.88 * expected < delays(client, job) <= 1.1 * expected
        client.execute_command("PRESSURE.KICK", "q")


def test_a_delay_that_the_worker_says_stays(client: Client, waiter: Waiter) -> None:
    create(client, "q", "RETRY-DELAY", 100)
    client.rpush("q", "m")
    for delay in (0, 7):
        _, job, _, _ = waiter("PRESSURE.RESERVE", "q")
        assert waiter("PRESSURE.RELEASE", "q", job, "DELAY", delay) == 1
        assert delay - 2 < delays(client, job) <= delay


def test_a_retry_delay_comes_before_the_dead_letters(server: Server, client: Client) -> None:
    create(client, "q", "RETRY-DELAY", "0.01", "MAX-DELIVERIES", 3, "DEAD-LETTER", "dead")
    client.rpush("q", "poison")
    for _ in range(3):
        fail(server, "release")
    wait_for(lambda: client.llen("dead") == 1, "the dead letter")


@pytest.mark.parametrize("options", TYPES)
def test_no_more_jobs_are_in_flight(server: Server, client: Client, waiter: Waiter, options: str) -> None:
    create(client, "q", *options.split(), "IN-FLIGHT", 2)
    client.rpush("q", *"abcde")
    first, second = waiter("PRESSURE.RESERVE", "q", "COUNT", 5)
    assert waiter("PRESSURE.RESERVE", "q") is None
    assert waiter("SPOP", "q") is None
    assert client.llen("q") == 3
    with Waiter(server.port) as other, Waiter(server.port) as third:
        for one in (other, third):
            one.send("PRESSURE.RESERVE", "q", "TIMEOUT", 30)
        wait_for_waiting(client, "q", consumers=2)
        assert waiter("PRESSURE.ACK", "q", first[1]) == 1
        wait_for(lambda: other.has_reply() or third.has_reply(), "one of them to get a job")
        assert about(client, "q")[b"reserved"] == 2
        assert waiter("PRESSURE.BURY", "q", second[1]) == 1
        assert [one.reply()[0] for one in (other, third)] == [b"q", b"q"]


def test_pops_that_keep_their_messages_are_in_flight(server: Server, client: Client) -> None:
    create(client, "q", "IN-FLIGHT", 1, "ACK", "NEXT")
    client.rpush("q", *"abc")
    with Waiter(server.port) as one, Waiter(server.port) as other:
        assert one("SPOP", "q") == b"a"
        other.send("BLPOP", "q", 0)
        wait_for_waiting(client, "q", consumers=1)
        one.close()
        assert other.reply() == [b"q", b"a"]
        assert other("SPOP", "q") == b"b"


def test_workers_that_wait_for_a_job_in_flight_come_first(
    server: Server, client: Client, waiter: Waiter
) -> None:
    create(client, "q", "IN-FLIGHT", 1)
    client.rpush("q", *range(20))
    _, job, message, _ = waiter("PRESSURE.RESERVE", "q")
    with Waiter(server.port) as other:
        for _ in range(3):
            other.send("PRESSURE.RESERVE", "q", "TIMEOUT", 0)
            wait_for_waiting(client, "q", consumers=1)
            # One worker asks for its next job along with its acknowledgement.
            waiter.socket.sendall(
                packed("PRESSURE.ACK", "q", job) + packed("PRESSURE.RESERVE", "q", "TIMEOUT", 0)
            )
            assert waiter.reply() == 1
            found = other.reply()
            assert found[2] == b"%d" % (int(message) + 1)
            other.socket.sendall(packed("PRESSURE.ACK", "q", found[1]))
            assert other.reply() == 1
            _, job, message, _ = waiter.reply()


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_in_flight_of_two_servers(
    backend: Valkey, start_server: StartServer, server: Server, client: Client, count: int
) -> None:
    second = start_server("--backend", backend.url)
    create(client, "q", "IN-FLIGHT", count)
    client.rpush("q", *"abc")
    with Waiter(server.port) as one, Waiter(second.port) as other:
        found = one("PRESSURE.RESERVE", "q", "COUNT", 3)
        assert len(found) == count
        other.send("PRESSURE.RESERVE", "q", "TIMEOUT", 30)
        with second.client() as its:
            wait_for_waiting(its, "q", consumers=1)
        assert one("PRESSURE.ACK", "q", found[0][1]) == 1
        assert other.reply()[2] == b"abc"[count : count + 1]


def test_tubes_with_a_limit_of_jobs_in_flight(server: Server, client: Client) -> None:
    create(client, "one", "IN-FLIGHT", 1)
    create(client, "two", "IN-FLIGHT", 1)
    for queue in ("one", "two"):
        client.rpush(queue, *"ab")
    with Wire(BEANSTALK, server) as worker, Wire(BEANSTALK, server) as other:
        for wire in (worker, other):
            wire.ask(b"watch one", b"watch two", b"ignore default")
        (first, _), (_, _) = (worker.ask(b"reserve-with-timeout 0", lines=2) for _ in range(2))
        assert worker.ask(b"reserve-with-timeout 0") == [b"TIMED_OUT"]
        other.send(b"reserve-with-timeout 30\r\n")
        wait_for_waiting(client, "one", consumers=1)
        assert worker.ask(b"delete %b" % first.split()[1]) == [b"DELETED"]
        assert other.reply().startswith(b"RESERVED")


@pytest.mark.parametrize("command", [("BLPOP", "q", "30"), ("PRESSURE.RESERVE", "q", "TIMEOUT", "30")])
def test_a_rate_is_kept(client: Client, waiter: Waiter, command: tuple[str, ...]) -> None:
    create(client, "q", "RATE", "5/0.5")
    client.rpush("q", *range(10))
    began = time.monotonic()
    for _ in range(10):
        assert waiter(*command)
    assert time.monotonic() - began >= 0.45
    assert waiter("SPOP", "q") is None


def test_a_rate_is_used_up_in_one_transaction(client: Client) -> None:
    create(client, "q", "RATE", "3/100000000")
    client.rpush("q", *"abcd")
    pipeline = client.pipeline()
    assert pipeline.spop("q", 2).spop("q").spop("q").execute() == [[b"a", b"b"], b"c", None]


def test_a_rate_holds_for_several_queues_and_counts(client: Client, waiter: Waiter) -> None:
    create(client, "q", "RATE", "3/100")
    create(client, "p", "RATE", "1/0.2")
    client.rpush("q", *"abcde")
    client.rpush("p", *"xyz")
    assert waiter("SPOP", "q", 5) == [b"a", b"b", b"c"]
    assert waiter("SPOP", "q", 5) == []
    assert [waiter("PRESSURE.RESERVE", "q", "p", "TIMEOUT", 30)[2] for _ in range(3)] == [b"x", b"y", b"z"]
    assert client.execute_command("PRESSURE.ALTER", "q", "RATE", 0) == b"OK"
    assert waiter("SPOP", "q") == b"d"


def test_a_rate_that_is_altered_begins_anew(client: Client, waiter: Waiter) -> None:
    create(client, "q", "RATE", "1/3600")
    client.rpush("q", *range(500))
    assert waiter("SPOP", "q") == b"0"
    assert waiter("SPOP", "q") is None
    client.execute_command("PRESSURE.ALTER", "q", "RATE", "10/1")
    assert waiter("LPOP", "q", 3) == [b"1", b"2", b"3"]
    assert client.llen("q") == 496


@pytest.mark.parametrize("options", ["RETRY-DELAY 5", "IN-FLIGHT 9", "RATE 1/3600"])
def test_a_rate_goes_on_when_other_settings_are_altered(client: Client, waiter: Waiter, options: str) -> None:
    create(client, "q", "RATE", "1/3600")
    client.rpush("q", "a", "b")
    assert waiter("SPOP", "q") == b"a"
    client.execute_command("PRESSURE.ALTER", "q", *options.split())
    assert waiter("SPOP", "q") is None


def test_the_clock_of_the_backend_goes_back(client: Client, waiter: Waiter, direct: Client) -> None:
    create(client, "q", "RATE", "10/1")
    client.rpush("q", *range(500))
    assert waiter("SPOP", "q") == b"0"
    settings = "__pressure__:q:ext:settings"
    direct.hset(settings, "rate_until", str(float(direct.hget(settings, "rate_until") or 0) + 86_400_000))
    assert waiter("LPOP", "q", 1) is None
    assert waiter("BLPOP", "q", 30) == [b"q", b"1"]
    assert client.llen("q") == 498


@pytest.mark.parametrize("rate", ["700/0.5", "3000/0.5"])
def test_a_high_rate_is_kept(client: Client, waiter: Waiter, rate: str) -> None:
    create(client, "q", "RATE", rate)
    client.rpush("q", *range(20_000))
    began = time.monotonic()
    taken = 0
    while time.monotonic() < began + 0.5:
        taken += waiter("SPOP", "q") is not None
    elapsed = time.monotonic() - began
    per_second = int(rate.split("/")[0]) / 0.5
    assert taken <= (elapsed + 0.5) * per_second + 1


@pytest.mark.parametrize(
    "words", ["RETRY-DELAY 0", "RETRY-DELAY 0 RATE 5/1", "IN-FLIGHT 2 RATE 0", "RATE 0/5"]
)
def test_zero_is_no_policy(client: Client, waiter: Waiter, words: str) -> None:
    create(client, "q", *words.split())
    client.rpush("q", "a")
    assert about(client, "q")[b"retry_delay_ms"] == 0
    assert waiter("SPOP", "q") == b"a"


def test_policies_can_be_altered(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "q")
    client.rpush("q", *"abc")
    client.execute_command("PRESSURE.ALTER", "q", "IN-FLIGHT", 1, "RETRY-DELAY", 5, "RATE", "9/2")
    found = about(client, "q")
    assert [found[name] for name in (b"in_flight", b"retry_delay_ms", b"rate", b"type")] == [
        1, 5000, b"9/2000ms", b"jobs",
    ]  # fmt: skip
    assert waiter("PRESSURE.RESERVE", "q")
    with Waiter(server.port) as other:
        other.send("PRESSURE.RESERVE", "q", "TIMEOUT", 30)
        wait_for_waiting(client, "q", consumers=1)
        client.execute_command("PRESSURE.ALTER", "q", "IN-FLIGHT", 0, "RETRY-DELAY", 0, "RATE", "0")
        assert other.reply()[2] == b"b"
    found = about(client, "q")
    assert [found[name] for name in (b"in_flight", b"retry_delay_ms", b"rate")] == [0, 0, b""]


def test_bad_options(worker: Waiter) -> None:
    series: Series = [
        *refusals("ERR count should be greater than 0", "CREATE q IN-FLIGHT", "0", "x"),
        *refusals("ERR a rate is count/seconds", "CREATE q RATE", "0/0", "5/0", "-1/5", "x"),
        *refusals("ERR timeout is not a float", "CREATE q", "RATE 5/x"),
        *refusals("ERR a retry delay is at most ten years", "CREATE q", "RETRY-DELAY 315360001"),
        *refusals("ERR timeout is negative", "CREATE q RETRY-DELAY", "-1"),
        *refusals("ERR RETRY-DELAY-MAX needs RETRY-DELAY", "CREATE q", "RETRY-DELAY-MAX 5"),
        *refusals("ERR RETRY-DELAY needs TYPE JOBS", "CREATE q", "RETRY-DELAY 5 TYPE FIFO"),
        *refusals("ERR IN-FLIGHT needs TYPE JOBS", "CREATE q", "IN-FLIGHT 5 TYPE LOG"),
        *refusals("ERR RATE needs TYPE JOBS", "CREATE q", "RATE 5/1 TYPE LOG"),
        ("PRESSURE.CREATE q TYPE LOG", b"OK"),
        ("PRESSURE.GROUP CREATE q g", b"OK"),
        *refusals("TYPE ", "ALTER q", "RETRY-DELAY 5", "IN-FLIGHT 2", "RATE 5/1"),
        *refusals("TYPE ", "ALTER q+g", "RETRY-DELAY 5", "IN-FLIGHT 2", "RATE 5/1"),
    ]
    run_series(worker, series)
