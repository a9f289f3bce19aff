"""Celery and dramatiq over what pressure_server.client has for them: each job is done at least once."""

import os
import re
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.applications.conftest import SetUp
from tests.support.guards import Authority
from tests.support.installed_applications import SCRIPTS, Application, Stand, in_python, refused_by
from tests.support.paths import ROOT
from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey, wait_for
from tests.support.stores import EmbeddedStore
from tests.support.waiters import create

_PATH = (("PYTHONPATH", f"{SCRIPTS}:{ROOT}"),)
CELERY = in_python(
    "celery", "celery_jobs_app",
    "celery", "--app", "celery_jobs_app", "worker", "--concurrency", "1", "--loglevel", "INFO",
)._replace(variables=_PATH)  # fmt: skip
DRAMATIQ = in_python(
    "default", "dramatiq_jobs_app", "dramatiq", "dramatiq_jobs_app", "--processes", "1", "--threads", "1"
)._replace(variables=(*_PATH, ("dramatiq_queue_prefetch", "1"), ("dramatiq_restart_delay", "100")))
BOTH = pytest.mark.parametrize("application", [CELERY, DRAMATIQ], ids=["Celery", "dramatiq"])
# More than a job in work for each connection that is cut would be done twice by mistake.
_JOBS, _CUTS = 2000, 5


def _is_empty(client: Client, application: Application) -> bool:
    found = client.execute_command("PRESSURE.INFO", application.queue)
    return not found[b"length"] and not found[b"reserved"]


def _wait_until_empty(server: Server, application: Application) -> None:
    with server.client() as client:
        wait_for(lambda: _is_empty(client, application), "the queue to be empty")


@BOTH
def test_jobs_are_done_in_order_of_priority(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.put("later-a", "a", "p5-b", "p9-c", "p1-d", "b", "retried")
    with stand.start_worker() as worker:
        _wait_until_empty(own_server, application)
        assert [word for word in stand.done if word != "later-a"] == [
            "p9-c", "p5-b", "p1-d", "a", "b", "retried", "retried",
        ]  # fmt: skip
        assert stand.done.count("later-a") == 1
        with own_server.client() as client:
            assert client.keys() == [application.queue.encode()]
        assert worker.stop() == 0
    assert refused_by(own_server) == set()
    assert not re.search(r"ERROR/|CRITICAL|Couldn't|not reserved", worker.output)


@BOTH
def test_a_job_that_is_given_up_is_buried(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.put("rejected", "next")
    with stand.start_worker(), own_server.client() as client:
        stand.wait_until_done(["next"])
        wait_for(
            lambda: client.execute_command("PRESSURE.PEEK", application.queue, "BURIED"),
            "the job to be buried",
        )
        _wait_until_empty(own_server, application)
        tries = stand.done.count("rejected")
        client.execute_command("PRESSURE.KICK", application.queue)
        wait_for(lambda: stand.done.count("rejected") > tries, "another try")


@pytest.mark.parametrize("overflow", ["block", "error"])
@BOTH
def test_a_retry_needs_no_room_in_its_queue(
    application: Application, overflow: str, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.hold("retried")
    with own_server.client() as client:
        create(client, application.queue, "TYPE", "JOBS", "BOUND", 1, "OVERFLOW", overflow)
    stand.put("retried")
    with stand.start_worker():
        stand.wait_until_done(["retried"])
        stand.put("next")
        stand.let_end("retried")
        _wait_until_empty(own_server, application)
    assert sorted(stand.done) == ["next", "retried", "retried"]


@BOTH
def test_a_job_whose_retry_cannot_be_put_is_buried(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.hold("retried")
    stand.put("retried")
    with stand.start_worker(), own_server.client() as client:
        stand.wait_until_done(["retried"])
        client.execute_command("PRESSURE.CLOSE", application.queue)
        stand.let_end("retried")
        wait_for(
            lambda: client.execute_command("PRESSURE.PEEK", application.queue, "BURIED"),
            "the job to be buried",
        )


@BOTH
def test_the_job_of_a_killed_worker_is_done_again(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.hold("held")
    stand.put("p5-first", "held", "last")
    with stand.start_worker() as worker:
        stand.wait_until_done(["held"])
        worker.kill()
    with stand.start_worker() as worker:
        wait_for(lambda: stand.done.count("held") == 2, "the job to begin again")
        stand.let_end("held")
        _wait_until_empty(own_server, application)
    assert stand.done == ["p5-first", "held", "held", "last"]


def test_the_job_of_a_killed_child_is_done_again_and_so_is_that_of_its_parent(
    set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(CELERY)
    stand.hold("held")
    stand.put("held", "last")
    with stand.start_worker() as first:
        stand.wait_until_done(["held"])
        os.kill(_child_of(first), signal.SIGKILL)
        wait_for(lambda: stand.done.count("held") == 2, "a new child to begin the job")
        # The new child has a copy of its parent's connection, and lives on.
        os.kill(first.process.pid, signal.SIGKILL)
        with stand.start_worker():
            wait_for(lambda: stand.done.count("held") == 3, "another worker to begin the job")
            stand.let_end("held")
            _wait_until_empty(own_server, CELERY)
    assert Counter(stand.done) == {"held": 3, "last": 1}


def _child_of(worker: BackgroundProgram) -> int:
    with open(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children", encoding="ascii") as file:
        return int(file.read().split()[-1])


@BOTH
def test_a_worker_that_is_stopped_finishes_its_job(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.hold("held")
    stand.put("held", "next")
    with stand.start_worker() as worker:
        stand.wait_until_done(["held"])
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("Warm shutdown" if application is CELERY else "Shutting down")
        stand.let_end("held")
        assert worker.wait() == 0
    # Celery takes one more job before it ends.
    assert stand.done in ([["held"], ["held", "next"]] if application is CELERY else [["held"]])
    with stand.start_worker():
        _wait_until_empty(own_server, application)
    assert stand.done == ["held", "next"]


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_goes_on_after_a_restart_of_the_server(
    application: Application, number: signal.Signals, tmp_path: Path
) -> None:
    for name in ("store", "application"):
        (tmp_path / name).mkdir()
    store = EmbeddedStore(tmp_path / "store")
    stand = Stand(application, store.port, tmp_path / "application")
    stand.hold("held")
    stand.put("held")
    with stand.start_worker(), redis.Redis(port=store.port) as client:
        stand.wait_until_done(["held"])
        store.stop(number)
        store.start()
        stand.put("next")
        stand.let_end("held")
        wait_for(lambda: _is_empty(client, application), "the queue to be empty")
    store.stop(signal.SIGTERM)
    assert 1 <= stand.times_finished("held") <= 2
    assert stand.times_finished("next") == 1


@BOTH
def test_jobs_are_done_while_connections_are_cut(
    application: Application, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(application)
    stand.put(f"many-{_JOBS}")
    with stand.start_worker(), own_server.client() as client:
        for number in range(_CUTS):
            wait_for(lambda: len(set(stand.done)) > (number + 1) * _JOBS // (_CUTS + 2), "some jobs")  # noqa: B023
            for other in client.client_list():
                if other["id"] != client.client_id():
                    with suppress(redis.ResponseError):
                        client.client_kill_filter(_id=other["id"])
        _wait_until_empty(own_server, application)
    done = Counter(stand.done)
    assert done.keys() == {str(number) for number in range(_JOBS)}
    assert sum(done.values()) - _JOBS <= 2 * _CUTS
    first_times = list(dict.fromkeys(stand.done))
    assert first_times == sorted(first_times, key=int)


def test_celery_has_no_remote_control(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(CELERY)
    ended = stand.run("celery", "--app", "celery_jobs_app", "inspect", "ping")
    assert ended.returncode != 0
    assert "pressure-server has no fanout exchanges" in ended.stdout


def test_a_job_that_kills_its_worker_again_and_again_becomes_a_dead_letter(
    set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(CELERY)
    stand.put("deadly", "next")
    with stand.start_worker(), own_server.client() as client:
        stand.wait_until_done(["next"])
        wait_for(lambda: client.llen("failed") == 1, "the dead letter")
        _wait_until_empty(own_server, CELERY)
    assert Counter(stand.done) == {"deadly": 5, "next": 1}


def test_celery_bounds_and_purges_queues(set_up: SetUp) -> None:
    stand = set_up(CELERY)
    ended = stand.run("python", "-c", _BOUNDED)
    assert ended.stdout.splitlines()[-2:] == ["QueueFullError", "purged 1"]


_BOUNDED = """
from celery_jobs_app import app, run
from kombu import Queue

queue = Queue("bounded", max_length=1, queue_arguments={"OVERFLOW": "error"})
run.apply_async(("a",), queue=queue)
try:
    run.apply_async(("b",), queue=queue)
except Exception as error:
    print(type(error).__name__)
with app.connection() as connection:
    print("purged", queue(connection.default_channel).purge())
"""


@pytest.mark.parametrize(
    ("application", "scheme"), [(CELERY, "pressures"), (DRAMATIQ, "rediss")], ids=["Celery", "dramatiq"]
)
def test_applications_log_in_over_tls(
    application: Application, scheme: str, start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = map(str, authority.issue("server"))
    server = start_server(
        "--backend", backend.url, "--listen", "resps://127.0.0.1:0", "--password", "p@ss",
        "--tls-certificate", certificate, "--tls-key", key,
    )  # fmt: skip
    address = f"127.0.0.1:{server.port_of('resps')}"
    url = f"{scheme}://:p%40ss@{address}?ssl_ca_certs={authority.certificate}"
    variables = (*application.variables, ("BROKER", url))
    (tmp_path / "application").mkdir()
    stand = Stand(application._replace(variables=variables), server.port, tmp_path / "application")
    stand.put("a", "b")
    with stand.start_worker(), server.client(password="p@ss") as client:
        stand.wait_until_done("ab")
        wait_for(lambda: _is_empty(client, application), "the queue to be empty")
    assert stand.done == ["a", "b"]


def test_messages_of_other_clients_are_buried(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(CELERY)
    stand.put("a")
    with own_server.client() as client:
        client.rpush("celery", "no message", '{"properties": 1}')
        with stand.start_worker() as worker:
            stand.wait_until_done("a")
            wait_for(lambda: client.execute_command("PRESSURE.INFO", "celery")[b"buried"] == 2, "burials")
            assert worker.output.count("is no message of kombu: it is buried") == 2
