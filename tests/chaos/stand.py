"""The stand: the backend, the proxies, and the relays before and behind each; all that can be broken."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from subprocess import Popen

from tests.chaos.journal import Journal
from tests.chaos.plan import Timeouts
from tests.support.programs import Server, Valkey
from tests.support.relay import Relay, connected

# What no proxy may write into its log.
_COMPLAINT = re.compile(
    r"Traceback|Task exception|Task was destroyed|never retrieved|Fatal Python error|\bERROR\b"
)
_AGAIN = 0.05


class Proxy:
    """One proxy, whichever process that is at the moment. `before` relays clients, `behind` the backend.

    `port` is for RESP; `memcached_port` for memcached, and `memcached_before` that of the relay for it.
    """

    def __init__(self, name: str, folder: Path, environment: dict[str, str], journal: Journal) -> None:
        self.name = name
        self.port = self.memcached_port = self.memcached_before = 0
        self.before: Relay
        self.behind: Relay
        self._folder = folder
        self._environment = environment
        self._journal = journal
        self._server: Server | None = None
        self._runs = 0

    async def start(self) -> None:
        """Start it, again and again until it can reach the backend."""
        while self._server is None:
            self._runs += 1
            log = self._folder / f"proxy-{self.name}-{self._runs}.log"
            try:
                self._server = await asyncio.to_thread(
                    Server, log, "--backend", f"redis://127.0.0.1:{self.behind.port}",
                    "--listen", "memcached://127.0.0.1:0",
                    environment=self._environment,
                )  # fmt: skip
            except AssertionError as error:
                self._journal.complain(f"proxy {self.name} did not start: {error}")
                await asyncio.sleep(_AGAIN)
        self.port = self._server.port
        self.memcached_port = self._server.port_of("memcached")

    @property
    def process(self) -> Popen[bytes]:
        """The process."""
        assert self._server is not None
        return self._server.process

    async def end(self, number: Signals) -> None:
        """End the process with that signal; `start` starts another."""
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

    def kill_what_is_left(self) -> None:
        """Whatever has gone wrong, leave no process behind."""
        if self._server is not None:
            self._server.stop(SIGKILL)

    async def connect(self) -> socket.socket:
        """A connection to it, for RESP. Raises OSError."""
        return await connected(("127.0.0.1", self.port))

    async def connect_memcached(self) -> socket.socket:
        """A connection to it, for memcached. Raises OSError."""
        return await connected(("127.0.0.1", self.memcached_port))


class Stand:
    """Everything that runs, from `start` to `close`. Logs and data are kept in `folder`."""

    def __init__(self, folder: Path, proxies: int, timeouts: Timeouts, journal: Journal) -> None:
        environment = {
            "PRESSURE_PROXY_TIMEOUT": str(timeouts.proxy),
            "PRESSURE_BACKEND_TIMEOUT": str(timeouts.backend),
            "PRESSURE_BACKEND_GRACE": str(timeouts.grace),
        }
        self.folder = folder
        self.backend: Valkey
        self.proxies = [Proxy("abcdefgh"[n], folder, environment, journal) for n in range(proxies)]
        self._journal = journal
        self._last = ExitStack()

    async def start(self) -> None:
        """Start all; returns when they answer."""
        data = self.folder / "backend"
        data.mkdir(parents=True)
        self.backend = await asyncio.to_thread(
            Valkey, data, "--appendonly", "yes", "--appendfsync", "always",
            "--auto-aof-rewrite-percentage", "0",  # it is evidence, from the first message on
            binary=shutil.which("redis-server"),
        )  # fmt: skip
        self._last.callback(self.backend.stop)
        for proxy in self.proxies:
            proxy.behind, proxy.before = Relay(), Relay()
            proxy.behind.listen(self._connect_to_backend)
            proxy.before.listen(proxy.connect)
            proxy.memcached_before = proxy.before.listen(proxy.connect_memcached)
            self._last.callback(proxy.kill_what_is_left)
        await asyncio.gather(*(proxy.start() for proxy in self.proxies))

    async def end(self) -> None:
        """Let the proxies end, as they do of themselves."""
        for proxy in self.proxies:
            await proxy.end(SIGTERM)

    async def close(self) -> None:
        """Stop what still runs."""
        for proxy in self.proxies:
            await proxy.before.close()
            await proxy.behind.close()
        await asyncio.to_thread(self._last.close)

    @property
    def written(self) -> list[Path]:
        """All that the backend has written, in order."""
        return sorted(self.folder.glob("backend/appendonlydir/*.aof"))

    def complaints_in_logs(self) -> Iterator[str]:
        """Lines that no proxy may log."""
        for log in sorted(self.folder.glob("proxy-*.log")):
            for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
                if _COMPLAINT.search(line):
                    yield f"{log}:{number}: {line}"

    @property
    def file_of_faults(self) -> Path:
        """What was done to us, and when."""
        return self.folder / "faults.txt"

    async def _connect_to_backend(self) -> socket.socket:
        return await connected(str(self.backend.socket))
