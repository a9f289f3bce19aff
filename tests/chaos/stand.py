"""The test stand: the backend, the proxies, and the relays on both sides of each proxy.

A cluster has no relays before it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from tests.chaos.backends import Backend, ClusterBackend, SingleBackend
from tests.chaos.journal import Journal
from tests.chaos.plan import Timeouts
from tests.support.nodes import Engine
from tests.support.programs import Process, Server
from tests.support.relay import Relay, connected

# No proxy may log a line with one of these.
_COMPLAINT = re.compile(
    r"Traceback|Task exception|Task was destroyed|never retrieved|Fatal Python error|\bERROR\b"
)
_START_INTERVAL = 0.05


class Proxy:
    """A server that can be ended and started again, with a relay for its clients and one for its backend.

    `port` is for RESP. `memcached_port` and the relay's `memcached_relay_port` are for memcached, and
    `beanstalk_port` and `beanstalk_relay_port` for beanstalk.
    """

    def __init__(
        self, name: str, folder: Path, backend: Backend, environment: dict[str, str], journal: Journal
    ) -> None:
        self.name = name
        self.port = self.memcached_port = self.memcached_relay_port = 0
        self.beanstalk_port = self.beanstalk_relay_port = 0
        self.client_relay: Relay
        self.backend_relay: Relay
        self._folder = folder
        self._backend = backend
        self._environment = environment
        self._journal = journal
        self._server: Server | None = None
        self._runs = 0

    def listen(self) -> None:
        """Start the relays."""
        self.backend_relay, self.client_relay = Relay(), Relay()
        backend = self._backend
        if isinstance(backend, SingleBackend):
            socket = str(backend.valkey.socket)
            self.backend_relay.listen(lambda: connected(socket))
        self.client_relay.listen(lambda: connected(("127.0.0.1", self.port)))
        self.memcached_relay_port = self.client_relay.listen(
            lambda: connected(("127.0.0.1", self.memcached_port))
        )
        self.beanstalk_relay_port = self.client_relay.listen(
            lambda: connected(("127.0.0.1", self.beanstalk_port))
        )

    async def start(self) -> None:
        """Start a process. Try again until one reaches the backend."""
        while self._server is None:
            self._runs += 1
            log = self._folder / f"proxy-{self.name}-{self._runs}.log"
            try:
                self._server = await asyncio.to_thread(
                    Server, log, *self._backend.server_options(self.backend_relay.port),
                    "--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0",
                    environment=self._environment,
                )  # fmt: skip
            except AssertionError as error:
                self._journal.complain(f"proxy {self.name} did not start: {error}")
                await asyncio.sleep(_START_INTERVAL)
        self.port = self._server.port
        self.memcached_port = self._server.port_of("memcached")
        self.beanstalk_port = self._server.port_of("beanstalk")

    @property
    def process(self) -> Process:
        assert self._server is not None
        return self._server.process

    async def end(self, number: Signals) -> None:
        """End the process with this signal. `start` starts another."""
        server, self._server = self._server, None
        assert server is not None
        ended_before = server.process.poll()
        status = await asyncio.to_thread(server.stop, number)
        if ended_before is not None:
            self._journal.complain(f"proxy {self.name} ended by itself with {status}: {server.log_file}")
        elif status != (0 if number == SIGTERM else -number):
            self._journal.complain(
                f"proxy {self.name}: {number.name}, exit status {status}: {server.log_file}"
            )

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._server is not None:
            self._server.stop(SIGKILL)


class Stand:
    """The backend and the proxies, from `start` to `close`. Logs and data stay in `folder`."""

    def __init__(
        self, folder: Path, proxies: int, timeouts: Timeouts, journal: Journal, cluster_of: Engine | None
    ) -> None:
        """Prepare. With `cluster_of`, the backend is a cluster of this engine."""
        environment = {
            "PRESSURE_PROXY_TIMEOUT": str(timeouts.proxy),
            "PRESSURE_BACKEND_TIMEOUT": str(timeouts.backend),
            "PRESSURE_BACKEND_GRACE": str(timeouts.grace),
        }
        self.folder = folder
        self.backend: Backend
        if cluster_of is None:
            self.backend = SingleBackend(folder / "backend")
        else:
            self.backend = ClusterBackend(folder / "cluster", cluster_of)
        self.proxies = [
            Proxy("abcdefgh"[n], folder, self.backend, environment, journal) for n in range(proxies)
        ]
        self._cleanup = AsyncExitStack()

    async def start(self) -> None:
        """Start the backend and the proxies. Return when they answer."""
        await self.backend.start(self._cleanup)
        for proxy in self.proxies:
            proxy.listen()
            self._cleanup.callback(proxy.kill)
        await asyncio.gather(*(proxy.start() for proxy in self.proxies))

    async def end(self) -> None:
        """Terminate the proxies."""
        for proxy in self.proxies:
            await proxy.end(SIGTERM)

    async def close(self) -> None:
        """Stop everything that still runs."""
        for proxy in self.proxies:
            await proxy.client_relay.close()
            await proxy.backend_relay.close()
        await self._cleanup.aclose()

    @property
    def append_only_files(self) -> list[Path]:
        """The append-only files of a backend that is one process, in order."""
        return sorted(self.folder.glob("backend/appendonlydir/*.aof"))

    def complaints_in_logs(self) -> Iterator[str]:
        """Yield the lines that no proxy may log."""
        for log in sorted(self.folder.glob("proxy-*.log")):
            for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
                if _COMPLAINT.search(line):
                    yield f"{log}:{number}: {line}"
