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


def stored(before: str, after: str, state: bytes = b"", ends: bool = True) -> Case:
    """Return a case of a time of half an hour that the backend stores.

    If it is over, the command after the jump gets message `m`, else nothing. If the last command before the
    jump puts or reserves a job, the job is in that `state` until its time is over. With `ends`, it has one.
    """

    def case(world: World, client: Waiter) -> Generator[None, None, None]:
        reply = [client(*command.split()) for command in before.split("; ")][-1]
        yield
        is_over = world.is_forward and ends
        assert (b"m" in flat(client(*after.split()))) == is_over
        if state and not is_over:
            job = reply[1] if isinstance(reply, list) else reply
            found = fields(client("PRESSURE.JOB", after.split()[1], job))
            assert found[b"state"] == state
            assert not ends or found[b"time_left_ms"] > HOUR * 1000

    return case


def flat(reply: Any) -> list[Any]:
    """Return the parts of a reply, and of the lists in it."""
    return [part for each in reply for part in flat(each)] if isinstance(reply, list) else [reply]


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
    def put(transaction: str) -> int:
        """Put a message, and return the length of the log."""
        client("PRESSURE.PUT", "once", "m", "TXN", transaction)
        return int(client("LLEN", "once"))

    client("PRESSURE.CREATE", "once", "TYPE", "LOG")
    assert put("first") == 1
    yield
    assert put("first") == 1
    assert put("second") == 2
    assert put("first") == (3 if world.is_forward else 2)


def order(world: World, client: Waiter) -> Generator[None, None, None]:
    for name in ("one", "two"):
        client("PRESSURE.CREATE", name, "TYPE", "JOBS")
    client("RPUSH", "one", "before")
    yield
    client("RPUSH", "two", "after")
    client("RPUSH", "one", "last")
    found = [client("PRESSURE.RESERVE", "one", "two")[2] for _ in range(3)]
    assert found == ([b"before", b"after", b"last"] if world.is_forward else [b"after", b"before", b"last"])


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
    "a delay": stored(
        f"PRESSURE.CREATE delayed TYPE JOBS; PRESSURE.PUT delayed m DELAY {HALF}",
        "PRESSURE.RESERVE delayed", b"delayed",
    ),
    "a time to run (`TTR`)": stored(
        f"RPUSH reserved m; PRESSURE.RESERVE reserved DETACHED ann TTR {HALF}",
        "PRESSURE.RESERVE reserved DETACHED bob", b"reserved",
    ),
    "a reservation of a connection, without `TTR`": stored(
        "RPUSH held m; PRESSURE.RESERVE held", "PRESSURE.RESERVE held", b"reserved", ends=False
    ),
    "what a consumer of a group has read": stored(
        "PRESSURE.CREATE log TYPE LOG; PRESSURE.GROUP CREATE log g FROM HEAD; RPUSH log m; "
        f"PRESSURE.READ log GROUP g ann TTR {HALF}",
        "PRESSURE.READ log GROUP g bob",
    ),
    "a pause": stored(
        f"PRESSURE.CREATE paused TYPE JOBS; RPUSH paused m; PRESSURE.PAUSE paused {HALF}", "LPOP paused"
    ),
    "the expiry of a message (memcached)": expiry_of_a_message,
    "the expiry of a value (`mode=kv`)": expiry_of_a_value,
    "the time to live of a queue": unused_queue,
    "outcomes of transaction ids": outcome,
    "the order of jobs": order,
    "the age of a job": age,
    "a client that waits for a job with a delay": waiting_client,
    "timeouts of commands": timeout,
    "the death of servers, and waiting clients of several servers": servers,
}  # fmt: skip


def fields(reply: list[Any]) -> dict[bytes, Any]:
    """Return the fields of a reply by name."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


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
