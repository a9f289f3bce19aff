"""How resque and php-resque fail.

Neither is in Debian 12, so programs of a few lines send their commands, in the order of their source.
"""

import pytest

from tests.support.client_scripts import need_library, outcome_of
from tests.support.paths import ROOT
from tests.support.programs import Client, Server

pytestmark = pytest.mark.clients

SCRIPTS = ROOT / "tests/applications/scripts"
QUEUE = "resque:queue:default"


def run(runner: str, script: str, server: Server, action: str) -> tuple[int, list[str]]:
    need_library(script)
    return outcome_of(runner, str(SCRIPTS / script), str(server.port), action)


def test_a_worker_of_resque_fails_before_it_takes_a_job(server: Server, client: Client) -> None:
    assert run("ruby", "resque.rb", server, "enqueue") == (0, ["enqueued"])
    status, printed = run("ruby", "resque.rb", server, "work")
    assert status == 1
    assert printed[0].startswith("Redis::CommandError: UNSUPPORTED 'HDEL' is not a queue command: ")
    assert client.llen(QUEUE) == 1


def test_php_resque_queues_a_job_that_it_tracks_although_it_throws(server: Server, client: Client) -> None:
    status, printed = run("php", "php_resque.php", server, "enqueue-tracked")
    assert status == 1
    assert printed[0].startswith("RedisException: UNSUPPORTED 'SET' is not a queue command: ")
    assert client.llen(QUEUE) == 1
    # So an application that tries again has the job twice.
    assert run("php", "php_resque.php", server, "enqueue-tracked")[0] == 1
    assert client.llen(QUEUE) == 2


def test_a_worker_of_php_resque_fails_before_it_takes_a_job(server: Server, client: Client) -> None:
    assert run("php", "php_resque.php", server, "enqueue") == (0, ["enqueued 17"])
    status, printed = run("php", "php_resque.php", server, "work")
    assert status == 1
    assert printed[0].startswith("RedisException: UNSUPPORTED 'SET' is not a queue command: ")
    assert client.llen(QUEUE) == 1
