"""Processes of Redis or Valkey: the nodes of a cluster, and of a set with Sentinel."""

import asyncio
import enum
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pressure_server.backend import valkey_program
from tests.support.network import Machine, Network
from tests.support.power import Disk
from tests.support.programs import TIMEOUT, Program
from tests.support.requirements import need

Result = TypeVar("Result")

LOCAL = "127.0.0.1"
# Seconds between two looks at a condition.
_PAUSE = 0.02


class Engine(enum.Enum):
    """A program that can run a node."""

    REDIS = "redis"  # of Debian: 7.0
    VALKEY = "valkey"  # the embedded one: 9.1

    def program(self) -> str:
        """Return the path of the program. Skip the test, or fail in CI, if it is missing."""
        if self is Engine.REDIS:
            return need("redis-server", "redis-server")
        return valkey_program.program()


@dataclass(frozen=True)
class Login:
    """A user and its password. The user `default` is the one of `requirepass`."""

    password: str
    user: str = "default"

    @property
    def settings(self) -> list[tuple[str, ...]]:
        """The settings of a node that accepts only this login, with all rights."""
        if self.user == "default":
            return [("requirepass", self.password)]
        return [
            ("user", "default", "off"),
            ("user", self.user, "on", f">{self.password}", "~*", "&*", "+@all"),
        ]


@dataclass(frozen=True)
class Tls:
    """A certificate for 127.0.0.1, its key, and the authority's certificate (see guards.Authority)."""

    certificate: Path
    key: Path
    authority: Path

    def options(self, port: int) -> list[str]:
        """Return the options of a node that listens on this port only with TLS."""
        return [
            "--port", "0", "--tls-port", str(port), "--tls-replication", "yes",
            "--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key),
            "--tls-ca-cert-file", str(self.authority), "--tls-auth-clients", "no",
        ]  # fmt: skip


def run_in_a_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine, in an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def wait_until(condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """Return the condition's value, which may be awaited, when it is true. Raise AssertionError otherwise.

    An error of a node or of a connection counts as false.
    """
    end = time.monotonic() + timeout
    last: Exception | None = None
    while time.monotonic() < end:
        try:
            value = condition()
            if isinstance(value, Awaitable):
                value = await value
        except (redis.RedisError, OSError) as error:
            last, value = error, None
        if value:
            return value
        await asyncio.sleep(_PAUSE)
    raise AssertionError(f"waited {timeout} seconds for {what}") from last


class Node(Program):
    """A process on a port of 127.0.0.1, or of a machine. Each start has the same port, folder and options."""

    def __init__(
        self,
        folder: Path,
        port: int,
        options: Sequence[str],
        *,
        engine: Engine = Engine.REDIS,
        login: Login | None = None,
        tls: Tls | None = None,
        machine: Machine | None = None,
        loses_power: bool = False,
    ) -> None:
        """`options` come after those for the port and the log; `login` is the one that `client` uses.

        With `loses_power`, its power can be cut.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port
        self.log_file = folder / "log"
        # Redis 7.0 does not sync its map of the cluster, and does not start with half of it.
        self.disk = Disk(folder, self.log_file.name, "nodes.conf") if loses_power else None
        self.login = login
        self.tls = tls
        self.machine = machine
        self.host = machine.host if machine else LOCAL
        self.is_paused = False
        self._command = [
            engine.program(),
            *options,
            *(tls.options(port) if tls else ["--port", str(port)]),
            *(["--protected-mode", "no"] if machine else []),
            "--bind", self.host, "--dir", str(folder), "--logfile", str(self.log_file),
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.folder.name} on port {self.port}>"

    @property
    def is_running(self) -> bool:
        """Whether the process exists and is not paused."""
        return self.process.poll() is None and not self.is_paused

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def launch(self) -> None:
        """See Program."""
        if self.machine is None:
            super().launch()
        else:
            self.machine.do(super().launch)

    async def start(self) -> None:
        """Start the process. Return when it answers and has loaded its data."""
        self.launch()
        await self.wait_until_ready()

    async def wait_until_ready(self) -> None:
        """Return when the process answers and has loaded its data."""

        async def answers() -> bool:
            assert self.is_running, f"{self} has ended: {self.log[-1000:]}"
            return bool(await self.command("PING"))

        await wait_until(answers, f"{self} to answer")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process. After SIGKILL its data is lost unless the node has persistence."""
        if number == signal.SIGTERM:
            self.resume()
        self.is_paused = False
        return super().stop(number)

    def pause(self) -> None:
        """Stop the process: the kernel still accepts connections and data, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        """Continue a paused process."""
        if self.is_paused:
            self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def client(self, **options: Any) -> redis.asyncio.Redis:
        """Return a client whose replies are as the node sends them, and which never retries."""
        login, tls = self.login, self.tls
        if login is not None:
            options = {"username": login.user, "password": login.password, **options}
        if tls is not None:
            options = {"ssl": True, "ssl_ca_certs": str(tls.authority), **options}
        options = {"retry": Retry(NoBackoff(), 0), "socket_timeout": TIMEOUT, "protocol": 2, **options}
        client = redis.asyncio.Redis(host=self.host, port=self.port, single_connection_client=True, **options)
        client.response_callbacks.clear()
        return client

    async def command(self, *words: Any) -> Any:
        """Return the reply to a command, sent on a connection of its own."""
        async with self.client() as client:
            return await client.execute_command(*words)  # type: ignore[no-untyped-call,unused-ignore]

    async def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        text = (await self.command("INFO", section)).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


async def start_all(nodes: Sequence[Node], stack: ExitStack) -> None:
    """Start all nodes at once. When the stack is closed, all are killed."""
    for node in nodes:
        node.launch()
        stack.callback(node.kill)
    await asyncio.gather(*[node.wait_until_ready() for node in nodes])


def addresses_of(nodes: Sequence[Node]) -> str:
    """Return the addresses of nodes, separated by commas, for an URL."""
    return ",".join(f"{node.host}:{node.port}" for node in nodes)


def pairs(one: Node, other: Node) -> list[tuple[Machine, Machine]]:
    """Return the machines of two nodes, as sender and receiver and the other way round."""
    assert one.machine is not None
    assert other.machine is not None
    return [(one.machine, other.machine), (other.machine, one.machine)]


AnyNode = TypeVar("AnyNode", bound=Node)


class NodeSet(ABC, Generic[AnyNode]):
    """Nodes that belong together, as an asynchronous context manager.

    All methods work in any event loop, so a fixture may start the nodes for several tests.
    """

    def __init__(self, network: Network | None) -> None:
        """With a network, each node has a machine of its own."""
        self.network = network
        self.nodes: list[AnyNode] = []
        self._stack = ExitStack()

    def _machine(self) -> Machine | None:
        return self.network.add_machine() if self.network is not None else None

    @contextmanager
    def cut(self, master: AnyNode, others: Iterable[Node]) -> Iterator[None]:
        """Cut a node off from others, in both directions. Clients still reach it. It needs a network."""
        assert self.network is not None
        cuts = [pair for other in others if other is not master for pair in pairs(master, other)]
        self.network.cut(cuts)
        try:
            yield
        finally:
            self.network.heal(cuts)

    @abstractmethod
    async def _start(self, stack: ExitStack) -> None:
        """Start everything, which ends with the stack. Return when it is ready."""

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._stack.close()

    @contextmanager
    def started(self) -> Iterator[Self]:
        """Start the nodes, for tests that have no event loop, or another one."""
        run_in_a_thread(self.__aenter__())
        try:
            yield self
        finally:
            self._stack.close()
