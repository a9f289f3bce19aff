"""The servers of a run: two on one backend, and a lone one on a backend of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.programs import Server, Valkey, wait_for
from tests.waiting.matrix.wires import BACKEND, BEANSTALK, MEMCACHED, NATIVE, RESP, Wire

# The servers' names. LONE has no peer.
LONE, FIRST, SECOND = "lone", "first", "second"
SERVERS = (LONE, FIRST, SECOND)
# RESP over a unix socket, whose buffers are small.
UNIX = "unix"


class Stand:
    """The addresses of all servers, and pools of connections that keep no state."""

    def __init__(self, addresses: dict[tuple[str, str], int | str]) -> None:
        self._addresses = addresses
        self._idle: dict[tuple[str, str], list[Wire]] = {}

    async def connect(self, by: str, server: str) -> Wire:
        """Open a connection."""
        return await Wire.connect(RESP if by == UNIX else by, self._addresses[by, server])

    async def borrow(self, by: str, server: str) -> Wire:
        """Return a connection of the pool, or a new one."""
        idle = self._idle.setdefault((by, server), [])
        return idle.pop() if idle else await self.connect(by, server)

    def give_back(self, wire: Wire, server: str) -> None:
        """Give a connection back to the pool. All its replies must have been read."""
        self._idle.setdefault((wire.by, server), []).append(wire)

    def close(self) -> None:
        """Close the connections of the pools."""
        for idle in self._idle.values():
            for wire in idle:
                wire.close()


@contextmanager
def started(folder: Path) -> Iterator[Stand]:
    """Start the backends, the servers and the native proxies. Stop them at the end of the block."""
    addresses: dict[tuple[str, str], int | str] = {}
    servers: list[Server] = []
    with ExitStack() as stack:
        for number, names in enumerate(((LONE,), (FIRST, SECOND))):
            own = folder / str(number)
            own.mkdir(parents=True)
            backend = Valkey(own)
            stack.callback(backend.stop)
            native = own / "native"
            proxy = subprocess.Popen(
                [sys.executable, "-m", "tests.waiting.matrix.native", backend.url, str(native)],
                stdin=subprocess.DEVNULL,
            )
            stack.callback(proxy.wait)
            stack.callback(proxy.kill)
            for name in names:
                unix = own / name
                server = Server(
                    own / f"{name}.log", "--backend", backend.url,
                    "--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0",
                    "--listen", f"resp+unix://{unix}",
                )  # fmt: skip
                stack.callback(server.stop)
                addresses |= {(by, name): server.port_of(by) for by in (RESP, MEMCACHED, BEANSTALK)}
                addresses[UNIX, name] = str(unix)
                addresses[NATIVE, name] = str(native)
                addresses[BACKEND, name] = str(backend.socket)
                servers.append(server)
            wait_for(native.exists, "the native proxy")
        for server, peers in zip(servers, (0, 1, 1), strict=True):
            with server.client() as client:
                wait_for(lambda: client.info("backend")["other_servers"] == peers, "the peers")  # noqa: B023
        yield Stand(addresses)
