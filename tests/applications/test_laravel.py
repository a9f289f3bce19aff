"""Laravel's queues: Illuminate's own Worker over beanstalk works; its redis driver fails without loss."""

from pathlib import Path

import pytest

from tests.support.client_scripts import need_php_files, outcome_of
from tests.support.faults import stopped
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey
from tests.support.waiters import create

pytestmark = pytest.mark.clients

SCRIPT = str(ROOT / "tests/applications/scripts/laravel.php")
_LIBRARIES = {
    "php-illuminate-queue": "Illuminate/Queue/autoload.php",
    "php-illuminate-events": "Illuminate/Events/autoload.php",
    "php-illuminate-redis": "Illuminate/Redis/autoload.php",
    "php-pda-pheanstalk": "Pheanstalk/autoload.php",
    "php-predis": "/usr/share/php/Predis/Autoloader.php",
}
_REDIS_DRIVERS = {
    "phpredis": "RedisException",
    "predis": "Predis\\Response\\ServerException",
}


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    need_php_files(_LIBRARIES)


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    return start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")


def run(server: Server, connection: str, *arguments: str) -> tuple[int, list[str]]:
    """Run a command of Laravel. Return its exit status, and the lines that it prints."""
    port = server.port_of("beanstalk" if connection == "beanstalkd" else "resp")
    return outcome_of("php", SCRIPT, connection, str(port), *arguments)


def push(server: Server, *mails: str) -> None:
    assert run(server, "beanstalkd", "push", *mails) == (0, [f"pushed {mail}" for mail in mails])


def work_until_empty(server: Server, **options: int) -> list[str]:
    """Let a worker work all jobs. Return the lines that it prints."""
    given = [f"{name}={value}" for name, value in options.items()]
    status, lines = run(server, "beanstalkd", "work", "stopWhenEmpty=1", *given)
    assert status == 0, lines
    return lines


def start_worker(server: Server, log: Path, **options: int) -> BackgroundProgram:
    port = str(server.port_of("beanstalk"))
    given = [f"{name}={value}" for name, value in options.items()]
    command = ["php", SCRIPT, "beanstalkd", port, "work", *given]
    return BackgroundProgram(log, *command, environment={"BLOCK_FOR": "5"})


def test_jobs_are_worked_in_order_and_those_that_fail_again(server: Server) -> None:
    push(server, "to ada", "raise once", "to bob", "raise")
    assert work_until_empty(server, maxTries=2) == [
        "begin to ada, attempt 1",
        "sent to ada",
        "begin raise once, attempt 1",
        "RuntimeException: no route to host",
        "begin raise once, attempt 2",
        "sent raise once",
        "begin to bob, attempt 1",
        "sent to bob",
        "begin raise, attempt 1",
        "RuntimeException: no route to host",
        "begin raise, attempt 2",
        "failed raise: no route to host",
        "RuntimeException: no route to host",
    ]


def test_jobs_that_are_pushed_together_or_for_later_are_worked(server: Server, tmp_path: Path) -> None:
    assert run(server, "beanstalkd", "bulk", "to ada", "to bob")[0] == 0
    assert run(server, "beanstalkd", "later", "to eve")[0] == 0
    with start_worker(server, tmp_path / "worker") as worker:
        worker.wait_for("sent to eve\n")
        sent = [line for line in worker.output.splitlines() if line.startswith("sent ")]
    assert sent == ["sent to ada", "sent to bob", "sent to eve"]


def test_the_job_of_a_killed_worker_comes_again(server: Server, tmp_path: Path) -> None:
    push(server, "hang once", "to bob")
    with start_worker(server, tmp_path / "first", maxTries=3) as first:
        first.wait_for("begin hang once, attempt 1\n")
    with start_worker(server, tmp_path / "second", maxTries=3) as second:
        second.wait_for("sent to bob\n")
        second.wait_for("sent hang once\n")
        assert second.output.count("begin hang once, attempt 2\n") == 1
    assert "sent" not in first.output
    assert work_until_empty(server) == []


def test_the_job_of_a_killed_worker_fails_if_it_may_be_tried_once(server: Server, tmp_path: Path) -> None:
    push(server, "hang once")
    with start_worker(server, tmp_path / "first", maxTries=1) as first:
        first.wait_for("begin hang once, attempt 1\n")
    with start_worker(server, tmp_path / "second", maxTries=1) as second:
        second.wait_for("MaxAttemptsExceededException: SendMail has been attempted too many times")
        assert "failed hang once: " in second.output


def test_the_job_of_a_worker_that_stands_still_comes_again_after_retry_after(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRY_AFTER", "2")
    push(server, "hang once")
    with start_worker(server, tmp_path / "first", maxTries=3) as first:
        first.wait_for("begin hang once, attempt 1\n")
        with stopped(first.process), start_worker(server, tmp_path / "second", maxTries=3) as second:
            second.wait_for("sent hang once\n")


def test_a_worker_goes_on_after_a_restart_of_the_server(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    address = f"beanstalk://127.0.0.1:{free_ports(1)[0]}"
    server = start_server("--backend", backend.url, "--listen", address)
    with start_worker(server, tmp_path / "log") as worker:
        push(server, "to ada")
        worker.wait_for("sent to ada\n")
        assert server.stop() == 0
        server = start_server("--backend", backend.url, "--listen", address)
        push(server, "to bob")
        worker.wait_for("sent to bob\n")


def test_a_full_queue_refuses_a_job(server: Server, client: Client) -> None:
    create(client, "default", "BOUND", 1, "OVERFLOW", "error")
    status, lines = run(server, "beanstalkd", "push", "to ada", "to bob")
    assert status == 1
    assert lines[0] == "pushed to ada"
    assert lines[1].startswith(
        "Pheanstalk\\Exception\\ServerOutOfMemoryException: OUT_OF_MEMORY in response to "
    )


@pytest.mark.parametrize("action", ["push", "bulk", "later"])
@pytest.mark.parametrize("driver", _REDIS_DRIVERS)
def test_the_redis_driver_throws_and_puts_nothing(server: Server, driver: str, action: str) -> None:
    refused = "ZADD" if action == "later" else "EVAL"
    status, lines = run(server, driver, action, "to ada")
    assert status == 1
    assert lines[-1].startswith(f"{_REDIS_DRIVERS[driver]}: UNSUPPORTED '{refused}' is not a queue command: ")
    assert not any(line.startswith("pushed") for line in lines)
    assert f"WARNING refused command {refused} from " in server.log
    with server.client() as client:
        assert client.keys() == []


@pytest.mark.parametrize("driver", _REDIS_DRIVERS)
def test_a_worker_with_the_redis_driver_takes_nothing(server: Server, driver: str) -> None:
    with server.client() as client:
        client.rpush("queues:default", "job")
        _, lines = run(server, driver, "work", "stopWhenEmpty=1")
        assert lines[-1].startswith(f"{_REDIS_DRIVERS[driver]}: UNSUPPORTED 'EVAL' is not a queue command: ")
        assert client.lrange("queues:default", 0, -1) == [b"job"]
