"""The readers in docs/guides/log-shippers.md read every line, also if one of them is killed."""

import sys
from pathlib import Path

import pytest

from tests.support.log_shippers import OPERATOR, access, guide_block_for
from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey, wait_for
from tests.support.waiters import create

LINES = [f"order {number}" for number in range(250)]


@pytest.fixture
def server(backend: Valkey, start_server: StartServer, tmp_path: Path) -> Server:
    return start_server("--backend", backend.url, *access(tmp_path))


@pytest.fixture
def client(server: Server) -> Client:
    return server.client(**OPERATOR)


def start_reader(kind: str, server: Server, log: Path, name: str = "search-1") -> BackgroundProgram:
    """Start the reader that the guide has, under that name."""
    program = guide_block_for(server.port, f"python {kind}\n").replace("search-1", name)
    return BackgroundProgram(log, sys.executable, "-c", program)


def test_a_reader_prints_every_line_in_order(server: Server, client: Client, tmp_path: Path) -> None:
    create(client, "logs", "BOUND", 100000)
    client.rpush("logs", *LINES)
    with start_reader("reader", server, tmp_path / "log") as reader:
        reader.wait_for("order 249\n")
        assert reader.output.splitlines() == LINES
        wait_for(lambda: client.llen("logs") == 0, "the lines to be acknowledged")


def test_another_reader_gets_what_a_killed_one_has_not_acknowledged(
    server: Server, client: Client, tmp_path: Path
) -> None:
    create(client, "logs", "BOUND", 100000)
    client.rpush("logs", *LINES)
    killed = server.client(**OPERATOR)
    taken = killed.execute_command("PRESSURE.RESERVE", "logs", "COUNT", 100, "TIMEOUT", 0)
    assert [entry[2].decode() for entry in taken] == LINES[:100]
    killed.close()
    with start_reader("reader", server, tmp_path / "log") as reader:
        reader.wait_for("order 249\n")
        wait_for(lambda: set(reader.output.splitlines()) == set(LINES), "all lines")


def test_every_group_reads_every_line_once(server: Server, client: Client, tmp_path: Path) -> None:
    create(client, "logs", "TYPE", "log", "BOUND", 100000, "OVERFLOW", "overwrite")
    for group in ("search", "archive"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "logs", group)
    with (
        start_reader("group", server, tmp_path / "first") as first,
        start_reader("group", server, tmp_path / "second", "search-2") as second,
    ):
        for line in LINES:
            client.rpush("logs", line)

        def read() -> list[str]:
            return first.output.splitlines() + second.output.splitlines()

        wait_for(lambda: len(read()) == len(LINES), "the lines")
        assert sorted(read()) == sorted(LINES)
        assert client.llen("logs") == len(LINES)  # the other group has not read them
        assert client.llen("logs+archive") == len(LINES)
        assert [client.lpop("logs+archive").decode() for _ in LINES] == LINES
        wait_for(lambda: client.llen("logs") == 0, "the lines to leave the log")


def test_another_reader_of_the_group_gets_what_a_dead_one_has_read(
    server: Server, client: Client, tmp_path: Path
) -> None:
    create(client, "logs", "TYPE", "log")
    client.execute_command("PRESSURE.GROUP", "CREATE", "logs", "search")
    client.rpush("logs", *LINES)
    # The guide's reader says TTR 30.
    client.execute_command("PRESSURE.READ", "logs", "GROUP", "search", "dead", "COUNT", 100, "TTR", 1)
    with start_reader("group", server, tmp_path / "log") as reader:
        wait_for(lambda: set(reader.output.splitlines()) == set(LINES), "all lines")
