"""Types that all commands use: the client, and the entry of a command in the table.

They are in one module because they refer to each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handlers.beanstalk.job_index import JobIndex
from handlers.beanstalk.statistics import Statistics
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.net.command_statistics import CommandStatistics
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.queues.operations.operation import Verb

PROTOCOL = "beanstalk"
DEFAULT_TUBE = b"default"
# The estimated memory of a watched tube besides its name, in bytes.
_TUBE_COST = 150
# A command's function gets the arguments of its line. It calls client.reply or client.submit, or returns a
# coroutine that returns the reply.
Function = Callable[["BeanstalkClient", Any], Coroutine[Any, Any, bytes] | None]


@dataclass(frozen=True, slots=True)
class Spec:
    """A command in the table: `parse` turns the rest of its line into arguments, or raises FormatError.

    `needs` are the rights that a user must have.
    """

    name: str
    function: Function
    parse: Callable[[bytes], Any]
    needs: frozenset[str]
    takes_nothing: bool
    statistics: CommandStatistics


class DeniedCommandError(Exception):
    """The user may not use the command, or the tube."""


class BeanstalkClient(Connection):
    """The part of a client's connection that commands use.

    `used` is the tube of its puts, `watched` those of its reserves, in order. `max_job_size` is in bytes.
    """

    PROTOCOL = PROTOCOL
    __slots__ = (
        "awaits_job",
        "context",
        "failures",
        "index",
        "is_next_to_wait",
        "is_producer",
        "is_worker",
        "max_job_size",
        "statistics",
        "used",
        "watched",
        "watched_bytes",
    )

    def __init__(self, context: Context, statistics: Statistics, index: JobIndex, max_job_size: int) -> None:
        super().__init__(context.clients, context.broker.default_database)
        self.context = context
        self.statistics = statistics
        self.index = index
        self.max_job_size = max_job_size
        self.failures = 0
        # Whether a reserve of many tubes runs.
        self.awaits_job = False
        # Whether the next reserve waits, as one before it found no job.
        self.is_next_to_wait = False
        self.is_producer = False
        self.is_worker = False
        self.used = DEFAULT_TUBE
        self.watched: dict[bytes, None] = {DEFAULT_TUBE: None}
        self.watched_bytes = len(DEFAULT_TUBE) + _TUBE_COST

    @property
    def extra_bytes(self) -> int:
        """The bytes of the watched tubes' names."""
        return self.watched_bytes

    def watch(self, tube: bytes) -> None:
        """Reserve jobs of this tube, too."""
        if tube not in self.watched:
            self.watched[tube] = None
            self.watched_bytes += len(tube) + _TUBE_COST
            self.recount()

    def ignore(self, tube: bytes) -> None:
        """Reserve no more jobs of this tube."""
        if tube in self.watched:
            del self.watched[tube]
            self.watched_bytes -= len(tube) + _TUBE_COST
            self.recount()

    async def in_tube_of(self, job: int, verb: Verb, arguments: list[bytes]) -> tuple[bytes, Any] | None:
        """Do something to a job, whichever tube it is in. Return the tube and the result; None for no job."""
        asked: bytes | None = None
        while (tube := await self.index.tube(job)) is not None and tube != asked:
            self.permit_tube(tube)
            with contextlib.suppress(QueueDoesNotExistError):
                results = await self.database.run(verb, tube, arguments, client=self)
                if results and results[0]:
                    return tube, results[0]
            # The tube may be another one since the index was asked.
            self.index.forget(job)
            asked = tube
        return None

    def permit_tube(self, tube: bytes) -> None:
        """Raise DeniedCommandError if the user may not use the tube."""
        if not self.user.is_unrestricted and not self.user.may_access(tube):
            self.clients.access.refused["key"] += 1
            raise DeniedCommandError
