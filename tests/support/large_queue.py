"""LargeQueue's class (https://github.com/aerospike-examples/large-queue), on `LogQueue`.

What is Aerospike's has its counterpart here: `client` is the address of a pressure-server, the namespace and
the queue's name make up the name of the queue, and an entry is kept as JSON.

`txn_id` is the owner of LargeQueue's lock: it "need not be unique across operations that are not concurrent".
The server has no lock that a client could hold, so `txn_id` is not used. In particular it is not the
transaction id of a put, by which the second of two puts would not be done: LogQueue makes one for each.
"""

import json
from typing import Any

import redis

from pressure_server.client import (
    LogQueue,
    OffsetAheadError,
    PressureError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
)


class ASAborted(Exception):  # noqa: N818 # LargeQueue's name
    """An operation that was not done, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LargeQueue:
    """A queue of a bounded size, whose entries have offsets."""

    def __init__(self) -> None:
        self._namespace = self._name = ""
        self._log = LogQueue("none")

    def initialize_existing_queue(self, client: str, namespace: str, name: str) -> None:
        """Use a queue that exists. Raises ASAborted if it does not."""
        self._open(client, namespace, name)
        try:
            self._log.info()
        except QueueDoesNotExistError:
            raise ASAborted("Queue does not exist") from None

    def create_new_queue(
        self, client: str, namespace: str, name: str, max_size: int, slots_per_rec: int
    ) -> None:
        """Create a queue. Raises ASAborted if it exists. The backend needs no `slots_per_rec`."""
        self._open(client, namespace, name)
        if not self._log.create(bound=max_size, overflow="error", if_not_exists=True):
            raise ASAborted("Queue already exists")

    def enqueue(self, entry: Any, txn_id: Any, overwrite_if_full: bool = False) -> int:
        """Put an entry, and return its offset. Raises ASAborted if it is not put, as in a full queue."""
        try:
            return self._log.put(json.dumps(entry), overwrite=overwrite_if_full)
        except QueueFullError:
            raise ASAborted("Queue is full") from None
        except (PressureError, redis.RedisError) as error:
            raise ASAborted(str(error)) from error

    def dequeue(self, txn_id: Any) -> Any:
        """Take the entry at the head; None if the queue is empty."""
        try:
            return json.loads(self._log.get(timeout=0))
        except QueueEmptyError:
            return None
        except (PressureError, redis.RedisError) as error:
            raise ASAborted(str(error)) from error

    def get_queue_info(self) -> dict[str, Any]:
        """Describe the queue; the tail is the offset of the next entry."""
        info = self._log.info()
        return {
            "name": self._name,
            "max-size": info["bound"],
            "namespace": self._namespace,
            "head-offset": info["head_offset"],
            "tail-offset": info["tail_offset"],
        }

    def get_entry_at_offset(self, offset: int) -> Any:
        """Return an entry without taking it; None if there is none at this offset."""
        try:
            found = self._log.at(offset)
        except OffsetAheadError:
            return None
        return None if found is None else {"offset": offset, "entry": json.loads(found)}

    def _open(self, client: str, namespace: str, name: str) -> None:
        self._namespace, self._name = namespace, name
        self._log = LogQueue(f"{namespace}.{name}", client)
