"""Servers on one backend, the connections of jobs' clients, and the keys of queues with jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model.keys import ask_for_queue, fields_of_queue
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import TIMEOUT, Client, Server, Valkey
from tests.support.reference.jobs import STATES
from tests.support.reference.queue import Queue
from tests.support.waiters import Connection, Waiter

PREFIX = "__pressure__"
_JOB = re.compile(rb"[0-9a-f]{13}")
_NUMBERED = re.compile(rb"(?:RESERVED|FOUND) (\d+) (\d+)\r\n")


class Beanstalk(Connection):
    """A connection to a server's first beanstalk listener."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.port_of("beanstalk"))
        self._stream = self.socket.makefile("rb")  # holds the connection open until both are closed

    def __call__(self, line: str, message: bytes | None = None) -> Any:
        """Send a line. Return the line of the reply; for a job, its id and message."""
        data = b"" if message is None else b" %d\r\n%b" % (len(message), message)
        self.socket.sendall(line.encode() + data + b"\r\n")
        reply = self._stream.readline()
        found = _NUMBERED.fullmatch(reply)
        if not found:
            return reply.removesuffix(b"\r\n")
        body = self._stream.read(int(found[2]) + 2)
        return int(found[1]), body[:-2]

    def close(self) -> None:
        self._stream.close()
        super().close()

    def reset(self) -> None:
        self._stream.close()
        super().reset()


@dataclass
class Keys:
    """The backend's keys of a queue: the protocol's, and where each job is."""

    queue: Queue
    has_jobs: bool
    jobs: dict[int, bytes]  # their messages
    made: dict[int, int]  # when each was put, in milliseconds
    states: dict[str, list[int]]  # the next job first


def base_of(queue: str) -> str:
    """Return the base key."""
    return f"{PREFIX}:{queue}"


def read_keys(direct: Client, queues: Iterable[str]) -> list[Keys]:
    """Read the keys of queues, in one round trip."""
    pipeline = direct.pipeline(transaction=False)
    names = list(queues)
    for name in names:
        base = base_of(name)
        ask_for_queue(pipeline, base)
        pipeline.get(f"{base}:ext:made")
        pipeline.hgetall(f"{base}:ext:jobs")
        for state in STATES:
            pipeline.zrange(f"{base}:ext:{state}", 0, -1)
    replies = iter(pipeline.execute())
    return [_keys_of(replies) for _ in names]


def _keys_of(replies: Any) -> Keys:
    queue, made = Queue(**fields_of_queue(replies)), next(replies)
    jobs = {int(key, 16): value for key, value in next(replies).items() if _JOB.fullmatch(key)}
    return Keys(
        queue,
        bool(made and made.endswith(b" jobs")),
        {job: value.split(b" ", 6)[6] for job, value in jobs.items()},
        {job: int(value.split(b" ", 1)[0]) for job, value in jobs.items()},
        {state: [int(member, 16) for member in next(replies)] for state in STATES},
    )


class World:
    """Two servers on a backend, and their clients: by name, reopened when they have been closed."""

    # The place of each client's server.
    CLIENTS = {"resp-0": 0, "resp-1": 0, "resp-2": 1, "beanstalk-0": 0, "beanstalk-1": 1, "memcached": 0}  # noqa: RUF012
    RESP = tuple(name for name in CLIENTS if name.startswith("resp"))
    BEANSTALK = tuple(name for name in CLIENTS if name.startswith("beanstalk"))

    def __init__(self, backend: Valkey, folder: Path) -> None:
        self.direct = backend.client()
        arguments = (
            "--backend", backend.url, "--overflow", "error", "--role-timeout", "0",
            "--listen", "beanstalk://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0",
        )  # fmt: skip
        self.servers = [Server(folder / f"model-{number}.log", *arguments) for number in range(2)]
        self._observers = [Waiter(server.port) for server in self.servers]
        self._open: dict[str, Any] = {}

    def client(self, name: str) -> Any:
        """Return the connection of that name, a new one if it has been closed."""
        if name not in self._open:
            server = self.servers[self.CLIENTS[name]]
            kind = name.partition("-")[0]
            self._open[name] = (
                Waiter(server.port) if kind == "resp"
                else Beanstalk(server) if kind == "beanstalk"
                else MemcachedWire(server)
            )  # fmt: skip
        return self._open[name]

    def is_open(self, name: str) -> bool:
        return name in self._open

    def observer(self, name: str) -> Waiter:
        """Return another connection to the server of that client."""
        return self._observers[self.CLIENTS[name]]

    def close_client(self, name: str, *, reset: bool = False) -> None:
        """Close a connection. Return when the server has noticed it."""
        observer = self.observer(name)
        before = self._connected(observer)
        connected = self._open.pop(name)
        if reset:
            connected.reset()
        else:
            connected.close()
        end = time.monotonic() + TIMEOUT
        # Each look is a round trip; a pause between them would take longer than the server does.
        while self._connected(observer) >= before:
            assert time.monotonic() < end, "the server does not notice that a client has left"

    @staticmethod
    def _connected(observer: Waiter) -> int:
        found = re.search(rb"connected_clients:(\d+)", observer("INFO", "clients"))
        assert found
        return int(found[1])

    def close(self) -> None:
        for connected in [*self._open.values(), *self._observers]:
            connected.close()
        for server in self.servers:
            assert server.stop() == 0, server.log
            # INTERNAL_ERROR is beanstalk's reply for most errors that RESP has a code for.
            assert not re.search(r"\bERROR  |Traceback|Fatal|Warning", server.log), server.log
        self.direct.close()
