"""Symfony Messenger over beanstalkd works; its Redis transport fails at its first command."""

from pathlib import Path

import pytest

from tests.support.client_scripts import need_php_files, outcome_of
from tests.support.paths import ROOT
from tests.support.programs import BackgroundProgram, Server, StartServer, Valkey
from tests.support.requirements import need_success

pytestmark = pytest.mark.clients

SCRIPT = str(ROOT / "tests/applications/scripts/messenger.php")
_LIBRARIES = {
    "php-symfony-messenger": "Symfony/Component/Messenger/autoload.php",
    "php-symfony-beanstalkd-messenger": "Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php",
    "php-symfony-event-dispatcher": "Symfony/Component/EventDispatcher/autoload.php",
}


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    need_php_files(_LIBRARIES)


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    return start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")


def address(server: Server, *, ttr: int = 90) -> str:
    return f"beanstalkd://127.0.0.1:{server.port_of('beanstalk')}?tube_name=mails&ttr={ttr}"


def run(*arguments: str) -> tuple[int, list[str]]:
    """Run a command of the application. Return its exit status, and the lines that it prints."""
    return outcome_of("php", SCRIPT, *arguments)


def test_messages_are_handled_in_order_and_those_that_fail_again(server: Server) -> None:
    queued = run(address(server), "send", "ada", "raise once", "bob")
    assert queued == (0, ["queued ada", "queued raise once", "queued bob"])
    assert run(address(server), "consume", "4") == (
        0,
        [
            "begin ada",
            "sent ada",
            "begin raise once",
            "begin bob",
            "sent bob",
            "begin raise once",
            "sent raise once",
        ],
    )


def test_the_message_of_a_killed_worker_comes_again(server: Server, tmp_path: Path) -> None:
    assert run(address(server), "send", "hang", "bob")[0] == 0
    worker = BackgroundProgram(
        tmp_path / "worker", "php", SCRIPT, address(server), "consume", "2", environment={"HANG": "1"}
    )
    with worker:
        worker.wait_for("begin hang\n")
    assert run(address(server), "consume", "2") == (0, ["begin hang", "sent hang", "begin bob", "sent bob"])


@pytest.mark.parametrize("command", [("send", "ada"), ("consume", "1")], ids=" ".join)
def test_the_redis_transport_fails_and_puts_nothing(server: Server, command: tuple[str, str]) -> None:
    need_success("php-redis", "php", "-r", "exit(class_exists('Redis') ? 0 : 1);")
    status, (line,) = run(f"redis://127.0.0.1:{server.port}/mails", *command)
    assert status == 1
    assert line.startswith(
        "Symfony\\Component\\Messenger\\Exception\\TransportException: "
        "UNSUPPORTED 'XGROUP' is not a queue command: "
    )
    with server.client() as client:
        assert client.keys() == []
