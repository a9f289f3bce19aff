"""A memcached client's connection: parses requests and runs their commands."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from handlers.memcached import login
from handlers.memcached.access import check
from handlers.memcached.client import PROTOCOL, ListenerOptions, MemcachedClient, Spec
from handlers.memcached.parser import Repeated, Request, RequestError, RequestParser
from handlers.memcached.replies import ERROR, ClientError, client_error, server_error
from handlers.memcached.statistics import Counts
from handlers.memcached.table import COMMANDS
from handlers.memcached.values import Values
from pressure_server.auth.users import NOBODY
from pressure_server.errors import PressureError, QueueNameError
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.handler import Context

logger = logging.getLogger(__name__)

# First words of HTTP lines: a web page can make a browser send commands in the body of a POST.
_HTTP_WORDS = (b"post", b"host:")
_UNKNOWN = statistics_of(PROTOCOL, UNKNOWN)


class MemcachedConnection(MemcachedClient):
    """A memcached client's connection."""

    __slots__ = ("_commands", "_parser")

    def __init__(self, context: Context, options: ListenerOptions, counts: Counts, values: Values) -> None:
        super().__init__(context, options, counts, values)
        self._commands = COMMANDS[options.mode]
        self._parser = RequestParser(context.settings.max_message_bytes)

    @property
    def unparsed(self) -> int:
        """See Connection."""
        return self._parser.unparsed

    def forget_unparsed(self) -> None:
        """See Connection."""
        self._parser = RequestParser(self.context.settings.max_message_bytes)

    def parse(self, data: bytes) -> list[Any]:
        """See Connection. Return Request, Repeated and RequestError objects.

        Refuse large requests from a client that has not logged in.
        """
        parsed: list[Any] = list(self._parser.feed(data))
        if (
            self.user is NOBODY
            and self._parser.awaited > login.MAX_LOGIN_BYTES
            and not any(map(login.may_log_in, parsed))
        ):
            parsed.append(RequestError(login.UNAUTHENTICATED, closes=True))
        for request in parsed:
            if type(request) is Repeated:
                self.clients.commands += request.count - 1
        return parsed

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Connection. A request of a client that has not logged in has the password."""
        if type(command) is RequestError or self.user is NOBODY or command.words[0] not in self._commands:
            return []
        requests = command.requests() if type(command) is Repeated else [command]
        return [one.words if one.data is None else [*one.words, one.data] for one in requests]

    def count_of(self, command: Any) -> int:
        """See Connection."""
        return command.count if type(command) is Repeated else 1

    def error_code(self, error: Exception, reply: bytes) -> str:
        """See Connection. Errors of the server have codes of their own."""
        return super().error_code(error, reply.removeprefix(b"SERVER_ERROR "))

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """See Connection. Check the request, and run its command."""
        if type(command) is RequestError:
            is_stranger = self.user is NOBODY and not command.closes
            self.reply(login.UNAUTHENTICATED if is_stranger else command.reply)
            if command.closes:
                self.close_when_replied()
            return None
        spec = self._commands.get(command.words[0])
        self.command = spec.statistics if spec is not None else _UNKNOWN
        if type(command) is Repeated:
            self._execute_repeated(spec, command)
            return None
        if spec is None and command.words[0].lower() in _HTTP_WORDS:
            self.break_off()
            return None
        try:
            if self.user is NOBODY and command.words[0] not in login.BEFORE_LOGIN:
                return login.log_in(self, command)
            if spec is None:
                self.command.reject("ERROR")
                self.clients.unknown_commands.note(self, command.words[:1], "memcached's error line")
                self.reply(ERROR)
                return None
            self._check(spec, command)
            coroutine = spec.function(self, command)
            if not self.is_held:
                self.command.calls += 1
        except Exception as reason:
            refusal = self.refuse(reason)
            self.reply(b"" if command.is_quiet else refusal)
            return None
        return self._quietly(coroutine) if command.is_quiet and coroutine is not None else coroutine

    async def _quietly(self, coroutine: Coroutine[Any, Any, bytes]) -> bytes:
        """Run a command that was sent with noreply."""
        try:
            await coroutine
        except Exception as reason:
            logger.debug("a command with noreply failed: %s", self.error_reply(reason))
        return b""

    def _check(self, spec: Spec, command: Request | Repeated) -> None:
        """Raise WordCountError for a wrong number of words, ClientError if the user lacks permission."""
        words = command.words
        if len(words) < spec.least or (spec.most is not None and len(words) > spec.most):
            raise WordCountError
        check(self, spec, words)

    def _execute_repeated(self, spec: Spec | None, command: Repeated) -> None:
        if command.count > self.may_submit:
            self.execute_instead(list(command.split(self.may_submit)))
            return
        if spec is None or spec.repeated is None or self.user is NOBODY:
            self.execute_instead(list(command.requests()))
            return
        try:
            self._check(spec, command)
            spec.repeated(self, command)
            if not self.is_held:
                self.command.calls += command.count
        except Exception as reason:
            refusal = self.refuse(reason, command.count)
            self.reply(b"" if command.is_quiet else refusal * command.count)

    def encode(self, value: Any) -> bytes:
        """See Connection. A coroutine returns the reply itself."""
        reply: bytes = value
        return reply

    def error_reply(self, error: Exception) -> bytes:
        """See Connection. Log errors that are not an expected result of a command."""
        if isinstance(error, WordCountError):
            return ERROR
        if isinstance(error, ClientError | QueueNameError):
            return client_error(str(error))
        if not isinstance(error, PressureError):
            logger.error(
                "unexpected error in a command; its connection stays open",
                exc_info=error,
                extra=self.log_fields(type(error).__name__),
            )
            error = PressureError("internal error: the server's log has the details")
        return server_error(error)

    def too_many_clients_reply(self) -> bytes:
        """See Connection. Return memcached's text."""
        return b"ERROR Too many open connections\r\n"


class WordCountError(Exception):
    """A request has too few or too many words for its command."""
