"""A memcached client, and a command that it may send.

These types name each other: a command's function gets the client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handlers.memcached.open_reads import OpenReads
from handlers.memcached.parser import Repeated, Request
from handlers.memcached.statistics import Counts
from handlers.memcached.values import Values
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import Custody

QUEUE, KV = "queue", "kv"
MODES = (QUEUE, KV)


@dataclass(frozen=True)
class ListenerOptions:
    """The options in a listener's URL: its mode, and whether clients may use `flush_all`."""

    mode: str
    flush_all: bool


# A plain function replies by client.reply or client.submit; a coroutine function returns the reply.
Function = Callable[["MemcachedClient", Request], Coroutine[Any, Any, bytes] | None]
ForRepeated = Callable[["MemcachedClient", Repeated], None]


@dataclass(frozen=True, slots=True)
class Spec:
    """One command.

    `least` and `most` are how many words it has, its name counted (None: any number). `keys` is which of them
    are queues, or keys. `needs` is what a user must have a right to. `repeated` does many equal ones at once.
    """

    name: str
    syntax: str
    summary: str
    function: Function
    least: int
    most: int | None
    needs: frozenset[str]
    keys: slice
    repeated: ForRepeated | None

    @property
    def takes_many(self) -> bool:
        """Whether it may have any number of keys."""
        return self.keys.stop is None

    def keys_of(self, words: list[bytes]) -> list[bytes]:
        """The words that are keys."""
        return words[self.keys]


class MemcachedClient(Connection):
    """A client, as commands see it.

    `open_reads` are the messages that it has taken and may still give back, `values` the items of mode KV.
    """

    __slots__ = ("context", "counts", "failures", "open_reads", "options", "values")

    def __init__(self, context: Context, options: ListenerOptions, counts: Counts, values: Values) -> None:
        super().__init__(context.clients, context.broker.default_database)
        self.context = context
        self.options = options
        self.counts = counts
        self.values = values
        self.failures = 0
        self.open_reads = OpenReads()

    @property
    def kept(self) -> int:
        """The messages that are open."""
        return self.open_reads.size

    def took(self, operation: Operation) -> None:
        """The broker: a coroutine's reply brings this. What is open is delivered when the client says so."""
        if operation.custody is Custody.UNTIL_ACKNOWLEDGED and not self.transport.is_closing():
            self.open_reads.add(operation)
            self.recount()
        else:
            super().took(operation)

    def completed(self, operation: Operation) -> None:
        """See Connection; and it is counted."""
        self.counts.add(operation)
        super().completed(operation)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended. What it had open goes back."""
        super().connection_lost(exc)
        self.open_reads.abort_all()
