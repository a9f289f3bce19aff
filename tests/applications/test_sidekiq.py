"""Sidekiq runs jobs without retries; a job with retries that raises is lost, which Sidekiq logs."""

import subprocess
from pathlib import Path

import pytest

from tests.support.client_scripts import TIMEOUT
from tests.support.paths import ROOT
from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey, wait_for
from tests.support.requirements import need

pytestmark = pytest.mark.clients

JOBS = str(ROOT / "tests/applications/scripts/sidekiq_jobs.rb")
QUEUE = "queue:default"


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    return start_server("--backend", backend.url)


def put(server: Server, *arguments: str) -> str:
    """Put jobs. Return what the program prints."""
    need("sidekiq", "ruby-sidekiq")
    return subprocess.check_output(
        ["ruby", JOBS, *arguments],
        env=variables(server),
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT,
    )


def variables(server: Server) -> dict[str, str]:
    return {"REDIS_URL": f"redis://127.0.0.1:{server.port}/0", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def start_sidekiq(server: Server, log: Path, **environment: str) -> BackgroundProgram:
    """Start Sidekiq with one thread, which has a second to finish its job when Sidekiq is stopped."""
    command = [need("sidekiq", "ruby-sidekiq"), "-r", JOBS, "-c", "1", "-t", "1"]
    return BackgroundProgram(log, *command, environment={**variables(server), **environment})


def test_jobs_without_retries_run_in_order(server: Server, client: Client, tmp_path: Path) -> None:
    assert put(server, "Once", "async", "to ada", "to bob") == ""
    assert put(server, "Once", "bulk", "to eve", "to max") == ""
    with start_sidekiq(server, tmp_path / "log") as sidekiq:
        sidekiq.wait_for("sent to max\n")
        lines = sidekiq.output.splitlines()
    assert [line for line in lines if line.startswith("sent ")] == [
        "sent to ada",
        "sent to bob",
        "sent to eve",
        "sent to max",
    ]
    assert client.llen(QUEUE) == 0


def test_a_job_with_retries_that_raises_is_lost_and_sidekiq_says_so(server: Server, tmp_path: Path) -> None:
    put(server, "WithRetries", "async", "raise", "to bob")
    with start_sidekiq(server, tmp_path / "log") as sidekiq:
        sidekiq.wait_for("sent to bob\n")
        assert 'WARN: {"context":"Internal exception!"' in sidekiq.output
        assert "WARN: Redis::CommandError: UNSUPPORTED 'ZADD' is not a queue command: " in sidekiq.output
        sidekiq.wait_for("ERROR: heartbeat: UNSUPPORTED 'INCRBY' is not a queue command: ")
        assert sidekiq.stop() == 0
        assert sidekiq.output.count("begin raise\n") == 1
    with server.client() as client:
        # Neither queued nor to be retried: only the set of queues is left.
        assert [key for key in client.scan_iter() if client.scard(key)] == [b"queues"]
    assert "WARNING refused command ZADD from " in server.log


def test_a_job_for_later_is_refused(server: Server) -> None:
    assert put(server, "Once", "in", "to ada").startswith(
        "Redis::CommandError: UNSUPPORTED 'ZADD' is not a queue command: "
    )


def test_a_killed_sidekiq_loses_the_job_that_it_runs(server: Server, client: Client, tmp_path: Path) -> None:
    put(server, "Once", "async", "hang", "to bob")
    with start_sidekiq(server, tmp_path / "first", HANG="1") as first:
        first.wait_for("begin hang\n")
        assert client.llen(QUEUE) == 1
    with start_sidekiq(server, tmp_path / "second") as second:
        second.wait_for("sent to bob\n")
        assert "hang" not in second.output


def test_a_sidekiq_that_is_stopped_puts_its_job_back(server: Server, client: Client, tmp_path: Path) -> None:
    put(server, "Once", "async", "hang", "to bob")
    with start_sidekiq(server, tmp_path / "first", HANG="1") as first:
        first.wait_for("begin hang\n")
        assert first.stop() == 0
    wait_for(lambda: client.llen(QUEUE) == 2, "the job to be queued again")
    with start_sidekiq(server, tmp_path / "second") as second:
        second.wait_for("sent hang\n")
        second.wait_for("sent to bob\n")
