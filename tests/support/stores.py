"""Servers that come back after a restart with what they keep, and their queues."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import greenstalk
import redis

from tests.support.beanstalkd import Beanstalkd
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, Client, Server, Valkey, embedded_client, records, wait_for
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


class ListQueue:
    """A list of Redis, and other lists in which workers keep its messages.

    Each question has a connection of its own: the server may have been away.
    """

    def __init__(self, store: Store, name: str, *others: str, puts_left: bool = False) -> None:
        self._store = store
        self._names = (name, *others)
        self._put, self._take = ("LPUSH", "RPOP") if puts_left else ("RPUSH", "LPOP")

    def put(self, message: bytes) -> None:
        """Put a message."""
        self._ask(self._put, self._names[0], message)

    def take(self) -> bytes:
        """Take the oldest message. Raise AssertionError if there is none."""
        message = self._ask(self._take, self._names[0])
        assert isinstance(message, bytes)
        return message

    def unfinished(self) -> int:
        """Return the number of messages that are queued or reserved."""
        return sum(self._ask("LLEN", name) for name in self._names)

    def waiting(self) -> int:
        """Return the number of clients that wait for messages."""
        return int(self._ask("INFO", "clients")["blocked_clients"])

    def times(self, *ends: str) -> list[int]:
        """Return how many messages end so, for each of the ends, which are the messages' last words."""
        found = Counter(
            message.split()[-1].decode() for message in self._ask("LRANGE", self._names[0], 0, -1)
        )
        return [found[end] for end in ends]

    def _ask(self, *words: str | bytes | int) -> Any:
        with redis.Redis(port=self._store.port, socket_timeout=TIMEOUT) as client:
            return client.execute_command(*words)


class Tube:
    """A tube of beanstalkd, with the methods of ListQueue."""

    def __init__(self, store: Store, name: str, *, ttr: int = 90) -> None:
        self._store = store
        self._name = name
        self._ttr = ttr

    def put(self, message: bytes) -> None:
        with self._client() as client:
            client.put(message, ttr=self._ttr)

    def take(self) -> bytes:
        with self._client() as client:
            job = client.reserve(timeout=0)
            client.delete(job)
        return job.body

    def unfinished(self) -> int:
        with self._client() as client, suppress(greenstalk.NotFoundError):
            found: Mapping[str, Any] = client.stats_tube(self._name)
            return sum(int(found[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed"))
        return 0

    def waiting(self) -> int:
        with self._client() as client:
            return int(client.stats()["current-waiting"])

    def _client(self) -> greenstalk.Client[bytes]:
        address = ("127.0.0.1", self._store.beanstalk_port)
        return greenstalk.Client(address, encoding=None, use=self._name, watch=self._name)


class JobQueue(ListQueue):
    """A queue of ours whose messages workers reserve, and other queues in which they keep its messages."""

    def unfinished(self) -> int:
        found = [self._ask("PRESSURE.INFO", name) for name in self._names if self._ask("EXISTS", name)]
        return sum(int(about.get(field, 0)) for about in found for field in (b"length", b"reserved"))


Queue = ListQueue | Tube
