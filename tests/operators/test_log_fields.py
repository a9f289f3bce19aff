"""Unknown commands in the log, the fields of JSON logs, and what `--log-level debug` tells."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.guards import users_toml
from tests.support.programs import Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Wire
from tests.support.waiters import Waiter, packed


def entries_of(server: Server, text: str) -> list[dict[str, Any]]:
    """Return the entries of a JSON log whose messages contain the text."""
    entries = [json.loads(line) for line in server.log.splitlines()]
    return [entry for entry in entries if text in entry["message"]]


@pytest.fixture
def server(start_server: StartServer, backend: Valkey) -> Server:
    started: Server = start_server("--backend", backend.url, *LISTEN, "--log-format", "json")
    return started


def test_unknown_commands_are_logged_once_for_each_library(server: Server) -> None:
    with Waiter(server.port) as plain, Waiter(server.port) as named:
        named("CLIENT", "SETINFO", "LIB-NAME", "my-lib")
        named("CLIENT", "SETINFO", "LIB-VER", "1.2")
        for client in (plain, named):
            for _ in range(3):
                client("gibberish", "stream", "secret")
                client("CLIENT", "tracking", "on")
    with Wire(MEMCACHED, server) as memcached, Wire(BEANSTALK, server) as beans:
        memcached(b"slabs reassign\r\n")
        beans.send(b"nonsense x\r\n")
        assert beans.line() == b"UNKNOWN_COMMAND\r\n"
    logged = entries_of(server, "unknown command")
    assert [(entry["command"], "my-lib 1.2" in entry["message"]) for entry in logged] == [
        ("GIBBERISH", False), ("CLIENT TRACKING", False), ("GIBBERISH", True), ("CLIENT TRACKING", True),
        ("SLABS", False), ("NONSENSE", False),
    ]  # fmt: skip
    assert "replied -ERR unknown command" in logged[0]["message"]
    assert logged[0].keys() == {
        "time", "level", "logger", "message", "client", "user", "command", "error",
    }  # fmt: skip
    assert "secret" not in server.log


def test_data_that_are_read_as_commands_are_logged_once(server: Server) -> None:
    with Wire(MEMCACHED, server) as confused:
        confused.send(packed("AUTH", "default", "not-to-be-logged") + b"and-more\r\n")
        confused.half_close()
    with Wire(RESP, server) as confused:
        confused.send(b"\x80 x\r\nnot-to-be-logged\r\n")
        confused.half_close()
    assert [entry["command"] for entry in entries_of(server, "unknown command")] == ["(not a name)"]
    assert "not-to-be-logged" not in server.log
    assert "and-more" not in server.log


def test_failed_logins_have_fields(server: Server) -> None:
    with Waiter(server.port) as client:
        client("AUTH", "somebody", "wrong")
    (entry,) = entries_of(server, "failed login")
    assert (entry["user"], entry["error"]) == ("somebody", "WRONGPASS")
    assert entry["client"].startswith("127.0.0.1:")


def test_debug_tells_the_life_of_connections_and_calls(
    tmp_path: Path, start_server: StartServer, backend: Valkey
) -> None:
    users = tmp_path / "users.toml"
    rights = ["put", "get", "read", "administer"]
    users.write_text(users_toml({"default": ("", ["*"], rights), "ada": ("pw", ["*"], rights)}))
    options = ["--log-format", "json", "--log-level", "debug", "--users", str(users)]
    server = start_server("--backend", backend.url, *LISTEN, *options)
    with Waiter(server.port) as client:
        client("AUTH", "ada", "pw")
        client.socket.sendall(b"".join(packed("SADD", "q", number) for number in range(100)))
        for _ in range(100):
            client.reply()
        with Waiter(server.port) as killer:
            killer("CLIENT", "KILL", "USER", "ada")
    wait_for(lambda: len(entries_of(server, " closed after ")) == 2, "the connections to close")
    assert len(entries_of(server, " opened (resp)")) == 2
    (login,) = entries_of(server, "login as")
    assert login["user"] == "ada"
    killed, left = sorted(
        entries_of(server, " closed after "), key=lambda entry: "KILL" not in entry["message"]
    )
    assert "101 commands: CLIENT KILL" in killed["message"]
    assert (killed["client"], killed["user"]) == (login["client"], "ada")
    assert killed["duration"] > 0
    assert left["message"].endswith("1 command: the client closed it")
    calls = entries_of(server, "block on queue q took")
    assert calls
    assert calls[0]["queue"] == "q"
    assert calls[0]["duration"] > 0


def test_debug_tells_why_connections_are_closed(start_server: StartServer, backend: Valkey) -> None:
    options = ["--log-format", "json", "--log-level", "debug", "--idle-timeout", "0.3"]
    server = start_server("--backend", backend.url, *options)
    with Waiter(server.port) as idle, Waiter(server.port) as quitting:
        quitting("QUIT")
        with pytest.raises(ConnectionError):
            idle.reply()
    with Waiter(server.port) as last:
        assert last("PING") == b"PONG"
        server.stop()
    messages = [entry["message"] for entry in entries_of(server, " closed after ")]
    assert [message.partition(" seconds and ")[2] for message in messages] == [
        "1 command: the server closed it",
        "0 commands: it was idle (--idle-timeout)",
        "1 command: the server stops",
    ]


def test_without_debug_connections_and_calls_are_not_logged(server: Server) -> None:
    with Waiter(server.port) as client:
        client("SADD", "q", "a")
    assert not entries_of(server, "connection ")
    assert not entries_of(server, " on queue")
