"""A RESP client, and a command that it may send.

These types name each other: a command's function gets its caller, and a client in a transaction holds
commands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from handlers.resp.parser import ARGUMENT_COST, Command, Limits, Repeated
from handlers.resp.replies import NULL, CommandError, encode, error
from handlers.resp.syntax import Argument
from pressure_server.auth.logins import MOST_FAILURES
from pressure_server.auth.users import DEFAULT
from pressure_server.errors import PressureError
from pressure_server.net.connection import Connection, Encode
from pressure_server.net.handler import Context
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.operations.options import DEFAULT as DEFAULT_OPTIONS
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction

logger = logging.getLogger(__name__)

# Bytes for the name of a watched queue, and its version.
_WATCHED_COST = 256


class Caller(Protocol):
    """Where a command's reply goes, and what it does on the queues that it names."""

    @property
    def connection(self) -> RespClient:
        """The client's connection, for what is about that, or about the server."""

    @property
    def database(self) -> Database | Transaction:
        """What the command does there is done alone, or with what else is in the transaction."""

    def reply(self, data: bytes) -> None:
        """See Connection.reply."""

    def submit(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes],
        size: int,
        encode: Encode,
        *,
        commands: int = 1,
        wait: Wait | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> None:
        """See Connection.submit."""


# A plain function replies by client.reply or client.submit; a coroutine function returns the reply's value.
Function = Callable[[Caller, Command], Coroutine[Any, Any, Any] | None]


@dataclass(frozen=True, slots=True)
class Spec:
    """One command, or one subcommand, named `container|sub`."""

    name: str
    function: Function
    syntax: str
    summary: str
    group: str
    flags: tuple[str, ...]
    arguments: tuple[Argument, ...]
    arity: int
    keys: tuple[int, int, int]
    needs: frozenset[str]
    repeated: Callable[[RespClient, Repeated], None] | None = None
    subcommands: dict[bytes, Spec] = field(default_factory=dict)

    @property
    def is_on_queues(self) -> bool:
        """Whether it works on queues that its words name."""
        return any(argument.type == "key" for argument in self.arguments)

    def accepts(self, words: int) -> bool:
        """Whether so many words, the name among them, can be right."""
        return words == self.arity if self.arity > 0 else words >= -self.arity


class QueuedCommands:
    """The commands since MULTI, and their `size` in bytes. `is_broken` if one of them was refused."""

    def __init__(self, most_bytes: int) -> None:
        self.queued: list[tuple[Spec, Command]] = []
        self.is_broken = False
        self.size = 0
        self._most_bytes = most_bytes

    def add(self, spec: Spec, words: Command) -> None:
        """Queue a command. Raises CommandError where they have become too much."""
        self.size += sum(map(len, words)) + ARGUMENT_COST * len(words)
        if self.size > self._most_bytes:
            self.queued.clear()
            raise CommandError("ERR the transaction is too large")
        self.queued.append((spec, words))


class RespClient(Connection):
    """A client, as commands see it. `protocol` is its RESP version, and `null` the null of that version.

    `transaction` holds the commands since MULTI, `watched` the versions of the watched queues.
    """

    __slots__ = (
        "_limits",
        "context",
        "failures",
        "id",
        "library",
        "name",
        "null",
        "protocol",
        "since",
        "transaction",
        "watched",
        "watched_bytes",
    )

    def __init__(self, context: Context, limits: Limits) -> None:
        super().__init__(context.clients, context.broker.default_database)
        self.context = context
        self._limits = limits
        self.id = next(context.clients.ids)
        self.name = b""
        self.library: tuple[bytes, bytes] | None = None
        self.failures = 0
        self.protocol = 2
        self.null = NULL[2]
        self.since = context.clients.now
        self.transaction: QueuedCommands | None = None
        self.watched: dict[Database, dict[bytes, bytes]] = {}
        self.watched_bytes = 0

    def begin_transaction(self) -> None:
        """Queue commands from now on. Raises CommandError."""
        if self.transaction is not None:
            raise CommandError("ERR MULTI calls can not be nested")
        self.transaction = QueuedCommands(self._limits.most_bytes)

    async def log_in(self, name: bytes, password: bytes) -> None:
        """Act as that user from now on. Raises CommandError; after too many of them the connection closes."""
        access = self.clients.access
        user = access.users.log_in(name.decode("utf-8", "replace"), password)
        if user is None:
            await access.logins.fail(self.transport, name, self.failures)
            self.failures += 1
            if self.failures >= MOST_FAILURES:
                self.close_when_replied()
            raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
        self.user = user

    @property
    def user_name(self) -> str:
        """Whom the client acts as; to Redis that is the default user where it has not logged in."""
        return self.user.name or DEFAULT

    def end_transaction(self) -> tuple[QueuedCommands | None, dict[Database, dict[bytes, bytes]]]:
        """What has been queued, None outside of a transaction, and what is watched; both are forgotten."""
        commands, watched = self.transaction, self.watched
        self.transaction = None
        self.unwatch()
        return commands, watched

    def watch(self, names: list[bytes]) -> dict[bytes, bytes]:
        """The versions of what is watched in the database, to which those of these are added.

        Raises CommandError where they are too much.
        """
        self.watched_bytes += sum(map(len, names)) + _WATCHED_COST * len(names)
        if self.watched_bytes > self._limits.most_bytes:
            raise CommandError("ERR too much is watched")
        return self.watched.setdefault(self.database, {})

    def unwatch(self) -> None:
        """Watch nothing any longer."""
        self.watched = {}
        self.watched_bytes = 0

    @property
    def connection(self) -> RespClient:
        """Itself: see Caller."""
        return self

    def speak(self, protocol: int) -> None:
        """Reply in this version of RESP from now on."""
        self.protocol = protocol
        self.null = NULL[protocol]

    @property
    def kept(self) -> int:
        """What is queued for EXEC, or watched."""
        return self.watched_bytes + (self.transaction.size if self.transaction is not None else 0)

    def encode(self, value: Any) -> bytes:
        """The reply that a coroutine has returned."""
        return encode(value, self.protocol)

    def failed(self, reason: Exception) -> bytes:
        """The reply for an error that a command has met. One that is no refusal goes to the log."""
        if not isinstance(reason, CommandError | PressureError):
            logger.error("a command failed", exc_info=reason)
            reason = CommandError("ERR internal error: the server's log has the details")
        return error(reason)
