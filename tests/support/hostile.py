"""A server that is attacked: hostile connections to it, a client that watches, and its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.measures import MB, memory
from tests.support.programs import TIMEOUT, Client, Server, Valkey, wait_for
from tests.support.protocols import LISTEN, PROTOCOLS, Protocol, Wire

# What an interpreter may keep after it has worked.
GROWTH = 24 * MB

# How a client leaves.
LEAVING: dict[str, Callable[[Wire], object]] = {
    "close": Wire.close,
    "half-close": Wire.half_close,
    "reset": Wire.reset,
}
leavings = pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)


@contextlib.contextmanager
def bounded_peak(server: Server, growth: int) -> Iterator[None]:
    """Raise AssertionError if the server's memory grows by more than so many bytes at any time within."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory(server)
    yield
    peak = memory(server, "VmHWM")
    print(f"before {before / MB:.1f}, now {memory(server) / MB:.1f}, at most {peak / MB:.1f} MB")
    assert peak - before < growth


def wait_until_alone(observer: Client) -> None:
    """Return when no other client is connected."""
    wait_for(lambda: observer.info("clients")["connected_clients"] == 1, "the others to be gone")


def settled(look: Callable[[], object]) -> object:
    """Return what is seen once a hundred looks in a row have seen the same."""
    seen: list[object] = []

    def same() -> bool:
        seen.append(look())
        return len(seen) >= 100 and all(value == seen[-1] for value in seen[-100:])

    wait_for(same, "it to settle")
    return seen[-1]


@dataclass
class Victim:
    """A server that listens for all protocols, its backend, and redis-py, connected all the while."""

    server: Server
    backend: Valkey
    observer: Client
    _opened: list[Wire] = field(default_factory=list)

    def attack(self, protocol: Protocol, *, small_buffers: bool = False) -> Wire:
        """Open a hostile connection, which is closed at the end of the test."""
        self._opened.append(Wire(protocol, self.server, small_buffers=small_buffers))
        return self._opened[-1]

    def bystanders(self) -> list[Wire]:
        """Connect a client of each protocol."""
        return [Wire(protocol, self.server) for protocol in PROTOCOLS]

    @property
    def memory(self) -> int:
        return memory(self.server)

    def bounded_peak(self, growth: int) -> contextlib.AbstractContextManager[None]:
        return bounded_peak(self.server, growth)

    def wait_until_alone(self) -> None:
        wait_until_alone(self.observer)

    def close(self) -> None:
        """Close all hostile connections. Raises AssertionError if the server does not serve others."""
        assert self.observer.ping()
        for connection in self._opened:
            connection.close()
        self.wait_until_alone()
        assert self.observer.sadd("observed", "m") == 1
        assert self.observer.spop("observed") == b"m"


@contextlib.contextmanager
def started_victim(folder: Path) -> Iterator[tuple[Server, Valkey]]:
    """Start a server and its backend. At the end its memory must be what it was, and its log clean."""
    folder.mkdir(exist_ok=True)
    valkey = Valkey(folder)
    server = Server(folder / "log", "--backend", valkey.url, *LISTEN)
    try:
        for protocol in PROTOCOLS:
            with Wire(protocol, server) as client:
                for number in range(1000):  # what is allocated once
                    client.put(b"warm", b"%d" % number)
                    assert client.get(b"warm") == b"%d" % number
        before = memory(server)
        yield server, valkey
        wait_for(lambda: memory(server) - before < GROWTH, "memory to be freed")
        server.end_well()
    finally:
        server.process.kill()
        server.process.wait(TIMEOUT)
        valkey.stop()


@contextlib.contextmanager
def victim_of(attacked: tuple[Server, Valkey]) -> Iterator[Victim]:
    """Yield the victim, without data, for one test."""
    server, valkey = attacked
    with valkey.client() as direct:
        direct.flushall()
    with server.client(socket_timeout=TIMEOUT) as observer:
        assert observer.ping()
        victim = Victim(server, valkey, observer)
        yield victim
        victim.close()
