"""Commands of Redis that work on other data than queues are refused loudly, and known to be."""

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from handlers.resp.unsupported import PAGE, UNSUPPORTED
from tests.support.paths import ROOT
from tests.support.programs import Client, StartServer, Valkey
from tests.support.waiters import Waiter, create

# Commands that concern a server or a connection, not data: unknown ones stay unknown.
_OF_SERVERS = {
    "ASKING", "BGREWRITEAOF", "BGSAVE", "CLUSTER", "CLUSTERSCAN", "COMMANDLOG", "DEBUG", "FAILOVER",
    "LASTSAVE", "LOLWUT", "MODULE", "PSYNC", "READONLY", "READWRITE", "REPLCONF", "REPLICAOF",
    "SAVE", "SHUTDOWN", "SLAVEOF", "SYNC",
}  # fmt: skip


def test_every_command_of_the_backend_is_known_or_refused(direct: Client) -> None:
    commands.load()
    names = {name.decode().upper() for name in direct.execute_command("COMMAND LIST")}
    assert len(names) > 200
    ours = {name.decode() for name in COMMANDS}
    refused = {name.decode() for name in UNSUPPORTED}
    assert sorted(name for name in names - ours - refused - _OF_SERVERS if "|" not in name) == []
    assert sorted(refused & ours) == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("HSET key field value", "'HSET' is not a queue command: this is a queue server, and has no hashes"),
        ("eval script 0", "'EVAL' is not a queue command: a script would change queues without the server"),
        ("RENAME one other", "'RENAME' is not a queue command: a queue is known by its name"),
        ("expire q 10", "'EXPIRE' is not a queue command: a queue with messages does not expire"),
        ("WAITAOF 1 0 0", "'WAITAOF' is not a queue command: with --durability fsync, each reply says"),
        ("JSON.SET q $ 1", "'JSON.SET' is not a queue command: this is a queue server"),
        ("vsim q 1", "'VSIM' is not a queue command: this is a queue server, and has no vectors"),
    ],
)
def test_a_command_on_other_data_is_refused_with_the_reason(
    waiter: Waiter, command: str, reason: str
) -> None:
    reply = str(waiter(*command.split()))
    assert reply.startswith(f"UNSUPPORTED {reason}")
    assert reply.endswith(f"; see '{PAGE}' in the documentation of pressure-server")


def test_a_refusal_says_where_the_documentation_is(backend: Valkey, start_server: StartServer) -> None:
    url = "https://wiki.example/queues"
    server = start_server("--backend", backend.url, "--documentation-url", url)
    with Waiter(server.port) as waiter:
        assert str(waiter("HSET", "key", "field", "value")).endswith(f"; see '{PAGE}' at {url}")
    assert f"see '{PAGE}' at {url}" in server.log


def test_the_page_that_refusals_name_is_the_one_on_compatibility() -> None:
    assert (ROOT / "docs/compatibility.md").read_text("utf-8").startswith(f"# {PAGE}\n")


def test_a_refused_command_ends_a_transaction(waiter: Waiter, client: Client) -> None:
    assert waiter("MULTI") == b"OK"
    assert waiter("SADD", "q", "a") == b"QUEUED"
    assert str(waiter("ZADD", "q", 1, "a")).startswith("UNSUPPORTED 'ZADD'")
    assert str(waiter("EXEC")).startswith("EXECABORT ")
    assert client.exists("q") == 0


@pytest.mark.parametrize("command", ["NONSENSE q", "CLIENT NONSENSE", "HELLO 4", "CLUSTER INFO"])
def test_what_no_data_command_is_stays_unknown(waiter: Waiter, command: str) -> None:
    assert not str(waiter(*command.split())).startswith("UNSUPPORTED ")


def test_a_push_if_the_queue_exists(waiter: Waiter, client: Client) -> None:
    for command in ("LPUSHX", "RPUSHX"):
        assert waiter(command, "q", "a", "b") == 0
    assert client.exists("q") == 0
    create(client, "q", "BOUND", 3, "OVERFLOW", "ERROR")
    assert waiter("LPUSHX", "q", "a", "b") == 2
    assert waiter("RPUSHX", "q", "c") == 3
    assert str(waiter("RPUSHX", "q", "d")).startswith("FULL ")
    assert client.lrange("q", 0, -1) == [b"a", b"b", b"c"]


def test_a_server_is_a_master_for_its_clients(waiter: Waiter) -> None:
    assert waiter("ROLE") == [b"master", 0, []]
