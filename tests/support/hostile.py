"""A server under attack: hostile connections to it, a client that observes it, and its memory."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.measures import MB, memory, reset_peak
from tests.support.programs import Client, Server, Valkey, wait_for
from tests.support.protocols import LISTEN, PROTOCOLS, Protocol, Wire

# Bytes that an interpreter may keep after all attacks of a module. Commands of 200 000 words leave 17 MB
# in the first two rounds, and no more in later ones; the order of the attacks adds some.
GROWTH = 31 * MB

# How a client disconnects.
LEAVING: dict[str, Callable[[Wire], object]] = {
    "close": Wire.close,
    "half-close": Wire.half_close,
    "reset": Wire.reset,
}
leavings = pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)


@contextlib.contextmanager
def bounded_peak(server: Server, growth: int) -> Iterator[None]:
    """Raise AssertionError if the server's memory grows by more than so many bytes during the block."""
    reset_peak(server)
    before = memory(server)
    yield
    peak = memory(server, "VmHWM")
    print(f"before {before / MB:.1f}, now {memory(server) / MB:.1f}, at most {peak / MB:.1f} MB")
    assert peak - before < growth


def wait_until_alone(observer: Client) -> None:
    """Return when no other client is connected."""
    wait_for(lambda: observer.info("clients")["connected_clients"] == 1, "the other clients to be gone")


def settled(look: Callable[[], object], times: int = 100) -> object:
    """Return the value of `look` after so many equal values in a row."""
    seen: list[object] = []

    def same() -> bool:
        seen.append(look())
        return len(seen) >= times and all(value == seen[-1] for value in seen[-times:])

    wait_for(same, "the value to settle")
    return seen[-1]


@dataclass
class Victim:
    """A server that listens for all protocols, its backend, and an observing client."""

    server: Server
    backend: Valkey
    observer: Client
    _opened: list[Wire] = field(default_factory=list)

    def attack(self, protocol: Protocol, *, small_buffers: bool = False) -> Wire:
        """Open a hostile connection, which `close` closes."""
        self._opened.append(Wire(protocol, self.server, small_buffers=small_buffers))
        return self._opened[-1]

    def bystanders(self) -> list[Wire]:
        """Connect a client of each protocol."""
        return [Wire(protocol, self.server) for protocol in PROTOCOLS]

    def close(self) -> None:
        """Close all hostile connections. Raises AssertionError if the server does not serve the observer."""
        assert self.observer.ping()
        for connection in self._opened:
            connection.close()
        wait_until_alone(self.observer)
        assert self.observer.sadd("observed", "m") == 1
        assert self.observer.spop("observed") == b"m"


@contextlib.contextmanager
def started_victim(folder: Path) -> Iterator[tuple[Server, Valkey]]:
    """Start a server and its backend.

    Raises AssertionError at the end if the server's memory has grown, or its log has errors.
    """
    valkey = Valkey(folder)
    server = Server(folder / "log", "--backend", valkey.url, *LISTEN)
    try:
        for protocol in PROTOCOLS:
            with Wire(protocol, server) as client:
                for number in range(200):  # so that one-time allocations are done
                    client.put(b"warm", b"%d" % number)
                    assert client.get(b"warm") == b"%d" % number
        before = memory(server)
        yield server, valkey
        wait_for(lambda: memory(server) - before < GROWTH, "memory to be freed")
        server.end_well()
    finally:
        server.kill()
        valkey.stop()
