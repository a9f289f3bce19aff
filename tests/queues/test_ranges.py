"""Ranges: messages that a consumer of a group has read together, and what happens to some or all of them."""

from typing import Any

import pytest

from tests.support.neighbours import doctor
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, create


@pytest.fixture(autouse=True)
def log(client: Client) -> None:
    create(client, "q", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "q", "g")


@pytest.fixture
def connection(server: Server) -> Any:
    with Waiter(server.port) as waiter:
        yield waiter


def put(client: Client, count: int) -> None:
    client.rpush("q", *range(count))


def read(waiter: Waiter, consumer: str, count: int, *options: str | float) -> list[Any]:
    return waiter("PRESSURE.READ", "q", "GROUP", "g", consumer, "COUNT", count, *options) or []


def numbers_of(found: list[Any]) -> list[int]:
    """Return the numbers that are the messages of a reply."""
    return [int(message) for _, message, _, _ in found]


def pending(waiter: Waiter, *options: str | int) -> list[tuple[int, bytes, int]]:
    """Return (number of jobs, consumer, deliveries) of each entry."""
    found = waiter("PRESSURE.PENDING", "q+g", *options)
    return [(last - first + 1, consumer, reserves) for first, last, _, consumer, _, reserves in found]


def described(client: Client) -> dict[bytes, Any]:
    (only,) = client.execute_command("PRESSURE.GROUP", "LIST", "q")
    return dict(only)


def test_a_transaction_sees_the_first_thousand_reservations(connection: Waiter, client: Client) -> None:
    put(client, 1001)
    with client.pipeline(transaction=False) as pipe:
        for consumer in ["bob", "ann"] * 500 + ["eve"]:
            pipe.execute_command("PRESSURE.READ", "q", "GROUP", "g", consumer)
        pipe.execute()
    assert len(pending(connection, "CONSUMER", "eve")) == 1
    connection("MULTI")
    for consumer in ("bob", "eve"):
        connection("PRESSURE.PENDING", "q+g", "CONSUMER", consumer, "COUNT", 1000)
    assert [len(found) for found in connection("EXEC")] == [500, 0]


def test_what_a_dead_consumer_had_read_is_read_by_others_when_its_time_is_up(
    connection: Waiter, client: Client
) -> None:
    put(client, 1100)
    ids = [found[0] for found in read(connection, "dead", 1000, "TTR", 0.3)]
    assert connection("PRESSURE.ACK", "q+g", "FROM", ids[0], "TO", ids[499], "TOKEN", "dead") == 500
    assert described(client)[b"pending"] == 500
    assert numbers_of(read(connection, "bob", 100)) == [*range(1000, 1100)]
    found: list[Any] = []
    while len(found) < 500:
        found += read(connection, "bob", 1000, "TIMEOUT", 5)
    assert [(number, reserves, offset) for number, _, reserves, offset in found] == [
        (ids[offset], 2, offset) for offset in range(500, 1000)
    ]
    assert numbers_of(found) == [*range(500, 1000)]
    assert connection("PRESSURE.ACK", "q+g", *[number for number, _, _, _ in found], "TOKEN", "bob") == 500
    assert described(client)[b"offset"] == 1000


def test_events_of_some_messages_split_a_range(connection: Waiter, client: Client) -> None:
    put(client, 10)
    ids = [found[0] for found in read(connection, "ann", 10)]
    assert pending(connection) == [(10, b"ann", 1)]
    assert connection("PRESSURE.RELEASE", "q+g", ids[3], "TOKEN", "ann") == 1
    assert connection("PRESSURE.BURY", "q+g", ids[6], "TOKEN", "ann") == 1
    assert pending(connection) == [(3, b"ann", 1), (2, b"ann", 1), (3, b"ann", 1)]
    assert read(connection, "bob", 5) == [[ids[3], b"3", 2, 3]]
    assert connection("PRESSURE.ACK", "q+g", ids[1], ids[8], "TOKEN", "ann") == 2
    of_all = ("PRESSURE.ACK", "q+g", "FROM", ids[0], "TO", ids[9], "TOKEN")
    assert connection(*of_all, "carl") == 1  # the one that is buried
    assert connection(*of_all, "ann") == 6
    assert pending(connection) == [(1, b"bob", 2)]
    assert described(client)[b"offset"] == 3


def test_a_message_of_a_range_is_described_like_any_job(connection: Waiter, client: Client) -> None:
    put(client, 3)
    ids = [found[0] for found in read(connection, "ann", 3, "TTR", 30)]
    about = connection("PRESSURE.JOB", "q+g", ids[1])
    fields = dict(zip(about[::2], about[1::2], strict=True))
    assert fields[b"state"] == b"reserved"
    assert 29_000 < fields[b"time_left_ms"] <= fields[b"ttr_ms"] == 30_000
    assert connection("PRESSURE.PEEK", "q+g", ids[1]) == [ids[1], b"1"]
    assert pending(connection) == [(3, b"ann", 1)]


def test_a_consumer_takes_over_what_another_has_left(connection: Waiter, client: Client) -> None:
    put(client, 100)
    read(connection, "ann", 100)
    assert connection("PRESSURE.CLAIM", "q+g", "bob", "IDLE", 1000) is None
    found = connection("PRESSURE.CLAIM", "q+g", "bob", "COUNT", 70, "TTR", 5)
    assert numbers_of(found) == [*range(70)]
    assert {reserves for _, _, reserves, _ in found} == {2}
    assert pending(connection) == [(64, b"bob", 2), (6, b"bob", 2), (30, b"ann", 1)]
    assert pending(connection, "CONSUMER", "ann") == [(30, b"ann", 1)]
    assert pending(connection, "COUNT", 1) == [(64, b"bob", 2)]
    assert connection("PRESSURE.ACK", "q+g", found[0][0], "TOKEN", "ann") == 0
    assert connection("PRESSURE.ACK", "q+g", found[0][0], "TOKEN", "bob") == 1


def test_what_has_been_delivered_often_enough_is_not_taken_over(connection: Waiter, client: Client) -> None:
    create(client, "failed")
    client.execute_command("PRESSURE.ALTER", "q+g", "MAX-DELIVERIES", 1, "DEAD-LETTER", "failed")
    put(client, 3)
    read(connection, "ann", 3)
    assert connection("PRESSURE.CLAIM", "q+g", "bob", "COUNT", 9) is None
    assert client.lrange("failed", 0, -1) == [b"0", b"1", b"2"]
    assert client.llen("q") == 0


def test_jobs_of_any_queue_are_pending_and_taken_over(connection: Waiter, client: Client) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", "a", "b")
    first = connection("PRESSURE.RESERVE", "jobs")[1]
    second = connection("PRESSURE.RESERVE", "jobs", "DETACHED", "ann", "TTR", 0)[1]
    assert [entry[:4] for entry in connection("PRESSURE.PENDING", "jobs")] == [
        [first, first, None, None],
        [second, second, None, b"ann"],
    ]
    # The reservation of ann never ends, so nobody knows how long she has been idle.
    assert connection("PRESSURE.CLAIM", "jobs", "bob", "COUNT", 9) == [[first, b"a", 2, None]]
    assert connection("PRESSURE.ACK", "jobs", first) == 0


def test_a_client_that_hangs_up_gives_back_a_range(server: Server, client: Client) -> None:
    put(client, 100)
    with Waiter(server.port) as worker:
        assert len(worker("PRESSURE.RESERVE", "q+g", "COUNT", 100)) == 100
        assert described(client)[b"pending"] == 100
    wait_for(lambda: described(client)[b"pending"] == 0, "the reservations to end")
    with Waiter(server.port) as worker:
        found = read(worker, "bob", 1000)
    assert [(int(message), reserves) for _, message, reserves, _ in found] == [(n, 2) for n in range(100)]


def test_another_server_gives_back_the_ranges_of_a_dead_one(
    backend: Valkey, start_server: StartServer, client: Client, connection: Waiter
) -> None:
    doomed = start_server("--backend", backend.url, "--proxy-timeout", "2")
    put(client, 2000)
    with Waiter(doomed.port) as worker:
        assert len(worker("PRESSURE.RESERVE", "q+g", "COUNT", 1000)) == 1000
        assert len(read(connection, "ann", 500)) == 500
        doomed.process.kill()
    start_server("--backend", backend.url, "--proxy-timeout", "1")
    wait_for(lambda: described(client)[b"pending"] == 500, "the reservations of dead clients to end")
    assert numbers_of(read(connection, "bob", 1000)) == [*range(1000)]


def test_messages_of_a_range_that_a_ring_has_dropped_are_missed(connection: Waiter, client: Client) -> None:
    client.execute_command("PRESSURE.ALTER", "q", "BOUND", 10, "OVERFLOW", "OVERWRITE")
    put(client, 10)
    ids = [found[0] for found in read(connection, "ann", 6)]
    client.rpush("q", *range(10, 13))
    assert connection("PRESSURE.RELEASE", "q+g", ids[0], "TOKEN", "ann") == 0
    assert connection("PRESSURE.RELEASE", "q+g", ids[4], "TOKEN", "ann") == 1
    assert connection("PRESSURE.ACK", "q+g", ids[1], "TOKEN", "ann") == 1
    assert described(client)[b"missed"] == 1
    assert connection("PRESSURE.PEEK", "q+g", ids[2]) == [ids[2], b""]
    # Of what ann has left, the log has the last message only.
    assert connection("PRESSURE.CLAIM", "q+g", "bob", "COUNT", 9) == [[ids[5], b"5", 2, 5]]
    assert numbers_of(read(connection, "bob", 9)) == [3, 4, 6, 7, 8, 9, 10, 11, 12]
    assert described(client)[b"missed"] == 2


def test_the_doctor_and_the_metrics_count_messages_of_ranges(
    connection: Waiter, client: Client, backend: Valkey
) -> None:
    put(client, 100)
    ids = [found[0] for found in read(connection, "ann", 90)]
    connection("PRESSURE.ACK", "q+g", *ids[10:20], "TOKEN", "ann")
    about = connection("PRESSURE.INFO", "q+g")
    fields = dict(zip(about[::2], about[1::2], strict=True))
    assert fields[b"reserved"] == 80
    status, text = doctor(backend)
    assert (status, "2 queues checked: no problems" in text) == (0, True), text


def test_bad_words_are_refused(connection: Waiter) -> None:
    series: Series = [
        *refusals("ERR TO must be 0 to 63999 above FROM", "ACK q+g FROM", "1 TO 64001", "2 TO 1"),
        *refusals("ERR count should be", "ACK q+g FROM", "1 TO"),
        *refusals("ERR syntax error", "ACK q+g FROM", "1 TO 2 TOKEN"),
        *refusals("ERR too many entries", "PENDING q+g", "COUNT 1001"),
        *refusals("ERR syntax error", "PENDING q+g", "bob"),
        *refusals("ERR too many jobs", "CLAIM q+g bob", "COUNT 1001"),
        *refusals("ERR ", "CLAIM q+g bob", "IDLE -1"),
        *refusals("NOQUEUE ", "PENDING", "none"),
        ("PRESSURE.CLAIM none bob", None),
    ]
    run_series(connection, series)


def test_a_range_is_touched_in_part(connection: Waiter, client: Client) -> None:
    put(client, 4)
    ids = [found[0] for found in read(connection, "ann", 4, "TTR", 0.3)]
    assert connection("PRESSURE.TOUCH", "q+g", "FROM", ids[0], "TO", ids[1], "TOKEN", "bob") == 0
    found: list[Any] = []

    def others_are_back() -> bool:
        assert connection("PRESSURE.TOUCH", "q+g", "FROM", ids[1], "TO", ids[2], "TOKEN", "ann") == 2
        found.extend(read(connection, "bob", 9))
        return len(found) == 2

    wait_for(others_are_back, "the messages that are not touched")
    assert sorted(numbers_of(found)) == [0, 3]
