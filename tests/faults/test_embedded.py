"""The embedded backend: its data survives restarts and kills, and a directory has one server."""

import asyncio
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import redis

from pressure_server.backend.embedded import Embedded
from pressure_server.lua.scripts import library
from tests.support.faults import small_disk
from tests.support.programs import (
    TIMEOUT,
    Client,
    StartServer,
    embedded_client,
    refused_start,
    run_command,
    wait_for,
)
from tests.support.waiters import packed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory of the test's servers."""
    return tmp_path / "data"


@pytest.fixture
def start(start_server: StartServer, data: Path) -> StartServer:
    """Return a function that starts a server on the data directory."""
    return partial(start_server, "--data-dir", str(data))


def process_of(data: Path) -> int:
    """Return the process number in Valkey's file."""
    return int((data / "valkey.pid").read_text())


def test_queued_messages_survive_a_restart(start: StartServer) -> None:
    first = start()
    with first.client() as client:
        assert client.sadd("q", "a", "b", "a") == 2
        assert client.spop("q") == b"a"
    assert first.stop() == 0
    second = start()
    with second.client() as client:
        assert client.spop("q") == b"b"
        assert client.spop("q") is None
    assert second.stop() == 0


def test_the_log_tells_the_listeners_and_the_data_directory(start: StartServer, data: Path) -> None:
    server = start()
    assert f"listening on resp://127.0.0.1:{server.port}" in server.log
    assert f"backend: embedded Valkey 9.1.2, data in {data}" in server.log
    assert " ready" in server.log.strip().splitlines()[-1]
    assert "WARNING" not in server.log
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_only_the_server_s_user_can_reach_and_read_the_data(start: StartServer, data: Path) -> None:
    data.mkdir(mode=0o755)
    data.chmod(0o755)  # whatever the umask
    server = start()
    with server.client() as client, embedded_client(data) as direct:
        client.rpush("q", "m")
        assert direct.config_get("port") == {"port": "0"}
        assert direct.config_get("appendonly") == {"appendonly": "yes"}
    assert (data / "valkey.sock").stat().st_mode & 0o777 == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*") if path.is_file()}
    assert {"server.lock", "valkey.log", "valkey.pid", "appendonly.aof.manifest"} < set(modes)
    assert set(modes.values()) == {0o600}, modes
    assert f"the data directory {data} is open to all users (mode 755): chmod 700 it" in server.log


def test_a_second_server_on_the_same_data_is_refused(start: StartServer, data: Path) -> None:
    first = start()
    error = refused_start("--data-dir", str(data))
    assert f"is in use by pressure-server, process {first.process.pid}" in error
    with first.client() as client:
        assert client.ping()


def test_the_command_that_the_error_gives_repairs_a_damaged_append_only_file(
    start: StartServer, data: Path
) -> None:
    first = start()
    with first.client() as client:
        for number in range(100):
            client.sadd("q", number)
    assert first.stop() == 0
    (file,) = (data / "appendonlydir").glob("*.incr.aof")
    content = bytearray(file.read_bytes())
    behind_library = content.index(library().text) + len(library().text)
    content[content.index(b"*", (behind_library + len(content)) // 2)] = 0
    file.write_bytes(content)
    error = refused_start("--data-dir", str(data))
    command = re.search(r"To check it, run: pressure-server (check-data --data-dir \S+); ", error)
    assert command is not None, error
    assert run_command(*command[1].split()).returncode == 1
    assert run_command(*command[1].split(), "--repair").returncode == 0
    second = start()
    with second.client() as client:
        assert 0 < client.scard("q") < 100


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 16 << 10])
def test_a_start_on_a_full_disk_says_so_in_one_line(tmp_path: Path, left: int) -> None:
    with small_disk(tmp_path / "disk") as disk:
        filler = tmp_path / "disk" / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(filler, filler.stat().st_size - left)
        error = refused_start("--data-dir", str(disk.data_dir))
    assert f"{disk.data_dir}: No space left on device" in error
    assert "free space on" in error
    assert "check-data" not in error


def test_a_start_after_a_kill_stops_the_orphan_and_loses_no_message(start: StartServer, data: Path) -> None:
    first = start()
    with first.client() as client:
        for number in range(1000):
            client.sadd("q", number)
    first.stop(signal.SIGKILL)
    orphan = process_of(data)
    os.kill(orphan, 0)
    second = start()
    assert f"stopping a Valkey (process {orphan})" in second.log
    with second.client() as client:
        assert client.spop("q", 2000) == [b"%d" % number for number in range(1000)]
    assert second.stop() == 0


def test_a_pid_file_that_names_a_hidden_process_of_another_user_does_not_matter(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut, with ProtectProc=invisible of systemd: the process exists, its files do not."""
    data.mkdir(mode=0o700)
    (data / "valkey.pid").write_text(f"{os.getpid()}\n")
    read_bytes = Path.read_bytes

    def read_visible(path: Path) -> bytes:
        if path == Path(f"/proc/{os.getpid()}/cmdline"):
            raise FileNotFoundError(path)
        return read_bytes(path)

    async def play() -> None:
        embedded = Embedded(data)
        await embedded.start()
        await embedded.stop()

    monkeypatch.setattr(Path, "read_bytes", read_visible)
    asyncio.run(play())


def another_process(direct: Client, before: int) -> int:
    """Return Valkey's process number if it runs, and in another process than before, else 0."""
    with suppress(redis.RedisError):
        process = int(direct.info("server")["process_id"])
        return process if process != before else 0
    return 0


def test_a_backend_that_dies_repeatedly_is_started_with_growing_pauses(
    start: StartServer, data: Path
) -> None:
    server = start()
    with server.client() as client, embedded_client(data) as direct:
        client.sadd("q", "a")
        process = process_of(data)
        began = time.monotonic()
        for _ in range(4):
            os.kill(process, signal.SIGKILL)
            process = wait_for(partial(another_process, direct, process), "Valkey to run")
        # None before the first start, then 100, 200 and 400 ms.
        assert time.monotonic() - began > 0.7
        assert client.spop("q") == b"a"
    assert server.stop() == 0
    assert "starting it again" in server.log
    assert server.log.count("Valkey ended") <= 1


def test_valkey_is_started_again_after_a_lack_of_file_descriptors(start: StartServer, data: Path) -> None:
    server = start()
    process = process_of(data)
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    with server.client() as client, embedded_client(data) as direct:
        client.sadd("q", "a")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
        os.kill(process, signal.SIGKILL)
        refusal = "Valkey cannot be started: Too many open files; starting it again"
        wait_for(lambda: refusal in server.log, "the start to fail")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        wait_for(partial(another_process, direct, process), "Valkey to run")
        assert client.spop("q") == b"a"
    assert server.stop() == 0


def test_valkey_is_started_again_if_no_thread_can_be_started(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def play() -> None:
        embedded = Embedded(data)
        await embedded.start()
        try:
            first = process_of(data)
            monkeypatch.setattr(asyncio, "to_thread", refuse)
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(TIMEOUT):
                with embedded_client(data) as direct:
                    while not another_process(direct, first):  # noqa: ASYNC110 -- no event tells that
                        await asyncio.sleep(0.01)  # between two looks at the condition
        finally:
            await embedded.stop()

    asyncio.run(play())


def test_the_log_of_valkey_does_not_grow_for_ever(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pressure_server.backend.embedded._LIMIT_LOG_EVERY", 0.01)
    log, former = data / "valkey.log", data / "valkey.log.1"

    async def play() -> None:
        embedded = Embedded(data)
        await embedded.start()
        try:
            os.truncate(log, 10 << 20)
            async with asyncio.timeout(TIMEOUT):
                while not former.exists():  # noqa: ASYNC110 -- no event tells that
                    await asyncio.sleep(0.01)  # between two looks at the condition
        finally:
            await embedded.stop()

    asyncio.run(play())
    assert former.stat().st_size == 10 << 20
    assert "bye bye" in log.read_text()


def test_a_server_does_not_start_beside_an_orphan_that_it_cannot_find(start: StartServer, data: Path) -> None:
    """Valkey's process number is unknown, as on a full disk."""
    first = start()
    orphan = process_of(data)
    first.stop(signal.SIGKILL)
    (data / "valkey.pid").write_text("")
    try:
        assert "another Valkey is running on" in refused_start("--data-dir", str(data))
    finally:
        os.kill(orphan, signal.SIGTERM)


def test_the_backend_outlives_a_drain_by_ctrl_c(start: StartServer, data: Path) -> None:
    server = start()
    with server.client() as client:
        client.sadd("q", "a")
    assert os.getpgid(process_of(data)) != os.getpgid(server.process.pid)
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.process.wait(TIMEOUT) == 0
    assert "Valkey ended" not in server.log
    assert server.log.rstrip().endswith("stopped")


@pytest.mark.slow
def test_a_signal_while_the_data_is_loaded_stops_server_and_backend(data: Path) -> None:
    data.mkdir(mode=0o700)
    (data / "appendonly.aof").write_bytes(packed("EVAL", "for i = 1, 1e10 do end", 0))
    log, valkey_log = data / "log", data / "valkey.log"
    server = subprocess.Popen(
        [sys.executable, "-m", "pressure_server", "--listen", "resp://127.0.0.1:0", "--data-dir", str(data)],
        stdin=subprocess.DEVNULL,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(lambda: valkey_log.exists() and "of a load" in valkey_log.read_text(), "the load to begin")
        valkey = process_of(data)
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT) == 0, log.read_text()
    finally:
        server.kill()
        server.wait(TIMEOUT)
    assert "ready:" not in log.read_text()
    assert "listening" not in log.read_text()
    assert log.read_text().endswith("stopped\n")
    with pytest.raises(ProcessLookupError):
        os.kill(valkey, 0)


def test_a_data_directory_may_have_any_name(start_server: StartServer, tmp_path: Path) -> None:
    with start_server("--data-dir", str(tmp_path / "100%20 #1?")).client() as client:
        assert client.sadd("q", "a") == 1


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    assert "path is too long" in refused_start("--data-dir", str(tmp_path / ("d" * 100)))
