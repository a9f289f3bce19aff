"""The connection with which the transport for kombu and the broker for dramatiq reserve jobs."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from pressure_server.client.worker_connection import WorkerConnection, call_creating
from pressure_server.errors import PressureError
from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.waiters import about, create

Connect = Callable[[], WorkerConnection]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Return a function that opens a connection."""
    with ExitStack() as stack:

        def make() -> WorkerConnection:
            connection = WorkerConnection(server.url)
            stack.callback(connection.abort)
            return connection

        yield make


def _put(client: Client, *messages: str) -> None:
    create(client, "q", "TYPE", "JOBS")
    client.rpush("q", *messages)


def _job(connection: WorkerConnection, ttr: float = 0) -> int:
    found = connection.reserve(["q"], 0, ttr)
    assert found is not None
    return found[1].id


def _is_done(client: Client, job: int) -> bool:
    return client.execute_command("PRESSURE.JOB", "q", job) is None


def test_an_acknowledgement_leaves_with_the_next_request(connect: Connect, client: Client) -> None:
    _put(client, "a", "b")
    worker = connect()
    first = _job(worker)
    worker.end("PRESSURE.ACK", "q", first)
    assert _job(worker) == first + 1
    assert _is_done(client, first)


def test_an_acknowledgement_without_a_next_request_leaves_alone(connect: Connect, client: Client) -> None:
    _put(client, "a")
    worker = connect()
    job = _job(worker)
    worker.end("PRESSURE.ACK", "q", job)
    wait_for(lambda: _is_done(client, job), "the acknowledgement to arrive")


def test_a_connection_that_is_closed_acknowledges_first(connect: Connect, client: Client) -> None:
    _put(client, "a")
    worker = connect()
    job = _job(worker)
    worker.end("PRESSURE.ACK", "q", job)
    worker.close()
    assert _is_done(client, job)
    with pytest.raises(redis.ConnectionError, match="has ended"):
        worker.end("PRESSURE.ACK", "q", job)


def test_an_acknowledgement_that_comes_too_late_is_logged(
    connect: Connect, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    _put(client, "a")
    slow, other = connect(), connect()
    job = _job(slow, ttr=0.05)
    assert other.reserve(["q"], TIMEOUT, 0) is not None
    slow.end("PRESSURE.ACK", "q", job)
    assert slow.call("PING") == b"PONG"
    assert f"job {job} of queue 'q' is not reserved here" in caplog.text
    assert not _is_done(client, job)


def test_an_acknowledgement_that_fails_ends_the_connection(connect: Connect, client: Client) -> None:
    _put(client, "a")
    worker = connect()
    job = _job(worker)
    worker.end("PRESSURE.ACK", "q", -1)
    with pytest.raises(PressureError, match="greater than 0"):
        worker.call("PING")
    wait_for(lambda: client.llen("q") == 1, "the job to return")
    with pytest.raises(redis.ConnectionError, match="has ended"):
        worker.end("PRESSURE.ACK", "q", job)


def test_a_forked_process_leaves_the_connection_to_its_parent(connect: Connect, client: Client) -> None:
    _put(client, "a")
    worker = connect()
    job = _job(worker)
    child = os.fork()
    if not child:
        os._exit(int(worker._is_open))
    assert os.waitpid(child, 0)[1] == 0
    worker.end("PRESSURE.ACK", "q", job)
    assert worker.call("PING") == b"PONG"
    assert _is_done(client, job)


def test_a_reserve_waits_for_a_job_of_any_queue(connect: Connect, client: Client) -> None:
    for name in ("p", "q"):
        create(client, name, "TYPE", "JOBS")
    worker = connect()
    assert worker.reserve(["p", "q"], 0.05, 0) is None
    client.rpush("q", "a")
    found = worker.reserve(["p", "q"], TIMEOUT, 0)
    assert found is not None
    assert (found[0], found[1].message) == ("q", b"a")


def test_a_reserve_of_a_closed_queue_finds_nothing(connect: Connect, client: Client) -> None:
    create(client, "q", "TYPE", "JOBS")
    client.execute_command("PRESSURE.CLOSE", "q")
    assert connect().reserve(["q"], 0.05, 0) is None


def test_a_missing_queue_is_created_with_its_options(connect: Connect, client: Client) -> None:
    command = ("PRESSURE.PUT", "q", "a", "PRIORITY", 1)
    for job in (1, 2):
        assert call_creating(connect().call, "q", {"BOUND": 5}, *command) == job
    assert about(client, "q")[b"bound"] == 5
