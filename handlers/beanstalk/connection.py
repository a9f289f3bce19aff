"""A beanstalk client's connection: parses requests and runs their commands."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from handlers.beanstalk import replies
from handlers.beanstalk.client import PROTOCOL, BeanstalkClient, DeniedCommandError, Spec
from handlers.beanstalk.commands.producers import put
from handlers.beanstalk.job_index import JobIndex
from handlers.beanstalk.parser import MAX_LINE, Parsed, Puts, Refused, Request, RequestParser
from handlers.beanstalk.statistics import Statistics
from handlers.beanstalk.table import COMMANDS, FormatError
from pressure_server.auth.users import NOBODY
from pressure_server.errors import (
    BackendError,
    BufferLimitError,
    DeniedError,
    DrainingError,
    PressureError,
    QueueClosedError,
    QueueFullError,
    StoppingError,
)
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.handler import Context
from pressure_server.queues.operations.operation import Operation

logger = logging.getLogger(__name__)

_BEFORE_LOGIN = {"auth", "quit", "ready"}
# Lines of HTTP: a web page can make a browser send commands in the body of a POST.
_HTTP_WORDS = (b"post ", b"host:")
_PUT, _UNKNOWN = statistics_of(PROTOCOL, "put"), statistics_of(PROTOCOL, UNKNOWN)


class BeanstalkConnection(BeanstalkClient):
    """A beanstalk client's connection."""

    __slots__ = ("_parser",)

    def __init__(self, context: Context, statistics: Statistics, index: JobIndex, max_job_size: int) -> None:
        super().__init__(context, statistics, index, max_job_size)
        self._parser = RequestParser(max_job_size)

    @property
    def unparsed(self) -> int:
        """See Connection."""
        return self._parser.unparsed

    def forget_unparsed(self) -> None:
        """See Connection."""
        self._parser = RequestParser(self.max_job_size)

    def parse(self, data: bytes) -> list[Parsed]:
        """See Connection. Refuse large requests from a client that has not logged in."""
        requests = self._parser.feed(data)
        if (
            self.user is NOBODY
            and self._parser.awaited > MAX_LINE
            and not any(
                type(request) is Request and request.line.startswith(b"auth ") for request in requests
            )
        ):
            # Close: the rest of the message must not be read as commands.
            requests.append(Refused(replies.UNAUTHENTICATED, closes=True))
        return requests

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Connection. `auth` is left out, because it has the password; puts are shown without options."""
        if type(command) is Refused or self.user is NOBODY:
            return []
        if type(command) is Puts:
            return [[b"put", job.split(b" ", 5)[5]] for job in command.jobs]
        words = command.line.split(b" ")
        return [words] if words[0] in COMMANDS and words[0] != b"auth" else []

    def count_of(self, command: Any) -> int:
        """See Connection."""
        return len(command.jobs) if type(command) is Puts else 1

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """See Connection. Check the request, and run its command."""
        try:
            if type(command) is Puts:
                self.clients.commands += len(command.jobs) - 1  # they were counted as one
                self.command = _PUT
                if self.user is NOBODY:
                    raise DeniedCommandError
                self._permit("put")
                self.permit_tube(self.used)
                put(self, command.jobs)
                if not self.is_held:
                    self.command.calls += len(command.jobs)
                return None
            if type(command) is Refused:
                if command.is_put:
                    self.statistics.commands["put"] += 1
                    self.is_producer = self.is_producer or command.reply == replies.EXPECTED_CRLF
                (_PUT if command.is_put else _UNKNOWN).reject(command.reply[:-2].decode())
                self.reply(command.reply)
                if command.closes:
                    self.close_when_replied()
                return None
            return self._run(command)
        except Exception as reason:
            requests = len(command.jobs) if type(command) is Puts else 1
            self.reply(self.refuse(reason, requests) * requests)
            return None

    def _run(self, request: Request) -> Coroutine[Any, Any, bytes] | None:
        if b"\0" in request.line:
            _UNKNOWN.reject("BAD_FORMAT")
            self.reply(replies.BAD_FORMAT)
            return None
        word, space, _ = request.line.partition(b" ")
        spec = COMMANDS.get(word)
        if spec is None or bool(space) is spec.takes_nothing:
            self._refuse(request.line)
            return None
        self.command = spec.statistics
        arguments = spec.parse(request.line[len(word) :])
        self._check(spec)
        self.statistics.commands[spec.name] += 1
        running = spec.function(self, arguments)
        if self.is_held:
            self.statistics.commands[spec.name] -= 1  # it will be executed again
        else:
            self.command.calls += 1
        return running

    def _refuse(self, line: bytes) -> None:
        """Refuse a line as beanstalkd does: it looks whether the line begins with the name of a command."""
        if line.startswith(b"quit"):
            self.close_when_replied()
            return
        if line.lower().startswith(_HTTP_WORDS):
            self.break_off()
            return
        garbled = line.startswith(b"put ") or any(
            spec.takes_nothing and line.startswith(name) for name, spec in COMMANDS.items()
        )
        reply = replies.BAD_FORMAT if garbled else replies.UNKNOWN_COMMAND
        _UNKNOWN.reject(reply[:-2].decode())
        self.clients.unknown_commands.note(self, line.split(b" ")[:1], reply[:-2].decode())
        self.reply(reply)

    def _check(self, spec: Spec) -> None:
        if self.user is NOBODY and spec.name not in _BEFORE_LOGIN:
            raise DeniedCommandError
        self._permit(*spec.needs)

    def _permit(self, *needs: str) -> None:
        if not self.user.is_unrestricted and not self.user.rights.issuperset(needs):
            self.clients.access.refused["cmd"] += 1
            raise DeniedCommandError

    def abandoned_reply(self) -> bytes:
        """See Connection. A client that half-closes while it waits for a job receives TIMED_OUT."""
        reserves = any(isinstance(one, Operation) and one.verb.reserves for one in self._waits)
        return replies.TIMED_OUT if reserves or self.awaits_job else b""

    def encode(self, value: Any) -> bytes:
        """See Connection. A coroutine returns the reply itself."""
        reply: bytes = value
        return reply

    def error_reply(self, error: Exception) -> bytes:
        """See Connection. beanstalkd's errors are few: the log has the reason of an internal error."""
        if isinstance(error, FormatError):
            return replies.BAD_FORMAT
        if isinstance(error, DeniedError):
            return replies.DENIED
        if isinstance(error, DeniedCommandError):
            return replies.UNAUTHENTICATED if self.user is NOBODY else replies.DENIED
        if isinstance(error, QueueFullError | BufferLimitError) or "OOM" in str(error):
            return replies.OUT_OF_MEMORY
        if isinstance(error, QueueClosedError | StoppingError | DrainingError):
            return replies.DRAINING
        if isinstance(error, BackendError):
            logger.debug("the reply is INTERNAL_ERROR: %s", error, extra=self.log_fields(error.code))
        elif isinstance(error, PressureError):
            fields = self.log_fields(error.code)
            self.statistics.errors.warn(f"replied INTERNAL_ERROR to a client: {error}", fields)
        else:
            logger.error(
                "unexpected error in a command; its connection stays open",
                exc_info=error,
                extra=self.log_fields(type(error).__name__),
            )
        return replies.INTERNAL_ERROR

    def too_many_clients_reply(self) -> bytes:
        """See Connection."""
        return replies.OUT_OF_MEMORY
