"""Backups across versions: data of earlier versions, restored for them and for this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import (
    Client,
    Server,
    StartServer,
    embedded_client,
    records,
    run_command,
    wait_for,
)
from tests.support.versions import extract

# The last commit of version 0.1.0, and one of this version.
VERSIONS = {"0.1.0": "c0421bc~1", "with jobs": "1e3593e"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VERSIONS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source of an earlier version."""
    return extract(VERSIONS[request.param], tmp_path_factory.mktemp("source"))


def put_old_data(client: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "bounded", "BOUND", 3)
    client.sadd("bounded", "a", "b")
    client.rpush("plain", *(f"message {number}" for number in range(200)))
    assert client.lpop("plain", 50)[0] == b"message 0"


def wait_until_delivered(data: Path) -> None:
    """Return when the server has noted that its client has the messages: else a restore puts them back."""
    with embedded_client(data) as direct:
        wait_for(lambda: not (direct.keys("*:ext:calls") or records(direct)), "the take to be noted")


def assert_old_data(client: Client) -> None:
    assert client.smembers("bounded") == {b"a", b"b"}
    assert client.lrange("plain", 0, -1) == [b"message %d" % number for number in range(50, 200)]


def assert_usable(client: Client) -> None:
    """Use both queues. The bound is the old one."""
    assert client.sadd("bounded", "c") == 1
    assert client.execute_command("PRESSURE.LENGTH", "bounded") == 3
    assert client.spop("bounded") == b"a"
    client.rpush("plain", "last")
    assert client.lpop("plain") == b"message 50"
    assert client.lrange("plain", -1, -1) == [b"last"]


def run(command: str, *arguments: str | Path) -> None:
    ran = run_command(command, *map(str, arguments))
    assert (ran.returncode, ran.stderr) == (0, ""), ran


def stop(server: Server) -> None:
    assert server.stop() == 0, server.log


def test_a_backup_of_an_older_server_is_restored_for_this_version_and_for_the_older(
    source: Path, start_server: StartServer, tmp_path: Path
) -> None:
    old = start_server("--data-dir", str(tmp_path / "data"), source=source)
    with old.client() as client:
        put_old_data(client)
    wait_until_delivered(tmp_path / "data")
    # This version's command, while the old server runs.
    run("backup", "--data-dir", tmp_path / "data", tmp_path / "backup.tar")
    stop(old)
    for name, version in (("new", None), ("old", source)):
        run("restore", tmp_path / "backup.tar", "--data-dir", tmp_path / name)
        server = start_server("--data-dir", str(tmp_path / name), source=version)
        with server.client() as client:
            assert_old_data(client)
            assert_usable(client)
        stop(server)


def test_an_upgrade_is_rolled_back_to_the_backup_before_it(
    source: Path, start_server: StartServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    old = start_server("--data-dir", str(data), source=source)
    with old.client() as client:
        put_old_data(client)
    stop(old)
    run("backup", "--data-dir", data, tmp_path / "backup.tar")
    new = start_server("--data-dir", str(data))
    with new.client() as client:
        assert_old_data(client)
        client.execute_command("PRESSURE.CREATE", "log", "TYPE", "log")
        client.rpush("log", "x")
        client.lpop("plain", 100)
    stop(new)
    run("restore", "--data-dir", data, tmp_path / "backup.tar", "--force")
    old = start_server("--data-dir", str(data), source=source)
    with old.client() as client:
        assert_old_data(client)
        assert_usable(client)
        assert not client.exists("log")
    stop(old)


def test_data_that_this_version_has_used_are_backed_up_and_rolled_back(
    source: Path, start_server: StartServer, tmp_path: Path
) -> None:
    """The old version serves the messages that this version has put, from a backup of this version."""
    data = tmp_path / "data"
    old = start_server("--data-dir", str(data), source=source)
    with old.client() as client:
        put_old_data(client)
    stop(old)
    new = start_server("--data-dir", str(data))
    with new.client() as client:
        client.rpush("plain", "of this version")
        client.lpop("plain", 100)
    stop(new)
    run("backup", "--data-dir", data, tmp_path / "backup.tar")
    run("restore", "--data-dir", tmp_path / "old", tmp_path / "backup.tar")
    old = start_server("--data-dir", str(tmp_path / "old"), source=source)
    with old.client() as client:
        assert client.llen("plain") == 51
        assert client.lpop("plain") == b"message 150"
        assert client.lpop("plain", 100)[-1] == b"of this version"
    stop(old)
