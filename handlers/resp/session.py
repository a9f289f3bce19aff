"""A RESP client's session: from requests to commands of the table, and the client's state that they use."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeAlias

from handlers.resp.parser import (
    ARGUMENT_COST,
    Limits,
    Repeated,
    RequestError,
    RequestParser,
    Words,
)
from handlers.resp.replies import (
    UnknownCommandError,
    encode,
    error,
    unknown_command,
    wrong_arity,
)
from handlers.resp.table import BY_SPELLING, COMMANDS, PROTOCOL, Command, find, find_subcommand
from handlers.resp.unsupported import unsupported
from pressure_server.auth.users import NOBODY
from pressure_server.errors import CommandError, PressureError
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.command_table import Refusal
from pressure_server.net.handler import Context
from pressure_server.net.pipeline import REPLIES, ReplyMode, TooEarly
from pressure_server.net.session import Session
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Encode, Operation, Owner, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction

# The most watched queues: EXEC compares the versions of all in one call.
_MAX_WATCHED: Final = 10_000
# Estimated bytes for a watched queue besides its name.
_WATCHED_COST: Final = 256
# Commands that are executed at once even in a transaction.
_NEVER_QUEUED: Final = {"multi", "exec", "discard", "watch", "quit", "reset"}
_LOGINS: Final = {"auth", "hello"}
_QUEUED: Final = b"+QUEUED\r\n"
_UNKNOWN: Final = statistics_of(PROTOCOL, UNKNOWN)
# Redis's flag for commands that need no login.
_BEFORE_LOGIN: Final = "no_auth"
_NOT_LOGGED_IN: Final = "NOAUTH Authentication required."
# Redis's texts for a command that a user may not execute, and for one that it could when it was queued.
_NOPERM: Final = {
    Refusal.COMMAND: "this user has no permissions to run the '%s' command",
    Refusal.QUEUE: "this user has no permissions to access one of the keys used as arguments",
}
_NOPERM_BY_EXEC: Final = {
    Refusal.COMMAND: "no permission to execute the command or subcommand",
    Refusal.QUEUE: "no permission to touch the specified keys",
}
_CHANGED: Final = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
    "This command is no longer allowed for the following reason: "
)


class QueuedCommands:
    """The commands since MULTI, and their `size` in bytes.

    `is_broken` is set if a command since MULTI was refused; EXEC then does nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self.queued: list[tuple[Command, Words]] = []
        self.is_broken = False
        self.size = 0
        self._most_bytes = most_bytes

    def add(self, entry: Command, words: Words) -> None:
        """Queue a command. Raise CommandError and drop all commands if they exceed the limit."""
        self.size += sum(map(len, words)) + ARGUMENT_COST * len(words)
        if self.size > self._most_bytes:
            self.queued.clear()
            raise CommandError("ERR the transaction is too large")
        self.queued.append((entry, words))


class RespSession(Session):
    """A client, as commands see it. `protocol` is its RESP version.

    `transaction` has the commands since MULTI; None outside a transaction. `transaction_id` is the id that
    PRESSURE.TXN has given for the next put, or None. `watched` has the versions of the watched queues, by
    database. `most_bytes` limits the commands of a transaction together, and the watched names.
    """

    PROTOCOL = PROTOCOL
    ERRORS = (b"-",)
    MANY = Repeated
    TOO_LARGE = RequestError("Protocol error: unauthenticated bulk or multibulk length")
    TOO_MANY_CLIENTS = b"-ERR max number of clients reached\r\n"
    __slots__ = (
        "library", "most_bytes", "protocol", "transaction", "transaction_id", "watched", "watched_bytes",
    )  # fmt: skip

    def __init__(self, context: Context, limits: Limits) -> None:
        super().__init__(context, RequestParser(limits))
        self.library: tuple[bytes, bytes] | None = None
        self.most_bytes = limits.most_bytes
        self.protocol = 2
        self.transaction: QueuedCommands | None = None
        self.transaction_id: bytes | None = None
        self.watched: dict[Database, dict[bytes, bytes]] = {}
        self.watched_bytes = 0

    @property
    def library_name(self) -> str:
        """See Session. The library is known if it has sent CLIENT SETINFO."""
        return b" ".join(self.library or ()).decode()

    def end_transaction(self) -> tuple[QueuedCommands | None, dict[Database, dict[bytes, bytes]]]:
        """Return and forget the queued commands (None outside a transaction) and the watched versions."""
        commands, watched = self.transaction, self.watched
        self.transaction = None
        self.unwatch()
        return commands, watched

    def watch(self, names: list[bytes]) -> dict[bytes, bytes]:
        """Return the watched versions of the selected database, to which `add_watched` may add `names`.

        Raise CommandError if all watched names together would exceed a limit.
        """
        new = set(names) - self.watched.get(self.database, {}).keys()
        watched_bytes = self.watched_bytes + sum(map(len, new)) + _WATCHED_COST * len(new)
        count = sum(map(len, self.watched.values())) + len(new)
        if count > _MAX_WATCHED or watched_bytes > self.most_bytes:
            raise CommandError("ERR too many watched queues")
        return self.watched.setdefault(self.database, {})

    def add_watched(self, name: bytes, version: bytes) -> None:
        """Watch one more queue of the selected database, which has this version."""
        self.watched[self.database][name] = version
        self.watched_bytes += len(name) + _WATCHED_COST

    def unwatch(self) -> None:
        """Stop watching all queues."""
        self.watched = {}
        self.watched_bytes = 0

    @property
    def session(self) -> RespSession:
        """The session itself: a command uses it also if a transaction is its caller."""
        return self

    def _execute_skipping(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Execute the command after CLIENT REPLY SKIP, without a reply."""
        if type(command) is Repeated:
            self.execute_instead(command.requests())
            return None
        self.reply_mode = ReplyMode.SKIPPING
        try:
            running = self.execute(command)
        except TooEarly:
            self.reply_mode = ReplyMode.SKIP
            raise
        if self.reply_mode is ReplyMode.SKIPPING:
            self.reply_mode = ReplyMode.SKIPPED
        return running

    @property
    def details(self) -> dict[str, Any]:
        """See Session. The commands since MULTI, -1 outside a transaction, and their size; the protocol."""
        transaction = self.transaction
        return {
            "multi": -1 if transaction is None else len(transaction.queued),
            "multi-mem": 0 if transaction is None else transaction.size,
            "resp": self.protocol,
        }

    @property
    def extra_bytes(self) -> int:
        """The bytes of queued commands and watched names."""
        return self.watched_bytes + (self.transaction.size if self.transaction is not None else 0)

    def encode(self, value: Any) -> bytes:
        """See Session."""
        return encode(value, self.protocol)

    def error_reply(self, reason: Exception) -> bytes:
        """See Session. Log an unexpected error, and reply with an internal error instead."""
        if not isinstance(reason, CommandError | PressureError):
            self.log_unexpected(reason)
            reason = CommandError("ERR internal error: see the server's log")
        return error(reason)

    def may_log_in(self, request: Any) -> bool:
        """See Session."""
        return type(request) is list and request[0].upper() in (b"AUTH", b"HELLO")

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Session. As in Redis, AUTH and HELLO are left out: they have passwords."""
        if type(command) is RequestError or self.user is NOBODY:
            return []
        commands: list[Words] = command.requests() if type(command) is Repeated else [command]
        entry = find(commands[0])
        return commands if entry is not None and entry.name not in _LOGINS else []

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Find the command in the table and execute it, or queue it in a transaction."""
        if self.reply_mode is not REPLIES:
            if self.reply_mode is ReplyMode.SKIP:
                return self._execute_skipping(command)
            if self.reply_mode is ReplyMode.SKIPPED:
                self.reply_mode = ReplyMode.ON
        if type(command) is not list:
            self._execute_special(command)
            return None
        entry = BY_SPELLING.get(command[0]) or COMMANDS.get(command[0].upper())
        try:
            if entry is None:
                self.command_statistics = _UNKNOWN
                if self.is_http(command[0]):
                    return None
                raise self._unknown(command)
            self.command_statistics = entry.statistics
            if not entry.least <= len(command) <= entry.most:
                raise wrong_arity(entry.name)
            if entry.subcommands and len(command) > 1:
                # The function of a container finds it again: these commands are rare.
                self.command_statistics = find_subcommand(command).statistics
            if entry not in self.user.allowed:
                self.check(entry, command)
            if self.transaction is not None and entry.name not in _NEVER_QUEUED:
                self.transaction.add(entry, command)
                self.reply(_QUEUED)
                return None
            running = entry.function(self, command)
            self.command_statistics.calls += 1
            return running
        except Exception as reason:
            self.reply(self._rejected(entry, reason))
            return None

    def _unknown(self, command: Words) -> CommandError:
        refusal = unsupported(command, self.context.settings.documentation)
        if refusal is not None and self.user is NOBODY:
            return CommandError(_NOT_LOGGED_IN)
        return refusal or unknown_command(command)

    def _rejected(self, entry: Command | None, reason: Exception) -> bytes:
        """Return the reply to a refused command. A refused EXEC ends the transaction, others break it."""
        if entry is not None and entry.name == "exec" and isinstance(reason, CommandError):
            self.end_transaction()
            text = str(reason).removeprefix("ERR ")
            reason = CommandError(f"EXECABORT Transaction discarded because of: {text}")
        elif self.transaction is not None:
            self.transaction.is_broken = True
        reply = self.refuse(reason)
        if isinstance(reason, UnknownCommandError):
            log = self.clients.unknown_commands
            log.note(self, reason.name, reason.logged, loses_work=reason.loses_work)
        return reply

    def _execute_special(self, command: Repeated | RequestError) -> None:
        if isinstance(command, RequestError):
            self.reply(error(CommandError(f"ERR {command}")))
            self.close_when_replied()
            return
        entry = BY_SPELLING.get(command.words[0])
        can_repeat = (
            entry is not None
            and entry.repeated is not None
            and self.transaction is None
            and self.user is not NOBODY
            and (entry.repeats_options or not command.rest)
            and entry.accepts(command.size)
            and (entry in self.user.allowed or entry.refuses(self.user, command.words) is None)
        )
        self.execute_repeated(entry if can_repeat else None, command)

    def check(self, entry: Command, words: Words, *, by_exec: bool = False) -> None:
        """Raise CommandError if the client may not execute the command now.

        `by_exec` selects the error text for a command that was allowed when it was queued.
        """
        if entry.subcommands and len(words) > 1:
            entry = find_subcommand(words)
        if self.user is NOBODY:
            if _BEFORE_LOGIN not in entry.flags:
                raise CommandError(_NOT_LOGGED_IN)
            return
        why = entry.refuses(self.user, words)
        if why is None:
            return
        self.count_refusal(why)
        if by_exec:
            raise CommandError(f"NOPERM {_CHANGED}{_NOPERM_BY_EXEC[why]}")
        raise CommandError(f"NOPERM {_NOPERM[why].replace('%s', entry.name)}")


class TransactionCaller(Owner):
    """The caller of one command in a transaction. It keeps the command's reply or operation as `outcome`.

    It owns the operation, so it has the attributes of a client that encoders use.
    """

    __slots__ = ("database", "outcome", "protocol", "session", "transaction_id")

    def __init__(self, session: RespSession, database: Database | Transaction) -> None:
        self.session = session
        self.database = database
        self.protocol = session.protocol
        self.transaction_id = session.transaction_id
        self.outcome: bytes | Operation = b""

    def reply(self, data: bytes) -> None:
        """See RespSession.reply."""
        self.outcome = data

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
        options: Options = DEFAULT,
    ) -> None:
        """See RespSession.submit. `wait` is ignored: nothing waits in a transaction."""
        self.outcome = Operation(verb, name, messages, size, self, encode, commands, options=options)
        self.database.submit(self.outcome)

    def completed(self, operation: Operation) -> None:
        """See RespSession.completed. `execute` encodes the entry later, for the reply of EXEC."""
        if operation.has_taken:
            self.session.take_over(operation)


# The caller of a command: a client, or a transaction that executes the command for a client.
Caller: TypeAlias = RespSession | TransactionCaller
