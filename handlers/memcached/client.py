"""Types that all commands use: the client, and the entry of a command in the table.

They are in one module because they refer to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handlers.memcached.open_reads import OpenReads
from handlers.memcached.parser import Repeated, Request
from handlers.memcached.statistics import Counts
from handlers.memcached.values import Values
from pressure_server.net.command_statistics import CommandStatistics
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.queues.operations.jobs import ReservedJob
from pressure_server.queues.operations.operation import Operation

PROTOCOL = "memcached"
QUEUE, KV = "queue", "kv"
MODES = (QUEUE, KV)


@dataclass(frozen=True)
class ListenerOptions:
    """The options in a listener's URL: its mode, and whether clients may use `flush_all`."""

    mode: str
    flush_all: bool


# A command's function. It calls client.reply or client.submit, or returns a coroutine that returns the
# reply.
Function = Callable[["MemcachedClient", Request], Coroutine[Any, Any, bytes] | None]
ForRepeated = Callable[["MemcachedClient", Repeated], None]


@dataclass(frozen=True, slots=True)
class Spec:
    """A command in the table.

    `least` and `most` bound the number of words, including the command's name; `most` is None if there is no
    limit. `keys` is the slice of the words that are keys or queue names. `needs` are the rights that a user
    must have. `repeated` executes many equal requests at once.
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
    statistics: CommandStatistics

    @property
    def takes_many(self) -> bool:
        """Whether the command takes any number of keys."""
        return self.keys.stop is None

    def keys_of(self, words: list[bytes]) -> list[bytes]:
        """Return the words that are keys or queue names."""
        return words[self.keys]


class MemcachedClient(Connection):
    """The part of a client's connection that commands use.

    `open_reads` are the messages that the client has opened and not closed, `values` the items of mode kv.
    """

    PROTOCOL = PROTOCOL
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
    def extra_bytes(self) -> int:
        """The bytes kept for the client's open reads."""
        return self.open_reads.size

    def take_over(self, operation: Operation) -> None:
        """See owners.Client. Keep an open read until the client closes or aborts it."""
        super().take_over(operation)
        if operation.verb.reserves and self.can_deliver():
            self.open_reads.add(operation.name, ReservedJob.of(operation.results[0]))
            self.recount()

    def completed(self, operation: Operation) -> None:
        """See Connection. Count the commands that have ended."""
        self.counts.add(operation)
        super().completed(operation)
