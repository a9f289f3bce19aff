"""`pressure-server backup` and `restore`: what was acknowledged before a backup comes back."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from pressure_server.backend.backups import data_snapshot
from tests.support.faults import AS_ROOT
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    embedded_client,
    join,
    refused_start,
    run_command,
    run_here,
    wait_for,
)

# Bytes of a message in tests that need a backup which takes a while.
LARGE = 1 << 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory of the server that is backed up."""
    return tmp_path / "data"


@pytest.fixture
def server(start_server: StartServer, data: Path) -> Server:
    return start_server("--data-dir", str(data))


def back_up(data: Path, file: Path, *options: str) -> str:
    ran = run_command("backup", "--data-dir", str(data), str(file), *options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def restore(file: Path, data: Path, *options: str) -> str:
    ran = run_command("restore", str(file), "--data-dir", str(data), *options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def refused(command: str, *arguments: str | Path) -> str:
    """Run a command that fails with one line. Return the line."""
    ran = run_command(command, *map(str, arguments))
    assert ran.returncode == 1, ran
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    return ran.stderr


class Load:
    """Producers of plain queues and of jobs, and a worker, and what they have been told."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopped = threading.Event()
        self.put: dict[str, list[bytes]] = {"a": [], "b": [], "c": [], "jobs": []}
        self.taken: set[bytes] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor() as pool:
            works = [pool.submit(self._run, partial(self._produce, name)) for name in self.put]
            works.append(pool.submit(self._run, self._work))
            try:
                yield
            finally:
                self._stopped.set()
            for work in works:
                work.result(TIMEOUT)

    def acknowledged(self) -> dict[str, list[bytes]]:
        """Return the messages of each producer that have been acknowledged so far."""
        return {name: messages.copy() for name, messages in self.put.items()}

    def _run(self, step: Callable[[Client], None]) -> None:
        with self._server.client() as client:
            while not self._stopped.is_set():
                step(client)

    def _produce(self, name: str, client: Client) -> None:
        done = self.put[name]
        message = b"%s %d" % (name.encode(), len(done))
        if name == "jobs":
            client.execute_command("PRESSURE.PUT", name, message, "PRIORITY", len(message))
        else:
            client.rpush(name, message)
        done.append(message)

    def _work(self, client: Client) -> None:
        job = client.execute_command("PRESSURE.RESERVE", "jobs")
        if job and client.execute_command("PRESSURE.ACK", "jobs", job[1]):
            self.taken.add(job[2])


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--durability", "fsync")], ids=["everysec", "fsync"])
def test_every_message_acknowledged_before_a_backup_is_in_it(
    start_server: StartServer, data: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Two backups one after another under load, while Valkey rewrites its file again and again."""
    server = start_server("--data-dir", str(data), *options)
    with server.client() as client:
        client.execute_command("PRESSURE.CREATE", "jobs")
    load = Load(server)
    stopped = threading.Event()

    def rewrite() -> None:
        with embedded_client(data) as direct:
            while not stopped.wait(0.02):
                if not direct.info("persistence")["aof_rewrite_in_progress"]:
                    direct.bgrewriteaof()

    rewriting = threading.Thread(target=rewrite, name="rewriting")
    backups = []
    with load.running():
        rewriting.start()
        for number in range(2):
            least = 50 * (number + 1)
            wait_for(lambda: min(map(len, load.put.values())) >= least, "load between two backups")  # noqa: B023
            before = load.acknowledged()
            back_up(data, tmp_path / f"{number}.tar")
            backups.append((tmp_path / f"{number}.tar", before))
        stopped.set()
        join(rewriting)
    assert server.stop() == 0
    for file, before in backups:
        restore(file, file.with_suffix(""))
        with start_server("--data-dir", str(file.with_suffix(""))).client() as client:
            left = set()
            while job := client.execute_command("PRESSURE.RESERVE", "jobs"):
                left.add(job[2])
            assert set(before.pop("jobs")) <= left | load.taken
            for name, messages in before.items():
                # Without consumers: exactly what was put up to a moment during the backup.
                found = client.lrange(name, 0, -1)
                assert len(found) >= len(messages)
                assert found == [b"%s %d" % (name.encode(), number) for number in range(len(found))]


def test_a_backup_of_a_stopped_server_is_restored_by_the_command_or_by_tar(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        client.sadd("q", "a", "b")
    assert server.stop() == 0
    file = tmp_path / "backup.tar"
    back_up(data, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert "is sound: 3 files" in run_command("check-data", str(file)).stdout
    restore(file, tmp_path / "restored")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", "../backup.tar"], cwd=unpacked, check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=unpacked, check=True)
    # The first directory is unchanged and usable.
    for directory in (tmp_path / "restored", unpacked, data):
        with start_server("--data-dir", str(directory)).client() as client:
            assert client.smembers("q") == {b"a", b"b"}


def test_reserved_jobs_and_settings_come_back(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        client.execute_command("PRESSURE.CREATE", "q", "BOUND", 3)
        for message in ("a", "b"):
            client.execute_command("PRESSURE.PUT", "q", message, "PRIORITY", 1)
        assert client.execute_command("PRESSURE.RESERVE", "q")[2] == b"a"
        assert client.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "d", "TTR", 1000)[2] == b"b"
        server.check_idle()  # what is not known to be delivered goes back
        back_up(data, tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "restored")
    with start_server("--data-dir", str(tmp_path / "restored")).client() as client:
        # The job of a connection is ready again; the one that outlives connections is still reserved.
        assert client.execute_command("PRESSURE.RESERVE", "q")[2] == b"a"
        assert client.execute_command("PRESSURE.RESERVE", "q") is None
        assert client.execute_command("PRESSURE.INFO", "q")


def test_a_backup_can_be_piped_into_a_restore(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        client.sadd("q", "a")
    restored = tmp_path / "restored"
    program = f"{sys.executable} -m pressure_server"
    pipe = f"{program} backup --data-dir {data} - | {program} restore --data-dir {restored} -"
    subprocess.run(["bash", "-o", "pipefail", "-c", pipe], check=True, timeout=TIMEOUT)
    with start_server("--data-dir", str(restored)).client() as client:
        assert client.smembers("q") == {b"a"}


def test_a_file_is_replaced_only_by_force(server: Server, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("precious")
    assert f"{file} exists" in refused("backup", "--data-dir", data, file)
    assert file.read_text() == "precious"
    back_up(data, file, "--force")
    assert tarfile.is_tarfile(file)
    assert {path.name for path in tmp_path.glob("backup*")} == {"backup.tar"}
    assert "No such file or directory" in refused("backup", "--data-dir", data, tmp_path / "none" / "file")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["backup", "--data-dir", "{tmp}/none", "{tmp}/f"], 1, "there are no data in "),
        (["backup", "{tmp}/f", "--backend", "redis://127.0.0.1"], 2, "for the embedded backend"),
        (["restore", "{tmp}/f", "--backend", "redis://127.0.0.1"], 2, "for the embedded backend"),
        (["check-data", "--backend", "redis://127.0.0.1"], 2, "for the embedded backend"),
        (["restore", "{tmp}/none", "--data-dir", "{tmp}/d"], 1, "none: No such file or directory"),
        (["check-data", "{tmp}/none"], 2, "none: No such file or directory"),
        (["check-data", "--data-dir", "{tmp}/none"], 2, "there is no data directory"),
        (["check-data", "--data-dir", "{tmp}"], 2, "there are no data in "),
        (["check-data", "{tmp}/none", "--repair"], 2, "a backup cannot be repaired"),
        (["backup", "--data-dir", "{tmp}/" + "d" * 100, "{tmp}/f"], 1, "path is too long"),
        (["backup"], 2, "Missing argument 'FILE'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    arguments: list[str], status: int, complaint: str, tmp_path: Path
) -> None:
    ran = run_command(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert ran.returncode == status
    assert complaint in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"server.lock"}


def test_a_valkey_without_an_append_only_file_is_reported(server: Server, data: Path) -> None:
    with embedded_client(data) as direct:
        direct.config_set("appendonly", "no")
    assert "cannot write its append-only file" in refused("backup", "--data-dir", data, data / "file")


def test_a_valkey_that_hangs_is_reported(
    server: Server, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_snapshot, "_SYNC_TIMEOUT", 1.0)
    valkey = int((data / "valkey.pid").read_text())
    os.kill(valkey, signal.SIGSTOP)
    try:
        ran = run_here("backup", "--data-dir", str(data), str(tmp_path / "backup.tar"))
    finally:
        os.kill(valkey, signal.SIGCONT)
    assert ran.returncode == 1
    assert "did not sync its append-only file: Timeout" in ran.stderr


@pytest.mark.slow
def test_a_backup_waits_for_a_long_script(server: Server, data: Path, tmp_path: Path) -> None:
    with embedded_client(data) as direct, embedded_client(data) as other:
        direct.config_set("busy-reply-threshold", 1)
        script = "local t = redis.call('TIME')[1] while redis.call('TIME')[1] - t < 3 do end"
        running = threading.Thread(target=other.eval, args=(script, 0))
        running.start()

        def is_busy() -> bool:
            try:
                return not direct.ping()
            except redis.ResponseError:
                return True

        wait_for(is_busy, "the script to run")
        back_up(data, tmp_path / "backup.tar")
        join(running)


def test_a_directory_in_use_or_with_data_is_not_restored_into(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup.tar"
    with server.client() as client:
        client.sadd("q", "old")
        back_up(data, file)
        client.sadd("q", "new")
    for options in ((), ("--force",)):
        assert "is in use by pressure-server" in refused("restore", file, "--data-dir", data, *options)
    assert server.stop() == 0
    assert "has data (appendonlydir)" in refused("restore", file, "--data-dir", data)
    former = re.search(r"the former data are in (.*)", restore(file, data, "--force"))
    assert former is not None
    with start_server("--data-dir", str(data)).client() as client:
        assert client.smembers("q") == {b"old"}
    kept = Path(former[1]).rename(tmp_path / "kept")  # a shorter path, for its socket
    with start_server("--data-dir", str(kept)).client() as client:
        assert client.smembers("q") == {b"old", b"new"}


def test_a_valkey_without_its_server_is_backed_up_but_not_overwritten(
    server: Server, data: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        client.sadd("q", "a")
    server.stop(signal.SIGKILL)
    valkey = int((data / "valkey.pid").read_text())
    try:
        back_up(data, tmp_path / "backup.tar")
        complaint = refused("restore", tmp_path / "backup.tar", "--data-dir", data, "--force")
        assert "a Valkey is running on" in complaint
    finally:
        os.kill(valkey, signal.SIGTERM)


def test_what_root_restores_belongs_to_the_owner_of_the_directory(
    server: Server, data: Path, tmp_path: Path
) -> None:
    back_up(data, tmp_path / "backup.tar")
    owned = tmp_path / "owned"
    owned.mkdir()
    subprocess.run([*AS_ROOT, "chown", "4000:4000", owned], check=True)
    command = (sys.executable, "-m", "pressure_server", "restore", "--force", tmp_path / "backup.tar")
    for _ in range(2):  # the second one keeps the data of the first
        subprocess.run([*AS_ROOT, *command, "--data-dir", owned], check=True, stdout=subprocess.DEVNULL)
    find = (*AS_ROOT, "find", owned)
    assert b"before-restore-" in subprocess.check_output(find)
    assert subprocess.check_output([*find, "-not", "-user", "4000"]) == b""


@pytest.mark.parametrize("command", ["restore", "check-data"])
def test_a_command_of_root_that_fails_leaves_no_file_that_the_server_cannot_open(
    tmp_path: Path, command: str
) -> None:
    owned, no_backup = tmp_path / "owned", tmp_path / "backup.tar"
    no_backup.touch()
    owned.mkdir()
    subprocess.run([*AS_ROOT, "chown", "4000:4000", owned], check=True)
    ran = subprocess.run(
        [
            *(*AS_ROOT, sys.executable, "-m", "pressure_server", command, "--data-dir", owned),
            *([no_backup] if command == "restore" else []),
        ],
        check=False,
        capture_output=True,
    )
    assert ran.returncode != 0
    found = subprocess.check_output([*AS_ROOT, "find", owned, "-printf", "%U %f\\n"])
    assert found.split() == [b"4000", b"owned", b"4000", b"server.lock"]


def test_a_server_does_not_start_on_an_unfinished_restore(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        client.sadd("q", "a")
    back_up(data, tmp_path / "backup.tar")
    unfinished = tmp_path / "unfinished"
    (unfinished / "restoring").mkdir(parents=True)
    (unfinished / "restoring" / "appendonly.aof.1.base.rdb").write_text("part")
    assert "was interrupted: run pressure-server restore again" in refused_start(
        "--data-dir", str(unfinished)
    )
    assert run_command("check-data", "--data-dir", str(unfinished)).returncode == 1
    restore(tmp_path / "backup.tar", unfinished)
    with start_server("--data-dir", str(unfinished)).client() as client:
        assert client.smembers("q") == {b"a"}


@pytest.mark.slow
def test_a_killed_restore_leaves_the_former_data(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    fill(server, 3)
    with server.client() as client:
        client.sadd("q", "old")
        back_up(data, tmp_path / "backup.tar")
        client.sadd("q", "new")
    assert server.stop() == 0
    content = (tmp_path / "backup.tar").read_bytes()
    command = [sys.executable, "-m", "pressure_server", "restore", "-", "--force", "--data-dir", str(data)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(content[: 2 * LARGE])
    process.stdin.flush()
    wait_for(lambda: list(data.glob("restoring/*.incr.aof")), "the parts to be unpacked")
    process.kill()
    process.stdin.close()
    process.wait(TIMEOUT)
    with start_server("--data-dir", str(data)).client() as client:
        assert client.smembers("q") == {b"old", b"new"}


def fill(server: Server, messages: int) -> None:
    """Put messages that do not compress."""
    with server.client() as client:
        for _ in range(messages):
            client.sadd("large", os.urandom(LARGE))


def stopped_backup(data: Path, file: Path) -> subprocess.Popen[str]:
    """Return a backup that is stopped (SIGSTOP) while it writes its file. If it was faster, begin again."""
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "pressure_server", "backup", "--data-dir", str(data), str(file)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A shell starts background jobs, such as a run of these tests, with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        wait_for(lambda: file.exists() or list(file.parent.glob("*.partial")), "the backup to be written")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if list(file.parent.glob("*.partial")):
            return process
        end(process, signal.SIGCONT)
        file.unlink()


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Let a stopped process go on with a signal. Return its exit status and what it said."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=TIMEOUT)[1].strip()
    return process.returncode, said


@pytest.mark.slow
def test_an_interrupted_backup_leaves_no_file_and_changes_nothing(
    server: Server, data: Path, tmp_path: Path
) -> None:
    fill(server, 60)
    file = tmp_path / "backup.tar"
    with embedded_client(data) as direct:
        settings = direct.config_get("*")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            assert end(stopped_backup(data, file), number) == (130, "")
            assert not list(tmp_path.glob("backup*"))
        assert end(stopped_backup(data, file), signal.SIGKILL) == (-signal.SIGKILL, "")
        assert [path.suffix for path in tmp_path.glob("backup*")] == [".partial"]
        back_up(data, file)
        assert direct.config_get("*") == settings
        assert direct.keys("pressure-server:*") == []


def too_large(*arguments: str | Path) -> bool:
    """Run a command that cannot write files above 1 MiB. Return whether it fails and says so."""
    command = ["bash", "-c", 'ulimit -f 1024; exec "$@"', "bash", sys.executable, "-m", "pressure_server"]
    ran = subprocess.run([*command, *map(str, arguments)], capture_output=True, timeout=TIMEOUT, check=False)
    return ran.returncode == 1 and b"File too large" in ran.stderr


@pytest.mark.slow
def test_a_disk_without_space_leaves_everything_as_it_was(
    server: Server, start_server: StartServer, data: Path, tmp_path: Path
) -> None:
    fill(server, 3)
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    assert too_large("backup", "--data-dir", data, file)
    assert not list(tmp_path.glob("backup*"))
    back_up(data, file)
    assert too_large("restore", file, "--data-dir", restored)
    assert not restored.exists()
    assert server.stop() == 0
    assert too_large("restore", file, "--data-dir", data, "--force")
    assert not list(data.glob("before-*"))
    with start_server("--data-dir", str(data)).client() as client:
        assert client.scard("large") == 3
