"""A RESP client, and the types of its commands.

They are in one module because they refer to each other: a command's function receives its caller, and a
client in a transaction keeps commands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from handlers.resp.parser import ARGUMENT_COST, Command, Limits, Repeated
from handlers.resp.replies import NULL, CommandError, encode, error
from handlers.resp.syntax import Argument
from pressure_server.auth.logins import MAX_FAILURES
from pressure_server.errors import PressureError
from pressure_server.net.command_statistics import CommandStatistics
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Encode, Verb
from pressure_server.queues.operations.options import DEFAULT as DEFAULT_OPTIONS
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction

logger = logging.getLogger(__name__)

PROTOCOL = "resp"
# Estimated bytes for a watched queue besides its name.
_WATCHED_COST = 256


class Caller(Protocol):
    """The caller of a command: a client, or a transaction that executes the command for a client."""

    @property
    def connection(self) -> RespClient:
        """The client's connection. Commands about the connection or the server use it."""

    @property
    def transaction_id(self) -> bytes | None:
        """The id that the client has given for its next put, if any."""

    @property
    def database(self) -> Database | Transaction:
        """The queues to act on. Operations on a Transaction are done together, when it commits."""

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


# A plain function calls client.reply or client.submit; a coroutine function returns the value of the reply.
Function = Callable[[Caller, Command], Coroutine[Any, Any, Any] | None]


@dataclass(frozen=True, slots=True)
class Spec:
    """A command's entry in the table. The name of a subcommand is `container|sub`."""

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
    statistics: CommandStatistics
    repeated: Callable[[RespClient, Repeated], None] | None = None
    subcommands: dict[bytes, Spec] = field(default_factory=dict)
    # The least and the most words that a request may have, including the command's name.
    least: int = field(init=False)
    most: float = field(init=False)

    def __post_init__(self) -> None:
        """Derive the numbers of words from the arity."""
        object.__setattr__(self, "least", abs(self.arity))
        object.__setattr__(self, "most", self.arity if self.arity > 0 else inf)

    @property
    def names_queues(self) -> bool:
        """Whether the command has arguments that name queues."""
        return any(argument.type == "key" for argument in self.arguments)

    def accepts(self, words: int) -> bool:
        """Return whether a request may have this number of words, including the command's name."""
        return self.least <= words <= self.most


class QueuedCommands:
    """The commands since MULTI, and their `size` in bytes.

    `is_broken` is set if a command since MULTI was refused; EXEC then does nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self.queued: list[tuple[Spec, Command]] = []
        self.is_broken = False
        self.size = 0
        self._most_bytes = most_bytes

    def add(self, spec: Spec, words: Command) -> None:
        """Queue a command. Raise CommandError and drop all commands if they exceed the limit."""
        self.size += sum(map(len, words)) + ARGUMENT_COST * len(words)
        if self.size > self._most_bytes:
            self.queued.clear()
            raise CommandError("ERR the transaction is too large")
        self.queued.append((spec, words))


class RespClient(Connection):
    """A client, as commands see it. `protocol` is its RESP version, and `null` that version's null.

    `transaction` has the commands since MULTI; None outside a transaction. `transaction_id` is the id that
    PRESSURE.TXN has given for the next put, or None. `watched` has the versions of the
    watched queues, by database. `failures` counts the failed logins.
    """

    PROTOCOL = PROTOCOL
    __slots__ = (
        "_limits",
        "context",
        "failures",
        "library",
        "null",
        "protocol",
        "transaction",
        "transaction_id",
        "watched",
        "watched_bytes",
    )

    def __init__(self, context: Context, limits: Limits) -> None:
        super().__init__(context.clients, context.broker.default_database)
        self.context = context
        self._limits = limits
        self.library: tuple[bytes, bytes] | None = None
        self.failures = 0
        self.protocol = 2
        self.null = NULL[2]
        self.transaction: QueuedCommands | None = None
        self.transaction_id: bytes | None = None
        self.watched: dict[Database, dict[bytes, bytes]] = {}
        self.watched_bytes = 0

    def begin_transaction(self) -> None:
        """Queue commands from now on. Raise CommandError inside a transaction."""
        if self.transaction is not None:
            raise CommandError("ERR MULTI calls can not be nested")
        self.transaction = QueuedCommands(self._limits.most_bytes)

    async def log_in(self, name: bytes, password: bytes) -> None:
        """Act as this user from now on. Raise CommandError if the login fails; close after MAX_FAILURES."""
        access = self.clients.access
        user = access.users.log_in(name.decode("utf-8", "replace"), password)
        if user is None:
            await access.logins.fail(self.transport, name, self.failures)
            self.failures += 1
            if self.failures >= MAX_FAILURES:
                self.close_when_replied()
            raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
        self.user = user
        access.logins.succeed(self.transport, user)

    @property
    def library_name(self) -> str:
        """See Connection. The library is known if it has sent CLIENT SETINFO."""
        return b" ".join(self.library or ()).decode()

    def end_transaction(self) -> tuple[QueuedCommands | None, dict[Database, dict[bytes, bytes]]]:
        """Return and forget the queued commands (None outside a transaction) and the watched versions."""
        commands, watched = self.transaction, self.watched
        self.transaction = None
        self.unwatch()
        return commands, watched

    def watch(self, names: list[bytes]) -> dict[bytes, bytes]:
        """Return the watched versions of the selected database. The caller adds the versions of `names`.

        Raise CommandError if all watched names together exceed the limit.
        """
        new = set(names) - self.watched.get(self.database, {}).keys()
        watched_bytes = self.watched_bytes + sum(map(len, new)) + _WATCHED_COST * len(new)
        if watched_bytes > self._limits.most_bytes:
            raise CommandError("ERR too many watched queues")
        self.watched_bytes = watched_bytes
        return self.watched.setdefault(self.database, {})

    def unwatch(self) -> None:
        """Stop watching all queues."""
        self.watched = {}
        self.watched_bytes = 0

    @property
    def connection(self) -> RespClient:
        """See Caller. The client is its own connection."""
        return self

    def set_protocol(self, protocol: int) -> None:
        """Use this version of RESP for later replies."""
        self.protocol = protocol
        self.null = NULL[protocol]

    @property
    def extra_bytes(self) -> int:
        """The bytes of queued commands and watched names."""
        return self.watched_bytes + (self.transaction.size if self.transaction is not None else 0)

    def encode(self, value: Any) -> bytes:
        """See Connection."""
        return encode(value, self.protocol)

    def error_reply(self, reason: Exception) -> bytes:
        """See Connection. Log an unexpected error, and reply with an internal error instead."""
        if not isinstance(reason, CommandError | PressureError):
            logger.error(
                "command failed with an unexpected error; the client gets -ERR",
                exc_info=reason,
                extra=self.log_fields(type(reason).__name__),
            )
            reason = CommandError("ERR internal error: see the server's log")
        return error(reason)
