"""Power cuts of the backend: what each level of durability loses when bytes that were not synced are gone."""

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import redis

from tests.support.beanstalk_wire import Beanstalk
from tests.support.crowd import Crowd
from tests.support.power import Disk
from tests.support.programs import StartServer, Valkey, run_command, start_replicated, wait_for
from tests.support.requirements import need
from tests.support.waiters import Connection, Waiter

APPEND_ONLY = ("--appendonly", "yes", "--appendfsync")
CUTS = 4
QUEUE = "__pressure__:q"
# Seconds of changes that `appendfsync everysec` may lose: the sync of one second may last until the next.
_EVERYSEC = 2.0
_MORE_THAN_BUFFERS_HOLD = bytes(30 << 20)

StartPowered = Callable[..., Valkey]


@pytest.fixture
def start_powered(tmp_path: Path, request: pytest.FixtureRequest) -> StartPowered:
    """Return a function that starts a backend whose power can be cut: Valkey, or Debian's Redis."""

    def start(policy: str, *, is_redis: bool = False) -> Valkey:
        folder = tmp_path / "backend"
        folder.mkdir()
        binary = need("redis-server", "redis-server") if is_redis else None
        backend = Valkey(folder, *APPEND_ONLY, policy, binary=binary, loses_power=True)
        request.addfinalizer(backend.kill)
        return backend

    return start


@pytest.mark.slow
@pytest.mark.parametrize("is_redis", [False, True], ids=["Valkey", "Redis 7.0"])
def test_with_fsync_power_cuts_lose_and_double_nothing(
    start_server: StartServer, start_powered: StartPowered, is_redis: bool
) -> None:
    backend, chance = start_powered("always", is_redis=is_redis), random.Random(1)
    server = start_server("--backend", backend.url, "--durability", "fsync")
    with Crowd(server, 20) as crowd:
        for _ in range(CUTS):
            crowd.wait_for_success()
            backend.cut_power(chance)
            backend.start()
        crowd.wait_for_success()
    crowd.assert_nothing_lost()


def test_without_fsync_a_power_cut_loses_the_changes_of_the_last_seconds_at_most(
    start_server: StartServer, start_powered: StartPowered
) -> None:
    backend = start_powered("everysec")
    assert backend.disk is not None
    server = start_server("--backend", backend.url)
    acknowledged: list[float] = []
    with server.client() as client:
        end = time.monotonic() + 2 * _EVERYSEC
        while time.monotonic() < end or not _stops_with_unsynced_bytes(backend, backend.disk):
            client.rpush("q", len(acknowledged))
            acknowledged.append(time.monotonic())
        cut = time.monotonic()
        backend.cut_power(random.Random(1))
        backend.start()
        wait_for(lambda: _length(client, "q") is not None, "the backend")
        left = client.lrange("q", 0, -1)
        assert left == [b"%d" % number for number in range(len(left))]
        lost = [cut - when for when in acknowledged[len(left) :]]
        print(
            f"lost {len(lost)} of {len(acknowledged)}: those of the last {max(lost, default=0):.2f} seconds"
        )
        assert backend.disk.lost > 0
        assert 0 < max(lost) < _EVERYSEC
        # The queue goes on as if these changes had never been made.
        assert client.lpop("q", len(left)) == left
        assert client.rpush("q", "new") == 1


def test_a_message_whose_acknowledgement_is_lost_in_a_power_cut_comes_again(
    start_server: StartServer, start_powered: StartPowered
) -> None:
    """Its reservation is back, and the client that had it has ended it.

    What a client still has stays with it, also if the reply is on its way.
    """
    backend = start_powered("always")
    listeners = ("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0")
    server = start_server("--backend", backend.url, *listeners)
    with (
        Waiter(server.port) as worker,
        Waiter(server.port) as slow,
        Waiter(server.port) as leaver,
        Connection(server.port_of("memcached")) as kestrel,
        Beanstalk(server) as tubes,
        Waiter(server.port) as other,
    ):
        for queue in ("popped", "unread"):
            worker("PRESSURE.CREATE", queue, "ACK", "NEXT")
        for queue in ("reserved", "popped", "left", "opened", "tube", "kept"):
            worker("RPUSH", queue, queue)
        jobs = {queue: worker("PRESSURE.RESERVE", queue)[1] for queue in ("reserved", "kept")}
        worker("PRESSURE.CREATE", "log", "TYPE", "LOG")
        worker("PRESSURE.GROUP", "CREATE", "log", "g")
        worker("RPUSH", "log", "a", "b", "c")
        first, second, third = (job[1] for job in worker("PRESSURE.RESERVE", "log+g", "COUNT", 3))
        worker("LPOP", "popped")
        worker("RPUSH", "unread", _MORE_THAN_BUFFERS_HOLD)
        slow.send("LPOP", "unread")
        wait_for(lambda: worker("LLEN", "unread") == 0, "the pop")
        leaver("PRESSURE.RESERVE", "left")
        _get(kestrel, b"opened/open")
        tubes("watch tube")
        job, _ = tubes("reserve")
        with backend.client() as direct:
            direct.config_set("appendfsync", "no")
        assert worker("PRESSURE.ACK", "reserved", jobs["reserved"]) == 1
        assert worker("PRESSURE.ACK", "log+g", first, third) == 2
        assert worker("LPOP", "popped") is None
        leaver.close()
        assert other("BLPOP", "left", 30) == [b"left", b"left"]
        _get(kestrel, b"opened/close")
        assert tubes(f"delete {job}") == b"DELETED"
        backend.cut_power()
        backend.start()
        for ended in (b"reserved", b"popped", b"left", b"opened", b"tube"):
            assert other("BLPOP", ended, 30) == [ended, ended]
        assert [other("BLPOP", "log+g", 30)[1] for _ in range(2)] == [b"a", b"c"]
        assert worker("PRESSURE.ACK", "log+g", second) == 1
        assert [other("LPOP", queue) for queue in ("kept", "unread", "log+g")] == [None, None, None]
        assert worker("PRESSURE.ACK", "kept", jobs["kept"]) == 1
        assert slow.reply() == _MORE_THAN_BUFFERS_HOLD
        assert slow("LPOP", "unread") is None
        wait_for(lambda: other("PRESSURE.PENDING", "unread") == [], "the acknowledgement")
        assert "7 reservations again" in server.log


def test_a_role_whose_return_is_lost_in_a_power_cut_is_returned(
    start_server: StartServer, start_powered: StartPowered
) -> None:
    """Otherwise native clients would wait for it until a server starts."""
    backend = start_powered("always")
    server = start_server("--backend", backend.url)
    token, parked = f"{QUEUE}:consumer_free", f"{QUEUE}:ext:consumer_turn"
    with server.client() as client, backend.client() as direct:
        client.rpush("q", "message")
        # The server has its turn, and returns the role without a sync.
        direct.sadd("__pressure__!turns", parked)
        direct.lmove(token, parked)
        direct.config_set("appendfsync", "no")
        direct.lmove(parked, token)
        client.rpush("q", "lost")
        backend.cut_power()
        backend.start()
        wait_for(lambda: direct.llen(token) == 1, "the role to be free")
        assert client.lrange("q", 0, -1) == [b"message"]


def _get(kestrel: Connection, key: bytes) -> None:
    kestrel.socket.sendall(b"get %b\r\n" % key)
    while not kestrel.socket.recv(1000).endswith(b"END\r\n"):
        pass


def _stops_with_unsynced_bytes(backend: Valkey, disk: Disk) -> bool:
    """Stop the backend. Let it go on, and return False, if it has synced everything."""
    backend.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, backend.process.pid, os.WSTOPPED | os.WNOWAIT)
    if disk.has_unsynced():
        return True
    backend.process.send_signal(signal.SIGCONT)
    return False


def _length(client: redis.Redis, queue: str) -> int | None:
    try:
        return int(client.llen(queue))
    except redis.RedisError:
        return None


@pytest.mark.parametrize("level", ["fsync", "none"])
def test_the_embedded_backend_starts_after_a_power_cut_and_has_lost_nothing_with_fsync(
    start_server: StartServer, tmp_path: Path, level: str
) -> None:
    data = tmp_path / "data"
    disk = Disk(data, "valkey.log", "lock")
    options = ("--data-dir", str(data), "--durability", level)
    server = start_server(*options, environment=disk.environment)
    with server.client() as client:
        for number in range(200):
            client.rpush("q", number)
    server.kill()
    os.kill(int((data / "valkey.pid").read_text()), signal.SIGKILL)
    disk.cut(random.Random(1))
    server = start_server(*options, environment=disk.environment)
    with server.client() as client:
        left = client.lrange("q", 0, -1)
    assert left == [b"%d" % number for number in range(len(left))]
    assert level == "none" or len(left) == 200


def test_with_a_replica_a_power_cut_of_the_master_loses_nothing_if_the_replica_takes_over(
    start_server: StartServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """If the master comes back as the master instead, its replica follows it, and has as little."""
    numbers = count()

    def start(*options: str) -> Valkey:
        folder = tmp_path / f"backend-{next(numbers)}"
        folder.mkdir()
        backend = Valkey(folder, *APPEND_ONLY, "everysec", *options, loses_power=True)
        request.addfinalizer(backend.kill)
        return backend

    main, replica = start_replicated(start)
    server = start_server("--backend", main.url, "--durability", "replica")
    with server.client() as client:
        for number in range(200):
            client.rpush("q", number)
    main.cut_power(random.Random(1))
    with replica.client() as direct:
        assert direct.llen(QUEUE) == 200
        main.start()
        wait_for(lambda: direct.info("replication")["master_link_status"] == "up", "the replica")
        with main.client() as of_main:
            assert direct.llen(QUEUE) == of_main.llen(QUEUE)


def test_a_backup_and_a_restore_survive_a_power_cut_after_their_end(
    start_server: StartServer, tmp_path: Path
) -> None:
    numbers = [b"%d" % number for number in range(200)]
    server = start_server("--data-dir", str(tmp_path / "data"))
    with server.client() as client:
        client.rpush("q", *numbers)
    backups = Disk(tmp_path / "backups")
    restored = Disk(tmp_path / "restored", "server.lock")
    backup = str(tmp_path / "backups" / "backup.tar.gz")
    (tmp_path / "backups").mkdir()
    for disk, *command in (
        (backups, "backup", "--data-dir", str(tmp_path / "data"), backup),
        (restored, "restore", backup, "--data-dir", str(tmp_path / "restored")),
    ):
        ended = run_command(*command, environment=disk.environment, new_process=True)
        assert ended.returncode == 0, ended.stderr
        disk.cut(random.Random(1))
        assert disk.lost == 0
    with start_server("--data-dir", str(tmp_path / "restored")).client() as client:
        assert client.lrange("q", 0, -1) == numbers
