"""Client libraries in PHP, Ruby and Python, on the server with Debian's Redis as its backend."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.client_scripts import CLIENTS, TIMEOUT, need_library, run_script
from tests.support.programs import Server, Valkey
from tests.support.requirements import need

pytestmark = pytest.mark.clients

COMMANDS = [
    "commands.php", "commands_predis.php", "commands.rb",
    *[f"commands.py {kind} {version}" for kind in ("sync", "async") for version in (2, 3)],
]  # fmt: skip


@pytest.fixture(scope="module")
def debian_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    redis_server = need("redis-server", "redis-server")
    redis = Valkey(tmp_path_factory.mktemp("redis"), binary=redis_server)
    yield redis
    redis.stop()


@pytest.fixture(scope="module")
def shared_front(debian_redis: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    front = Server(tmp_path_factory.mktemp("front") / "log", "--backend", debian_redis.url)
    yield front
    front.end_well()


@pytest.fixture
def port(debian_redis: Valkey, shared_front: Server) -> str:
    """The port of a server without data."""
    with debian_redis.client() as direct:
        direct.flushall()
    return str(shared_front.port)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_library_gets_the_same_replies(command: str, port: str) -> None:
    script, *arguments = command.split()
    assert run_script(script, port, *arguments) == (CLIENTS / "commands.txt").read_text()


@pytest.mark.parametrize("script", ["transactions.php", "transactions.rb"])
def test_transactions_and_pressure_commands_work_in_php_and_ruby(script: str, port: str) -> None:
    assert run_script(script, port) == (CLIENTS / "transactions.txt").read_text()


@pytest.mark.parametrize("script", ["persistent.php", "persistent_predis.php"])
def test_a_persistent_connection_is_reused(script: str, port: str) -> None:
    assert run_script(script, port) == "sadd 1\nsame connection true\nspop message\n"


# What an application prints that does not look at what a command returns: phpredis hides `-ERR …` from it.
_CARELESS = {
    "message_queue.php": (
        "$r = new Redis(); $r->connect('127.0.0.1', PORT); try { $r->hSet('h', 'f', 'v'); echo 'stored'; } "
        "catch (RedisException $e) { echo $e->getMessage(); }"
    ),
    "message_queue_predis.php": (
        "require 'Predis/autoload.php'; $r = new Predis\\Client(['port' => PORT]); "
        "try { $r->hset('h', 'f', 'v'); echo 'stored'; } catch (Exception $e) { echo $e->getMessage(); }"
    ),
    "message_queue.rb": (
        "require 'redis'; begin; Redis.new(port: PORT).hset('h', 'f', 'v'); print 'stored'; "
        "rescue => e; print e.message; end"
    ),
}


@pytest.mark.parametrize("library", _CARELESS)
def test_an_application_hears_that_a_command_is_refused(library: str, port: str) -> None:
    need_library(library)
    runner = ("ruby", "-e") if library.endswith("rb") else ("php", "-r")
    command = [*runner, _CARELESS[library].replace("PORT", port)]
    printed = subprocess.check_output(command, timeout=TIMEOUT, text=True)
    assert printed.startswith("UNSUPPORTED 'HSET' is not a queue command: ")
