"""The backend's clock jumps by an hour: what docs/reliability.md says of each time that is kept.

libfaketime moves the clock of the backend, and no other: the monotonic clock goes on.
"""

import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.memcached_wire import MemcachedWire
from tests.support.paths import ROOT
from tests.support.programs import Server, StartServer, Valkey, wait_for
from tests.support.requirements import require
from tests.support.waiters import Waiter, wait_for_waiting

pytestmark = pytest.mark.clients

HOUR = 3600
# Half an hour in seconds and in milliseconds: over after a jump forward, and not after one back.
HALF = HOUR // 2
HALF_MS = HALF * 1000
_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class ClockedValkey(Valkey):
    """A backend whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        require(_LIBRARIES, "libfaketime, of the Debian package faketime")
        self._clock = folder / "clock"
        self.jump(0)
        super().__init__(folder)

    def launch(self) -> None:
        variables = {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **variables}
        )

    def jump(self, seconds: int) -> None:
        """Let the clock go wrong by so many seconds, from now on."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._clock)


class World:
    """Two servers on that backend, with clients. `is_forward` is the direction of the jump."""

    def __init__(self, backend: ClockedValkey, start_server: StartServer, *, is_forward: bool) -> None:
        self.is_forward = is_forward
        options = ("--backend", backend.url, "--implicit-queue-ttl", "2", "--outcome-ttl", "30m")
        listeners = ("--listen", "memcached://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0?mode=kv")
        self.server: Server = start_server(*options, *listeners)
        self.other: Server = start_server(*options)
        self.backend = backend

    @contextmanager
    def waiter(self, server: Server | None = None) -> Iterator[Waiter]:
        """Yield a new client, by default of the first server."""
        with Waiter((server or self.server).port) as connected:
            yield connected

    def jump(self) -> None:
        with self.backend.client() as direct:
            before = direct.time()[0]
            self.backend.jump(HOUR if self.is_forward else -HOUR)
            wait_for(lambda: abs(direct.time()[0] - before) > HALF, "the clock to jump")


# It prepares something, yields, and checks after the jump what has become of it.
Case = Callable[[World, Waiter], Generator[None, None, None]]


def delay(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "delayed", "TYPE", "JOBS")
    job = client("PRESSURE.PUT", "delayed", "m", "DELAY", HALF)
    yield
    reserved = client("PRESSURE.RESERVE", "delayed")
    if world.is_forward:
        assert reserved[2] == b"m"
    else:
        assert reserved is None
        assert fields(client("PRESSURE.JOB", "delayed", job))[b"time_left_ms"] > HOUR * 1000


def reservation(world: World, client: Waiter) -> Generator[None, None, None]:
    client("RPUSH", "reserved", "m")
    job = client("PRESSURE.RESERVE", "reserved", "DETACHED", "ann", "TTR", HALF)[1]
    yield
    again = client("PRESSURE.RESERVE", "reserved", "DETACHED", "bob", "TTR", HALF)
    if world.is_forward:
        assert again[2] == b"m"
    else:
        assert again is None
        assert fields(client("PRESSURE.JOB", "reserved", job))[b"time_left_ms"] > HOUR * 1000
        assert client("PRESSURE.ACK", "reserved", job, "TOKEN", "ann") == 1


def connection(_world: World, client: Waiter) -> Generator[None, None, None]:
    client("RPUSH", "held", "m")
    job = client("PRESSURE.RESERVE", "held")[1]
    yield
    assert client("PRESSURE.RESERVE", "held") is None
    assert client("PRESSURE.ACK", "held", job) == 1


def group(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "log", "TYPE", "LOG")
    client("PRESSURE.GROUP", "CREATE", "log", "g", "FROM", "HEAD")
    client("RPUSH", "log", "m")
    assert client("PRESSURE.READ", "log", "GROUP", "g", "ann", "TTR", HALF)[0][1] == b"m"
    yield
    again = client("PRESSURE.READ", "log", "GROUP", "g", "bob")
    assert (again[0][1] if world.is_forward else again) == (b"m" if world.is_forward else None)


def pause(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "paused", "TYPE", "JOBS")
    client("RPUSH", "paused", "m")
    assert client("PRESSURE.PAUSE", "paused", HALF) in (1, b"OK")
    yield
    assert client("LPOP", "paused") == (b"m" if world.is_forward else None)


def expiry_of_a_message(world: World, _client: Waiter) -> Generator[None, None, None]:
    with MemcachedWire(world.server) as wire:
        assert wire.store(b"expiring", b"m", more=b"0 %d" % HALF) == b"STORED"
        yield
        assert wire.get(b"expiring") == (None if world.is_forward else b"m")


def expiry_of_a_value(world: World, _client: Waiter) -> Generator[None, None, None]:
    port = re.search(r"memcached://127\.0\.0\.1:(\d+)\?mode=kv", world.server.log)
    assert port
    with Waiter(int(port[1])) as values:
        values.socket.sendall(b"set value 0 %d 1\r\nv\r\n" % HALF)
        assert values.socket.recv(100) == b"STORED\r\n"
        yield
        values.socket.sendall(b"get value\r\n")
        expected = b"END\r\n" if world.is_forward else b"VALUE value 0 1\r\nv\r\nEND\r\n"
        assert values.socket.recv(100) == expected


def unused_queue(world: World, client: Waiter) -> Generator[None, None, None]:
    for name in ("unused", "not empty"):
        client("PRESSURE.CREATE", name, "TTL", HALF)
    client("RPUSH", "not empty", "m")
    with world.backend.client() as direct:
        key = "__pressure__:unused:ext:settings"
        since = wait_for(lambda: direct.hget(key, "since"), "the queue to be found unused")
        yield
        if world.is_forward:
            wait_for(lambda: not client("EXISTS", "unused"), "the queue to be deleted")
        else:
            wait_for(lambda: direct.hget(key, "since") < since, "its time to begin anew")
            assert client("EXISTS", "unused") == 1
    assert client("LLEN", "not empty") == 1


def outcome(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "once", "TYPE", "LOG")
    put = ("PRESSURE.PUT", "once", "m", "TXN", "first")
    client(*put)
    yield
    client(*put)
    assert client("LLEN", "once") == 1
    client("PRESSURE.PUT", "once", "m", "TXN", "second")
    client(*put)
    assert client("LLEN", "once") == (3 if world.is_forward else 2)


def order(world: World, client: Waiter) -> Generator[None, None, None]:
    for name in ("one", "two"):
        client("PRESSURE.CREATE", name, "TYPE", "JOBS")
    client("RPUSH", "one", "before")
    yield
    client("RPUSH", "two", "after")
    client("RPUSH", "one", "last")
    found = [client("PRESSURE.RESERVE", "one", "two")[2] for _ in range(3)]
    if world.is_forward:
        assert found == [b"before", b"after", b"last"]
    else:
        assert found == [b"after", b"before", b"last"]


def age(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "old", "TYPE", "JOBS")
    job = client("PRESSURE.PUT", "old", "m", "PRIORITY", 1)
    yield
    age_ms = fields(client("PRESSURE.JOB", "old", job))[b"age_ms"]
    assert age_ms > HALF_MS if world.is_forward else age_ms == 0


def waiting_client(world: World, client: Waiter) -> Generator[None, None, None]:
    client("PRESSURE.CREATE", "later", "TYPE", "JOBS")
    job = client("PRESSURE.PUT", "later", "m", "DELAY", HALF)
    with world.waiter() as worker:
        worker.send("PRESSURE.RESERVE", "later", "TIMEOUT", 0)
        with world.server.client() as watching:
            wait_for_waiting(watching, "later", consumers=1)
        yield
        if world.is_forward:
            client("LLEN", "later")  # the next use of the queue
            assert worker.reply()[2] == b"m"
        else:
            assert fields(client("PRESSURE.JOB", "later", job))[b"time_left_ms"] > HOUR * 1000


def timeout(world: World, _client: Waiter) -> Generator[None, None, None]:
    with world.waiter() as short, world.waiter() as long:
        long.send("BLPOP", "nothing", HALF)
        short.send("BLPOP", "nothing", 1)
        yield
        assert short.reply() is None
        assert not long.has_reply()


def servers(world: World, client: Waiter) -> Generator[None, None, None]:
    with world.waiter() as here, world.waiter(world.other) as there:
        client("PRESSURE.CREATE", "shared")
        for worker, server in ((here, world.server), (there, world.other)):
            worker.send("BLPOP", "shared", 0)
            with server.client() as watching:
                wait_for_waiting(watching, "shared", consumers=1)
        yield
        client("RPUSH", "shared", "a", "b")
        assert sorted([here.reply()[1], there.reply()[1]]) == [b"a", b"b"]
    for server in (world.server, world.other):
        with server.client() as readiness:
            assert readiness.execute_command("PRESSURE.READY") == b"OK"
        assert "died" not in server.log


# By the first column of the table.
CASES: dict[str, Case] = {
    "a delay": delay,
    "a time to run (`TTR`)": reservation,
    "a reservation of a connection, without `TTR`": connection,
    "what a consumer of a group has read": group,
    "a pause": pause,
    "the expiry of a message (memcached)": expiry_of_a_message,
    "the expiry of a value (`mode=kv`)": expiry_of_a_value,
    "the time to live of a queue": unused_queue,
    "outcomes of transaction ids": outcome,
    "the order of jobs": order,
    "the age of a job": age,
    "a client that waits for a job with a delay": waiting_client,
    "timeouts of commands": timeout,
    "the death of servers, and waiting clients of several servers": servers,
}


def fields(reply: list[Any]) -> dict[bytes, int]:
    """Return the fields of a reply that are numbers."""
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {name: value for name, value in pairs if isinstance(value, int)}


@pytest.mark.slow
@pytest.mark.parametrize("is_forward", [True, False], ids=["forward", "back"])
def test_each_time_does_what_the_page_says_when_the_clock_jumps(
    start_server: StartServer, tmp_path: Path, is_forward: bool
) -> None:
    folder = tmp_path / "backend"
    folder.mkdir()
    backend = ClockedValkey(folder)
    try:
        world = World(backend, start_server, is_forward=is_forward)
        with world.waiter() as client:
            begun = [case(world, client) for case in CASES.values()]
            for case in begun:
                next(case)
            world.jump()
            for case in begun:
                with pytest.raises(StopIteration):
                    next(case)
    finally:
        backend.kill()


def test_the_page_has_a_row_for_each_time() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    section = page.partition("## When the backend's clock jumps\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows if row[0] != "what"] == list(CASES)
