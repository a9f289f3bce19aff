"""A RESP client's connection: the parser before, the command table behind, and what the client has set."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from handlers.resp import errors
from handlers.resp.access import check, refusal
from handlers.resp.parser import (
    Command,
    Limits,
    Repeated,
    RequestError,
    RequestParser,
)
from handlers.resp.replies import NULL, CommandError, encode, error
from handlers.resp.table import BY_SPELLING, COMMANDS, Spec, find_subcommand
from handlers.resp.transaction import Commands
from pressure_server.auth.logins import MOST_FAILURES
from pressure_server.auth.users import DEFAULT, NOBODY
from pressure_server.errors import PressureError
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.queues.database import Database

logger = logging.getLogger(__name__)

# A browser that a web page makes send commands here, in the body of a request. Redis hangs up, too.
_OF_HTTP = (b"post", b"host:")
# What is done at once in a transaction, too.
_NEVER_QUEUED = {"multi", "exec", "discard", "watch", "quit", "reset"}
_QUEUED = b"+QUEUED\r\n"
# Of a name, and the version that the queue had.
_WATCHED_COST = 256


def _may_log_in(request: object) -> bool:
    return isinstance(request, list) and request[0].upper() in (b"AUTH", b"HELLO")


class RespConnection(Connection):
    """One client. `protocol` is the version of RESP it speaks, `null` what nothing is in it.

    `transaction` holds its commands since MULTI; `watched` the versions of the queues it watches.
    """

    __slots__ = (
        "_limits",
        "_parser",
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
        self._parser = RequestParser(limits)
        self.id = next(context.clients.ids)
        self.name = b""
        self.library: tuple[bytes, bytes] | None = None
        self.failures = 0
        self.protocol = 2
        self.null = NULL[2]
        self.since = context.clients.now
        self.transaction: Commands | None = None
        self.watched: dict[Database, dict[bytes, bytes]] = {}
        self.watched_bytes = 0

    def begin_transaction(self) -> None:
        """Queue commands from now on. Raises CommandError."""
        if self.transaction is not None:
            raise CommandError("ERR MULTI calls can not be nested")
        self.transaction = Commands(self._limits.most_bytes)

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

    def end_transaction(self) -> tuple[Commands | None, dict[Database, dict[bytes, bytes]]]:
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
    def connection(self) -> RespConnection:
        """Itself: see Caller."""
        return self

    def speak(self, protocol: int) -> None:
        """Reply in this version of RESP from now on."""
        self.protocol = protocol
        self.null = NULL[protocol]

    @property
    def unparsed(self) -> int:
        """See Connection."""
        return self._parser.unparsed

    def forget_unparsed(self) -> None:
        """See Connection."""
        self._parser = RequestParser(self._limits)

    @property
    def kept(self) -> int:
        """What is queued for EXEC, or watched."""
        return self.watched_bytes + (self.transaction.size if self.transaction is not None else 0)

    def parse(self, data: bytes) -> list[Any]:
        """Requests, and a RequestError at the end of those that can be read."""
        requests = self._parser.feed(data)
        if self.user is NOBODY and self._parser.waits_for_much and not any(map(_may_log_in, requests)):
            requests.append(RequestError("Protocol error: unauthenticated bulk or multibulk length"))
        for request in requests:
            if type(request) is Repeated:
                self.clients.commands += request.count - 1
        return requests

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Find the command in the table and do it."""
        if type(command) is not list:
            self._execute_special(command)
            return None
        spec = BY_SPELLING.get(command[0]) or COMMANDS.get(command[0].upper())
        try:
            if spec is None:
                if command[0].lower() in _OF_HTTP:
                    self.break_off()
                    return None
                raise errors.unknown_command(command)
            if not spec.accepts(len(command)):
                raise errors.wrong_arity(spec.name)
            if not self.user.is_free:
                check(self, spec, command)
            if self.transaction is not None and spec.name not in _NEVER_QUEUED:
                # COMMAND does something on its own, too.
                if spec.subcommands and len(command) > 1:
                    find_subcommand(command)
                self.transaction.add(spec, command)
                self.reply(_QUEUED)
                return None
            return spec.function(self, command)
        except Exception as reason:
            self.reply(self._rejected(spec, reason))
            return None

    def _rejected(self, spec: Spec | None, reason: Exception) -> bytes:
        """The reply to a command that was not done; it breaks a transaction, and EXEC ends it."""
        if spec is not None and spec.name == "exec" and isinstance(reason, CommandError):
            self.end_transaction()
            reason = errors.exec_refused(reason)
        elif self.transaction is not None:
            self.transaction.is_broken = True
        return self.failed(reason)

    def _execute_special(self, command: Repeated | RequestError) -> None:
        if type(command) is RequestError:
            self.reply(error(CommandError(f"ERR {command}")))
            self.close_when_replied()
        elif type(command) is Repeated:
            if command.count > self.may_submit:
                self.execute_instead(list(command.split(self.may_submit)))
                return
            spec = BY_SPELLING.get(command.words[0])
            if (
                self.transaction is not None
                or spec is None
                or spec.repeated is None
                or not spec.accepts(3 if command.thirds else 2)
                or not (self.user.is_free or self._may(spec, command.words))
            ):
                self.execute_instead(command.commands())
                return
            try:
                spec.repeated(self, command)
            except Exception as reason:
                self.reply(self.failed(reason) * command.count)

    def _may(self, spec: Spec, words: Command) -> bool:
        return self.user is not NOBODY and refusal(self.user, spec, words) is None

    def encode(self, value: Any) -> bytes:
        """The reply that a coroutine has returned."""
        return encode(value, self.protocol)

    def failed(self, reason: Exception) -> bytes:
        """The reply for an error that a command has met. One that is no refusal goes to the log."""
        if not isinstance(reason, CommandError | PressureError):
            logger.error("a command failed", exc_info=reason)
            reason = CommandError("ERR internal error: the server's log has the details")
        return error(reason)

    def refused(self) -> bytes:
        """Redis's words for one client too many."""
        return b"-ERR max number of clients reached\r\n"
