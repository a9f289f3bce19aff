"""The test stand: the backend, the proxies, and the relays on both sides of each proxy.

A cluster has no relays before it.
"""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from tests.chaos.backends import Backend, MakeBackend, SingleBackend
from tests.chaos.journal import Journal
from tests.chaos.plan import Timeouts
from tests.support.nodes import LOCAL
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
        """On a network, the proxy has a machine of its own, and all its ports are those of relays."""
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
        self.machine = backend.network.add_machine() if backend.network is not None else None
        self._host = self.machine.host if self.machine is not None else LOCAL
        self._direct = Relay() if self.machine is not None else None

    def listen(self) -> None:
        """Start the relays."""
        self.backend_relay, self.client_relay = Relay(), Relay()
        backend = self._backend
        if isinstance(backend, SingleBackend):
            socket = str(backend.valkey.socket)
            self.backend_relay.listen(lambda: connected(socket))
        _, self.memcached_relay_port, self.beanstalk_relay_port = self._listen_for_clients(self.client_relay)
        if self._direct is not None:
            self.port, self.memcached_port, self.beanstalk_port = self._listen_for_clients(self._direct)

    def _listen_for_clients(self, relay: Relay) -> list[int]:
        """Let a relay listen for clients. Return its ports for RESP, memcached and beanstalk."""
        return [
            relay.listen(partial(self._connected, scheme)) for scheme in ("resp", "memcached", "beanstalk")
        ]

    async def _connected(self, scheme: str) -> socket.socket:
        if self._server is None:
            raise ConnectionRefusedError("the proxy does not run")
        return await connected((self._host, self._server.port_of(scheme)))

    async def start(self) -> None:
        """Start a process. Try again until one reaches the backend."""
        while self._server is None:
            self._runs += 1
            log = self._folder / f"proxy-{self.name}-{self._runs}.log"
            try:
                self._server = await asyncio.to_thread(self._launched, log)
            except AssertionError as error:
                self._journal.complain(f"proxy {self.name} did not start: {error}")
                await asyncio.sleep(_START_INTERVAL)
        if self._direct is None:
            self.port = self._server.port
            self.memcached_port = self._server.port_of("memcached")
            self.beanstalk_port = self._server.port_of("beanstalk")

    def _launched(self, log: Path) -> Server:
        server = partial(
            Server, log, *self._backend.server_options(self.backend_relay.port), "--no-protected-mode",
            "--listen", f"memcached://{self._host}:0", "--listen", f"beanstalk://{self._host}:0",
            environment=self._environment, new_process=self.machine is not None, host=self._host,
        )  # fmt: skip
        return server() if self.machine is None else self.machine.do(server)

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

    async def close(self) -> None:
        """Stop the relays."""
        for relay in (self.client_relay, self.backend_relay, self._direct):
            if relay is not None:
                await relay.close()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._server is not None:
            self._server.stop(SIGKILL)


class Stand:
    """The backend and the proxies, from `start` to `close`. Logs and data stay in `folder`."""

    def __init__(
        self, folder: Path, proxies: int, timeouts: Timeouts, journal: Journal, backend: MakeBackend
    ) -> None:
        """Prepare."""
        environment = {
            "PRESSURE_PROXY_TIMEOUT": str(timeouts.proxy),
            "PRESSURE_BACKEND_TIMEOUT": str(timeouts.backend),
            "PRESSURE_BACKEND_GRACE": str(timeouts.grace),
        }
        self.folder = folder
        self._cleanup = AsyncExitStack()
        self.backend = backend(folder / "backend", self._cleanup)
        self.proxies = [
            Proxy("abcdefgh"[n], folder, self.backend, environment, journal) for n in range(proxies)
        ]

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
            await proxy.close()
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
