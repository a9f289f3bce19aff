"""Servers that come back after a restart with what they keep: ours, Redis and beanstalkd."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.support.beanstalkd import Beanstalkd
from tests.support.nodes import free_ports
from tests.support.programs import Client, Server, Valkey, embedded_client, records, wait_for
from tests.support.requirements import need

_PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always")


class Store:
    """A server on ports that it has again after a restart, with all that it had."""

    port: int
    beanstalk_port: int
    memcached_port: int
    _program: Any

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        self._program.start()

    def stop(self, number: int) -> None:
        """Send the signal, and wait until the server has ended."""
        self._program.stop(number)

    def is_settled(self) -> bool:
        """Whether messages that clients have received do not come again if the server is killed."""
        return True

    def lose_backend(self) -> None:
        """Let the server be without its backend. One that has none is lost itself."""
        self.stop(signal.SIGKILL)

    def restore_backend(self) -> None:
        """Start the backend again, and wait until the server serves."""
        self.start()


# Starts a store that keeps its data in that folder.
StoreType = Callable[..., Store]


class EmbeddedStore(Store):
    """A pressure-server with its embedded backend."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._starts = 0
        self._options = ("--data-dir", str(folder), *options)
        self.port, self.beanstalk_port, self.memcached_port = free_ports(3)
        self.start()

    def start(self) -> None:
        self._starts += 1
        self._program = Server(
            self._folder / f"server-{self._starts}.log",
            *self._options,
            *("--listen", f"resp://127.0.0.1:{self.port}"),
            *("--listen", f"beanstalk://127.0.0.1:{self.beanstalk_port}"),
            *("--listen", f"memcached://127.0.0.1:{self.memcached_port}"),
        )

    def is_settled(self) -> bool:
        with self._direct() as direct:
            # A field that begins so notes that clients of a queue have reservations.
            return all(field.startswith(b"j") for _, field in records(direct))

    def _direct(self) -> Client:
        return embedded_client(self._folder)


class BackendStore(EmbeddedStore):
    """A pressure-server with a backend of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._valkey = Valkey(folder, *_PERSISTENT)
        super().__init__(folder, "--backend", self._valkey.url, *options)

    def stop(self, number: int) -> None:
        super().stop(number)
        self._valkey.stop()

    def _direct(self) -> Client:
        return self._valkey.client()

    def lose_backend(self) -> None:
        self._valkey.kill()

    def restore_backend(self) -> None:
        self._valkey.start()
        with self._program.client() as client:
            wait_for(lambda: serves(client), "the server to serve again")


class RedisStore(Store):
    """A Redis that syncs each write."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        program = need("redis-server", "redis-server")
        self._program = Valkey(folder, "--port", str(self.port), *_PERSISTENT, binary=program)


class BeanstalkdStore(Store):
    """A beanstalkd that syncs each write."""

    def __init__(self, folder: Path) -> None:
        self._program = Beanstalkd(folder)
        self.beanstalk_port = self._program.port


def serves(client: Client) -> bool:
    """Return whether the server has its backend."""
    try:
        client.llen("no-queue")
    except redis.RedisError:
        return False
    return True
