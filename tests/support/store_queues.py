"""Queues in servers that may go away between two questions: lists of Redis, tubes of beanstalkd, and ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import greenstalk
import redis

from tests.support.programs import TIMEOUT
from tests.support.stores import Store


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
