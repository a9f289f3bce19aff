"""Jobs of Rails' ActiveJob over beanstalk, by an adapter for Beaneater: Backburner is not in Debian."""

import subprocess
from pathlib import Path

import pytest

from tests.support.client_scripts import TIMEOUT
from tests.support.paths import ROOT
from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey
from tests.support.requirements import need_success

pytestmark = pytest.mark.clients

SCRIPT = str(ROOT / "tests/applications/scripts/active_job.rb")


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    return start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")


def enqueue(server: Server, *mails: str) -> None:
    need_success("ruby-activejob", "ruby", "-e", "require 'active_job'")
    need_success("ruby-beaneater", "ruby", "-e", "require 'beaneater'")
    command = ["ruby", SCRIPT, str(server.port_of("beanstalk")), "enqueue", *mails]
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=TIMEOUT, check=True)


def start_worker(server: Server, log: Path, **environment: str) -> BackgroundProgram:
    command = ["ruby", SCRIPT, str(server.port_of("beanstalk")), "work"]
    return BackgroundProgram(log, *command, environment=environment)


def test_jobs_are_performed_and_retried_and_those_that_fail_are_buried(
    server: Server, client: Client, tmp_path: Path
) -> None:
    enqueue(server, "to ada", "raise once", "raise", "to bob")
    with start_worker(server, tmp_path / "log") as worker:
        worker.wait_for("sent raise once\n")
        assert worker.output.splitlines() == [
            "begin to ada",
            "sent to ada",
            "begin raise once",
            "begin raise",
            "buried: no such mailbox",
            "begin to bob",
            "sent to bob",
            "begin raise once",
            "sent raise once",
        ]
        assert client.execute_command("PRESSURE.PURGE", "mails", "BURIED") == 1


def test_the_job_of_a_killed_worker_comes_again(server: Server, tmp_path: Path) -> None:
    enqueue(server, "hang", "to bob")
    with start_worker(server, tmp_path / "first", HANG="1") as first:
        first.wait_for("begin hang\n")
    with start_worker(server, tmp_path / "second") as second:
        second.wait_for("sent to bob\n")
        assert second.output == "begin hang\nsent hang\nbegin to bob\nsent to bob\n"
