"""Memcached client libraries for PHP and Python, and telnet, on queues that Redis clients use too."""

import sys

import pytest

from pressure_server.client import Queue
from tests.support.client_scripts import output_of, typed
from tests.support.module_servers import module_server
from tests.support.native import NativeClient
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, Valkey
from tests.support.requirements import need_success
from tests.support.waiters import create

pytestmark = pytest.mark.clients

SCRIPTS = ROOT / "tests/clients" / "memcached"
PHP = "$m = new Memcached(); $m->addServer('127.0.0.1', {port});"
PYMEMCACHE = (
    "from pymemcache.client.base import Client; m = Client(('127.0.0.1', {port}), default_noreply=False);"
)
PYTHON_MEMCACHED = "import memcache; m = memcache.Client(['127.0.0.1:{port}']);"
# By client library: code that takes a message and prints it.
TAKE = {
    "php": PHP + " echo $m->get('q');",
    "pymemcache": PYMEMCACHE + " print(m.get('q').decode(), end='')",
    "memcache": PYTHON_MEMCACHED + " print(m.get('q').decode(), end='')",
}


def need_php() -> None:
    need_success("php-memcached", "php", "-r", "exit(class_exists('Memcached') ? 0 : 1);")


def run_code(client: str, code: str, server: Server) -> str:
    """Run code of the client's language; `{port}` in it is the memcached port. Return its output."""
    if client == "php":
        need_php()
    command = {"php": ("php", "-r"), "ruby": ("ruby", "-e")}.get(client, (sys.executable, "-c"))
    return output_of(*command, code.replace("{port}", str(server.port_of("memcached"))))


shared_server = module_server("--listen", "memcached://127.0.0.1:0")


@pytest.mark.parametrize("library", ["php", "pymemcache", "memcache"])
def test_queues_behave_the_same_with_every_client(library: str, server: Server, client: Client) -> None:
    create(client, "full", "BOUND", 1)
    client.sadd("full", "m")
    create(client, "closed")
    client.execute_command("PRESSURE.CLOSE", "closed")
    port = str(server.port_of("memcached"))
    if library == "php":
        need_php()
        output = output_of("php", str(SCRIPTS / "queues.php"), port)
    else:
        output = output_of(sys.executable, "-m", "tests.clients.memcached.queues", port, library)
    assert output == (SCRIPTS / "queues.txt").read_text()


def test_dalli_is_refused_in_the_binary_protocol(server: Server, client: Client) -> None:
    need_success("ruby-dalli", "ruby", "-e", "require 'dalli'")
    code = """
        require 'dalli'
        Dalli.logger.level = Logger::FATAL
        begin
          Dalli::Client.new('127.0.0.1:{port}').set('q', 'm')
        rescue Dalli::DalliError => error
          puts error.message
        end
    """
    assert run_code("ruby", code, server) == "Response error 129: Unknown command\n"
    assert client.exists("q") == 0


TYPED = [
    "set q 5 0 5", "hello", "set q 0 0 3", "two", "scard q", "sismember q two", "get q/open", "get q/abort",
    "get q", "get q", "get q", "incr q 1", "what", "delete q", "quit",
]  # fmt: skip


@pytest.mark.parametrize("program", ["telnet", "nc"])
def test_queues_can_be_used_by_hand(program: str, server: Server) -> None:
    replies = typed(program, server.port_of("memcached"), TYPED)
    value = "VALUE {} {} {}\n{}\nEND\n".format
    assert replies == (
        "STORED\nSTORED\n2\n1\n"
        + value("q/open", 5, 5, "hello") + "END\n"
        + value("q", 5, 5, "hello") + value("q", 0, 3, "two") + "END\n"
        + "CLIENT_ERROR incr is not supported on queues: messages are not counters (use mode=kv for keys "
        "and values)\nERROR\nDELETED\n"
    )  # fmt: skip


@pytest.mark.parametrize("taker", TAKE)
def test_memcached_clients_take_messages_of_redis_and_native_clients(
    taker: str, server: Server, client: Client, direct: Client, backend: Valkey
) -> None:
    assert client.sadd("q", "from Redis") == 1
    queue = Queue("q", backend.url)
    queue.put("from the Python client")
    NativeClient(direct, "q").put(b"from the specification's client")
    for message in ("from Redis", "from the Python client", "from the specification's client"):
        assert run_code(taker, TAKE[taker], server) == message
    assert client.scard("q") == 0
    queue.disconnect()


def test_native_clients_take_messages_of_memcached_clients(
    server: Server, direct: Client, backend: Valkey
) -> None:
    run_code("php", PHP + " $m->set('q', 'text'); $m->set('q', 42); $m->set('q', 'last');", server)
    queue = Queue("q", backend.url)
    assert queue.get(0) == b"text"
    assert NativeClient(direct, "q").get() == b"42"
    # The flags of the taken messages do not pass on to the next one.
    assert run_code("php", PHP + " var_dump($m->get('q'));", server) == 'string(4) "last"\n'
    queue.disconnect()


def test_serialized_messages_are_text_to_redis_clients(server: Server, client: Client) -> None:
    run_code("php", PHP + " $m->set('q', 42); $m->set('q', ['a' => 1]);", server)
    assert client.lrange("q", 0, -1) == [b"42", b'a:1:{s:1:"a";i:1;}']
    client.rpush("q", "42")
    taking = PHP + " foreach ([1, 2, 3] as $_) echo json_encode($m->get('q')), ' ';"
    assert run_code("php", taking, server) == '42 {"a":1} "42" '
