"""Memcached client libraries on keys and values: memcached and mode=kv give them the same results."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.client_scripts import output_of
from tests.support.module_servers import module_server
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, Server, Valkey, wait_for
from tests.support.requirements import need, need_success

pytestmark = pytest.mark.clients

SCRIPTS = ROOT / "tests/clients" / "memcached"


@pytest.fixture(scope="module")
def memcached() -> Iterator[int]:
    """The port of a memcached."""
    (port,) = free_ports(1)
    command = [need("memcached", "memcached"), "-u", "nobody", "-l", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    wait_for(lambda: process.poll() is None and _listens(port), "memcached to listen")
    yield port
    process.terminate()
    process.wait(TIMEOUT)


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


mode_kv = module_server("--listen", "memcached://127.0.0.1:0?mode=kv")


@pytest.fixture(params=["memcached", "mode_kv"])
def port(request: pytest.FixtureRequest, backend: Valkey) -> str:
    """The port of either, without data."""
    started = request.getfixturevalue(request.param)
    found: int = started.port_of("memcached") if isinstance(started, Server) else started
    with socket.create_connection(("127.0.0.1", found), TIMEOUT) as connection:
        connection.sendall(b"flush_all\r\n")
        assert connection.recv(100) == b"OK\r\n"
    return str(found)


@pytest.mark.parametrize("client", ["php", "pymemcache", "memcache"])
def test_values_behave_as_in_memcached_with_every_client(client: str, port: str) -> None:
    if client == "php":
        need_success("php-memcached", "php", "-r", "exit(class_exists('Memcached') ? 0 : 1);")
        output = output_of("php", str(SCRIPTS / "values.php"), port)
    else:
        output = output_of(sys.executable, "-m", "tests.clients.memcached.values", port, client)
    assert output == (SCRIPTS / "values.txt").read_text()
