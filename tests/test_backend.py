"""The backend: away and back, scripts forgotten, databases, versions that are too old, a hanging one."""

from __future__ import annotations

import re
import signal
import socket
import threading

import pytest
import redis

from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    run_command,
    wait_for,
)


def _sadd(client: Client, message: str) -> object:
    """What SADD answers, or the code of its error."""
    try:
        return client.sadd("q", message)
    except redis.ResponseError as error:
        return str(error).split()[0]


@pytest.mark.slow
def test_while_the_backend_is_away_operations_fail_at_once_and_then_work_again(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey("--appendonly", "yes", "--appendfsync", "always")
    server = start_server("--backend", valkey.url)
    with server.client() as client:
        assert _sadd(client, "a") == 1
        valkey.kill()
        wait_for(lambda: _sadd(client, "b") == "BACKEND", "an error")
        with pytest.raises(redis.ResponseError, match="BACKEND"):
            client.spop("q")
        with pytest.raises(redis.ResponseError, match="BACKEND"):
            client.keys("*")
        assert client.ping()
        assert client.info("backend")["backend_link_status"] == "down"
        valkey.start()
        wait_for(lambda: _sadd(client, "c") == 1, "the backend to be back")
        assert client.spop("q") == b"a"
        assert client.info("backend")["backend_link_status"] == "up"
    assert server.stop() == 0
    # While it starts it may close connections that are just open; those are tries.
    assert len(re.findall(r"was lost(?!.*trying again)", server.log)) == 1
    assert server.log.count("is back after") == 1


@pytest.mark.slow
def test_a_server_starts_while_its_backend_is_away(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    valkey.kill()
    server = start_server("--backend", valkey.url)
    with server.client() as client:
        assert _sadd(client, "a") == "BACKEND"
        valkey.start()
        wait_for(lambda: _sadd(client, "a") == 1, "the backend")


def test_scripts_that_the_backend_forgot_are_loaded_again(client: Client, direct: Client) -> None:
    client.sadd("q", "a")
    direct.script_flush()
    assert client.sadd("q", "b") == 1
    assert client.spop("q", 2) == [b"a", b"b"]


def test_select_works_on_the_backend_s_database_of_that_number(server: Server, backend: Valkey) -> None:
    with server.client(db=5) as client:
        assert client.sadd("q", "a") == 1
        assert client.client_info()["db"] == 5
    with backend.client(db=5) as direct:
        assert direct.lrange("__pressure__:q", 0, -1) == [b"a"]
    with server.client() as client:
        assert client.scard("q") == 0
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            client.execute_command("SELECT", 16)
        assert client.scard("q") == 0


def test_a_backend_s_own_database_is_where_clients_begin(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", f"{backend.url}?db=3")
    with server.client() as client, backend.client(db=3) as direct:
        client.sadd("q", "a")
        assert direct.llen("__pressure__:q") == 1


def test_flushall_deletes_the_queues_of_all_databases_and_nothing_else(
    server: Server, backend: Valkey
) -> None:
    with backend.client() as direct, server.client() as client, server.client(db=2) as other:
        direct.set("somebody's", "value")
        client.sadd("q", "a")
        other.sadd("q", "b")
        client.flushdb()
        assert (client.exists("q"), other.exists("q")) == (0, 1)
        client.flushall()
        assert other.exists("q") == 0
        assert keys_left(direct) == [b"somebody's"]


@pytest.mark.slow
def test_a_password_of_the_backend_is_used_and_not_shown(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey("--requirepass", "not&for%show")
    url = valkey.url.replace("unix://", "unix://:not&for%25show@")
    server = start_server("--backend", url)
    with server.client() as client:
        assert client.sadd("q", "a") == 1
        assert "show" not in str(client.info())
    assert "show" not in server.log
    refused = run_command("--listen", "resp://127.0.0.1:0", "--backend", valkey.url)
    assert refused.returncode == 1
    assert "NOAUTH" in refused.stderr


class _Impostor:
    """A server that answers every command with the same bytes: a Redis that cannot be installed here."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            while connection.recv(65536):
                connection.sendall(self._reply)


@pytest.mark.parametrize("version", ["2.8.0", "5.0.14", "6.0.20"])
def test_an_old_redis_is_refused_with_the_reason(version: str) -> None:
    info = f"# Server\r\nredis_version:{version}\r\n".encode()
    old = _Impostor(b"$%d\r\n%b\r\n" % (len(info), info))
    refused = run_command("--listen", "resp://127.0.0.1:0", "--backend", old.url)
    assert refused.returncode == 1
    assert f"is Redis {version}; Redis 6.2 or Valkey is needed" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_what_is_in_flight_at_sigterm_is_finished(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        valkey.process.send_signal(signal.SIGSTOP)
        connection.sendall(b"SADD q a\r\n")
        wait_for(lambda: _received(server.port) == 0, "the command to be read")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in server.log, "the drain to begin")
        valkey.process.send_signal(signal.SIGCONT)
        assert connection.recv(100) == b":1\r\n"
        assert connection.recv(100) == b""
    assert server.process.wait(20) == 0


def _received(port: int) -> int:
    """How many bytes wait unread in sockets of the port, from /proc/net/tcp."""
    from pathlib import Path

    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = f":{port:04X}"
    return sum(
        int(fields[4].split(":")[1], 16)
        for fields in lines
        if fields[1].endswith(local) and fields[3] == "01"
    )


def test_that_the_backend_has_too_many_clients_is_not_taken_as_final(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with valkey.client() as direct, server.client() as client:

        def watching() -> list[str]:
            return [about["id"] for about in direct.client_list() if "t" in about["flags"]]

        (watch,) = wait_for(watching, "the watch")
        direct.config_set("maxclients", len(direct.client_list()) - 1)
        direct.client_kill_filter(_id=watch)
        # Its error may be overtaken by the end of the connection.
        with pytest.raises(redis.ResponseError, match="BACKEND"):
            client.execute_command("SELECT", 3)
        direct.config_set("maxclients", 1000)
        wait_for(watching, "the watch to be back")
        assert client.execute_command("SELECT", 3)
    assert "WARNING" not in server.log
    server.end_well()
