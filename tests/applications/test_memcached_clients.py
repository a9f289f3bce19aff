"""Clients of PyPI that send memcached's meta commands: on values as with memcached, and on queues."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installed_applications import Stand, in_python
from tests.support.memcached_wire import ValuesWire
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, StartServer, Valkey, wait_for
from tests.support.requirements import need

CLIENTS = ("memcache", "meta-memcache")
ON_QUEUES = {
    "memcache": """\
put None None None None
take 'a' b'delete victim\\r\\n' {'n': [1]} 7 None
gets None ('b', 0)
open None 'c' None
delete None None None
full None 'ValueError'
""",
    "meta-memcache": """\
put True True
take 'a' {'n': [1]} None
any name True 'b' None
add True False
many [None, 'c']
quiet True 'd'
delete True None
""",
}


def output_of(client: str, what: str, port: int, folder: Path) -> str:
    """Return what meta_clients.py prints with this client."""
    folder.mkdir()
    ended = Stand(in_python("", "meta_clients"), port, folder).run(
        "python", "-m", "meta_clients", client, what
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture
def memcached() -> Iterator[int]:
    """The port of a memcached."""
    (port,) = free_ports(1)
    command = [need("memcached", "memcached"), "-u", "nobody", "-l", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        wait_for(lambda: _answers(port), "memcached to listen")
        yield port
        process.terminate()
        process.wait(TIMEOUT)


def _answers(port: int) -> bool:
    try:
        with ValuesWire(port) as wire:
            wire.send(b"mn\r\n")
            return wire.line() == b"MN\r\n"
    except OSError:
        return False


@pytest.mark.parametrize("client", CLIENTS)
def test_values_are_as_with_memcached(
    client: str, memcached: int, backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("--backend", backend.url, "--listen", "memcached://127.0.0.1:0?mode=kv")
    found = output_of(client, "values", server.port_of("memcached", "?mode=kv"), tmp_path / "ours")
    assert found == output_of(client, "values", memcached, tmp_path / "theirs")
    assert found.count("\n") > 3
    server.end_well()


@pytest.mark.parametrize("client", CLIENTS)
def test_messages_are_put_and_taken(
    client: str, backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("--backend", backend.url, "--listen", "memcached://127.0.0.1:0")
    with server.client() as redis:
        redis.rpush("victim", "m")
        redis.execute_command("PRESSURE.CREATE", "full", "BOUND", 1)
        output = output_of(client, "queues", server.port_of("memcached"), tmp_path / "application")
        # meta-memcache logs the error of a full queue before it raises an exception.
        assert output.startswith(ON_QUEUES[client])
        assert redis.llen("victim") == redis.llen("full") == 1
    server.end_well()
