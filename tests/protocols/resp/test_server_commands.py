"""COMMAND, INFO, CONFIG, CLIENT, and a command that fails with an unexpected exception."""

from pathlib import Path

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.side_by_side import split
from tests.support.waiters import Waiter, is_refused, packed


def test_command_describes_every_command(server: Server, client: Client) -> None:
    commands.load()
    described = client.command()
    assert set(described) == {name.decode().lower() for name in COMMANDS}
    sadd = described["sadd"]
    assert (sadd["arity"], sadd["first_key_pos"], sadd["last_key_pos"]) == (-3, 1, 1)
    docs = server.client(protocol=3).execute_command("COMMAND DOCS", "sadd", "client", "nonsense")
    assert set(docs) == {b"sadd", b"client"}


def test_info_and_config_have_redis_s_fields_and_the_server_s(client: Client) -> None:
    client.sadd("q", "a")
    info = client.info()
    assert info["redis_version"] == "7.0.15"
    assert info["connected_clients"] >= 1
    assert info["backend_link_status"] == "up"
    assert info["db0"] == {"keys": 1, "expires": 0, "avg_ttl": 0}
    assert info["queue_q"]["length"] == 1
    assert set(client.info("clients")) == {
        *("connected_clients", "maxclients", "blocked_clients"),
        *("throttled_clients", "waiting_operations", "max_waiting"),
    }
    most = {"maxclients": "10000", "maxmemory": "0", "maxmemory-policy": "noeviction"}
    assert client.config_get("max*") == most


@pytest.mark.parametrize("count", [1, 7, 600])
def test_every_command_of_a_pipeline_is_counted(client: Client, waiter: Waiter, count: int) -> None:
    lines = "SPOP q|SADD q a|LPOP q 1|ECHO a|ECHO|BLPOP q 0.001|SELECT 0|nonsense a|MULTI;SADD q a;EXEC"
    for line in split(lines):
        before = client.info("stats")["total_commands_processed"]
        requests = [packed(*command.split()) for command in line.split(";")] * count
        waiter.socket.sendall(b"".join(requests))
        for _ in requests:
            waiter.reply()
        found = client.info("stats")["total_commands_processed"]
        assert found == before + len(requests) + 1, line


def test_client_list_flags_waiting_clients_and_transactions(server: Server, client: Client) -> None:
    with Waiter(server.port) as waiting, Waiter(server.port) as queueing:
        waiting("CLIENT", "SETNAME", "waiting")
        waiting.send("BLPOP", "q", 0)
        queueing("CLIENT", "SETNAME", "queueing")
        queueing("MULTI")
        queueing("SADD", "q", "m")
        wait_for(lambda: client.info("clients")["blocked_clients"] == 1, "the client to wait")
        listed = {entry["name"]: (entry["flags"], entry["multi"]) for entry in client.client_list()}
        assert listed == {"waiting": ("b", "-1"), "queueing": ("x", "1"), "": ("N", "-1")}
        queueing("EXEC")
        assert waiting.reply() == [b"q", b"m"]
        assert client.info("clients")["blocked_clients"] == 0


# A sitecustomize.py, which the interpreter imports at its start.
BUGS = """
from handlers.resp.table import command

def fail(client, words):
    raise LookupError("a bug")

async def fail_later(client, words):
    raise LookupError("a bug")

command("BUG [word]", "Fails at once.", group="server", needs="nothing", repeated=fail)(fail)
command("BUG.QUEUE key", "Fails in a call shared with other commands.", group="server", needs="read")(fail)
command("BUG.LATER", "Fails as a coroutine.", group="server", needs="nothing")(fail_later)
"""


def test_an_unexpected_exception_fails_only_the_command_that_raised_it(
    tmp_path: Path, backend: Valkey, start_server: StartServer
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUGS)
    server = start_server("--backend", backend.url, environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    with Waiter(server.port) as waiter:
        for command in ("BUG", "BUG.QUEUE q", "BUG.LATER"):
            assert "internal error" in str(waiter(*command.split()))
            assert waiter("SADD", "q", command) == 1
        assert server.log.count("LookupError: a bug") == 3
        waiter.socket.sendall(packed("BUG", "x") * 100 + packed("PING"))
        replies = [str(waiter.reply()) for _ in range(100)]
        assert all(reply.startswith("ERR internal error") for reply in replies)
        assert waiter.reply() == b"PONG"
        for line in ["MULTI", "SADD r a", "BUG", "BUG.QUEUE r", "BUG.LATER", "BUG.QUEUE r", "SPOP r", "EXEC"]:
            waiter.send(*line.split())
        first, *bugs, last = [waiter.reply() for _ in range(8)][-1]
        assert (first, last) == (1, b"a")
        assert [is_refused(bug, "ERR") for bug in bugs] == [True] * 4
        assert waiter("PING") == b"PONG"
