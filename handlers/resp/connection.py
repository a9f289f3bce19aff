"""The connection of a RESP client: from requests to commands of the table."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from handlers.resp import errors
from handlers.resp.access import check, refusal
from handlers.resp.client import PROTOCOL, RespClient, Spec
from handlers.resp.parser import (
    Command,
    Limits,
    Repeated,
    RequestError,
    RequestParser,
)
from handlers.resp.replies import CommandError, error
from handlers.resp.table import BY_SPELLING, COMMANDS, find_subcommand
from pressure_server.auth.users import NOBODY
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.handler import Context

# Words that begin lines of an HTTP request. A web page can hide commands in its body, so the server closes
# the connection, as Redis does.
_HTTP_WORDS = (b"post", b"host:")
# Commands that are executed at once even in a transaction.
_NEVER_QUEUED = {"multi", "exec", "discard", "watch", "quit", "reset"}
_LOGINS = {"auth", "hello"}
_QUEUED = b"+QUEUED\r\n"
_UNKNOWN = statistics_of(PROTOCOL, UNKNOWN)


def _find(command: Command) -> Spec | None:
    """Return the command or subcommand that a request calls; None if there is none with so many words."""
    spec = COMMANDS.get(command[0].upper())
    if spec is not None and spec.subcommands and len(command) > 1:
        spec = spec.subcommands.get(command[1].upper())
    return spec if spec is not None and spec.accepts(len(command)) else None


def _may_log_in(request: object) -> bool:
    return isinstance(request, list) and request[0].upper() in (b"AUTH", b"HELLO")


class RespConnection(RespClient):
    """A client's connection, which parses requests and executes their commands."""

    __slots__ = ("_parser",)

    def __init__(self, context: Context, limits: Limits) -> None:
        super().__init__(context, limits)
        self._parser = RequestParser(limits)

    @property
    def unparsed(self) -> int:
        """See Connection."""
        return self._parser.unparsed

    def forget_unparsed(self) -> None:
        """See Connection."""
        self._parser = RequestParser(self._limits)

    def parse(self, data: bytes) -> list[Any]:
        """Return the complete requests. After bytes that cannot be parsed, the last one is a RequestError."""
        requests = self._parser.feed(data)
        if self.user is NOBODY and self._parser.exceeds_login_limits and not any(map(_may_log_in, requests)):
            requests.append(RequestError("Protocol error: unauthenticated bulk or multibulk length"))
        for request in requests:
            if type(request) is Repeated:
                self.clients.commands += request.count - 1
        return requests

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Connection. As in Redis, AUTH and HELLO are left out: they have passwords."""
        if type(command) is RequestError or self.user is NOBODY:
            return []
        commands: list[Command] = command.commands() if type(command) is Repeated else [command]
        spec = _find(commands[0])
        return commands if spec is not None and spec.name not in _LOGINS else []

    def count_of(self, command: Any) -> int:
        """See Connection."""
        return command.count if type(command) is Repeated else 1

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Find the command in the table and execute it, or queue it in a transaction."""
        if type(command) is not list:
            self._execute_special(command)
            return None
        spec = BY_SPELLING.get(command[0]) or COMMANDS.get(command[0].upper())
        try:
            if spec is None:
                self.command = _UNKNOWN
                if command[0].lower() in _HTTP_WORDS:
                    self.break_off()
                    return None
                raise errors.unknown_command(command)
            self.command = spec.statistics
            if not spec.least <= len(command) <= spec.most:
                raise errors.wrong_arity(spec.name)
            if spec.subcommands and len(command) > 1:
                # The function of a container finds it again: these commands are rare.
                self.command = find_subcommand(command).statistics
            if not self.user.is_unrestricted:
                check(self, spec, command)
            if self.transaction is not None and spec.name not in _NEVER_QUEUED:
                # COMMAND may also be called without a subcommand.
                if spec.subcommands and len(command) > 1:
                    find_subcommand(command)
                self.transaction.add(spec, command)
                self.reply(_QUEUED)
                return None
            running = spec.function(self, command)
            if not self.is_held:
                self.command.calls += 1
            return running
        except Exception as reason:
            self.reply(self._rejected(spec, reason))
            return None

    def _rejected(self, spec: Spec | None, reason: Exception) -> bytes:
        """Return the reply to a refused command. A refused EXEC ends the transaction, others break it."""
        if spec is not None and spec.name == "exec" and isinstance(reason, CommandError):
            self.end_transaction()
            reason = errors.exec_refused(reason)
        elif self.transaction is not None:
            self.transaction.is_broken = True
        reply = self.refuse(reason)
        if isinstance(reason, errors.UnknownCommandError):
            shown = "-ERR unknown subcommand" if len(reason.name) > 1 else "-ERR unknown command"
            self.clients.unknown_commands.note(self, reason.name, shown)
        return reply

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
                or not (self.user.is_unrestricted or self._may(spec, command.words))
            ):
                self.execute_instead(command.commands())
                return
            self.command = spec.statistics
            try:
                spec.repeated(self, command)
                if not self.is_held:
                    self.command.calls += command.count
            except Exception as reason:
                self.reply(self.refuse(reason, command.count) * command.count)

    def _may(self, spec: Spec, words: Command) -> bool:
        return self.user is not NOBODY and refusal(self.user, spec, words) is None

    def too_many_clients_reply(self) -> bytes:
        """See Connection. The text is Redis's."""
        return b"-ERR max number of clients reached\r\n"
