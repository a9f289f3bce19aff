"""A beanstalk client's session: from requests to commands of the table, and the tubes that it uses."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handlers.beanstalk import replies
from handlers.beanstalk.parser import Puts, Request, RequestParser
from handlers.beanstalk.table import COMMANDS, PROTOCOL, Command
from pressure_server.auth.users import NOBODY
from pressure_server.errors import ErrorKind, PressureError, QueueDoesNotExistError
from pressure_server.net.command_statistics import UNKNOWN, CommandStatistics, statistics_of
from pressure_server.net.command_table import Refusal
from pressure_server.net.handler import Context
from pressure_server.net.line_parser import Refused
from pressure_server.net.pipeline import TooEarly
from pressure_server.net.session import Session
from pressure_server.queues.operations.operation import Operation, Verb

if TYPE_CHECKING:
    from handlers.beanstalk.listener_state import ListenerState

logger = logging.getLogger(__name__)

DEFAULT_TUBE = b"default"
# The estimated memory of a watched tube besides its name, in bytes.
_TUBE_COST = 150
_BEFORE_LOGIN = {"auth", "quit", "ready"}
_PUT, _UNKNOWN = statistics_of(PROTOCOL, "put"), statistics_of(PROTOCOL, UNKNOWN)


class BeanstalkSession(Session):
    """A beanstalk client.

    It puts into the tube `used`, and reserves from the tubes `watched`, in order.
    """

    PROTOCOL = PROTOCOL
    ERRORS = (replies.OUT_OF_MEMORY, replies.DRAINING, replies.INTERNAL_ERROR)
    MANY = Puts
    # It closes: the rest of the message must not be read as commands.
    TOO_LARGE = Refused(replies.UNAUTHENTICATED, closes=True)
    TOO_MANY_CLIENTS = replies.OUT_OF_MEMORY
    __slots__ = (
        "awaits_job",
        "extra_bytes",
        "is_next_to_wait",
        "is_producer",
        "is_worker",
        "listener",
        "used",
        "watched",
    )
    extra_bytes: int

    def __init__(self, context: Context, listener: ListenerState) -> None:
        super().__init__(context, RequestParser(listener.max_job_size))
        self.listener = listener
        # Whether a reserve of many tubes runs.
        self.awaits_job = False
        # Whether the next reserve waits, as one before it found no job.
        self.is_next_to_wait = False
        self.is_producer = False
        self.is_worker = False
        self.used = DEFAULT_TUBE
        self.watched: dict[bytes, None] = {DEFAULT_TUBE: None}
        self.extra_bytes = len(DEFAULT_TUBE) + _TUBE_COST  # of the watched tubes' names

    def count_watched(self, tube: bytes, change: int) -> None:
        """Count the memory of a tube that is watched from now on (1), or no longer (-1)."""
        self.extra_bytes += change * (len(tube) + _TUBE_COST)
        self.connection.recount()

    async def in_tube_of(self, job: int, verb: Verb, arguments: list[bytes]) -> tuple[bytes, Any] | None:
        """Do something to a job, whichever tube it is in. Return the tube and the result; None for no job."""
        asked: bytes | None = None
        while (tube := await self.listener.tube(job)) is not None and tube != asked:
            self.permit_tube(tube)
            with contextlib.suppress(QueueDoesNotExistError):
                results = await self.database.run(verb, tube, arguments, client=self)
                if results and results[0]:
                    return tube, results[0]
            # The tube may be another one than the listener remembers.
            self.listener.forget(job)
            asked = tube
        return None

    def permit_tube(self, tube: bytes) -> None:
        """Raise RefusedError if the user may not use the tube."""
        if not self.user.may_access(tube):
            self.count_refusal(Refusal.QUEUE)
            raise replies.RefusedError(replies.DENIED)

    def may_log_in(self, request: Any) -> bool:
        """See Session."""
        return type(request) is Request and request.line.startswith(b"auth ")

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Session. `auth` is left out, because it has the password; puts are shown without options."""
        if type(command) is Refused or self.user is NOBODY:
            return []
        if type(command) is Puts:
            return [[b"put", job.split(b" ", 5)[5]] for job in command.jobs]
        words = command.line.split(b" ")
        return [words] if words[0] in COMMANDS and words[0] != b"auth" else []

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """See Session. Check the request, and run its command."""
        try:
            if type(command) is Puts:
                self._put(command)
                return None
            if type(command) is Refused:
                # A well-formed put, whose message is wrong.
                is_put = command.reply in (replies.JOB_TOO_BIG, replies.EXPECTED_CRLF)
                if is_put:
                    self.listener.commands["put"] += 1
                    self.is_producer = self.is_producer or command.reply == replies.EXPECTED_CRLF
                self._reject(command.reply, _PUT if is_put else _UNKNOWN)
                if command.closes:
                    self.close_when_replied()
                return None
            return self._run(command)
        except Exception as reason:
            requests = self.count_of(command)
            self.reply(self.refuse(reason, requests) * requests)
            return None

    def _put(self, puts: Puts) -> None:
        entry = COMMANDS[b"put"]
        self.command_statistics = entry.statistics
        self._check(entry)
        self.permit_tube(self.used)
        entry.function(self, puts.jobs)
        self.command_statistics.calls += len(puts.jobs)

    def _run(self, request: Request) -> Coroutine[Any, Any, bytes] | None:
        if b"\0" in request.line:
            self._reject(replies.BAD_FORMAT)
            return None
        word, space, _ = request.line.partition(b" ")
        entry = COMMANDS.get(word)
        if entry is None or bool(space) is (entry.most == 1):
            self._refuse(request.line)
            return None
        self.command_statistics = entry.statistics
        arguments = entry.parse(request.line[len(word) :]) if space else ()
        self._check(entry)
        self.listener.commands[entry.name] += 1
        try:
            running = entry.function(self, *arguments)
        except TooEarly:
            self.listener.commands[entry.name] -= 1  # it will be executed again
            raise
        self.command_statistics.calls += 1
        return running

    def _refuse(self, line: bytes) -> None:
        """Refuse a line as beanstalkd does: it looks whether the line begins with the name of a command."""
        if line.startswith(b"quit"):
            self.close_when_replied()
            return
        if self.is_http(line[:5].rstrip()):
            return
        garbled = any(entry.most == 1 and line.startswith(name) for name, entry in COMMANDS.items())
        reply = replies.BAD_FORMAT if garbled else replies.UNKNOWN_COMMAND
        self.clients.unknown_commands.note(self, line.split(b" ")[:1], reply[:-2].decode())
        self._reject(reply)

    def _reject(self, reply: bytes, statistics: CommandStatistics = _UNKNOWN) -> None:
        statistics.reject(reply[:-2].decode())
        self.reply(reply)

    def _check(self, entry: Command) -> None:
        """Raise RefusedError if the user may not use the command on any tube."""
        if entry in self.user.allowed:
            return
        if self.user is NOBODY and entry.name not in _BEFORE_LOGIN:
            raise replies.RefusedError(replies.UNAUTHENTICATED)
        if entry.refusal(self.user, tuple) is not None:
            self.count_refusal(Refusal.COMMAND)
            raise replies.RefusedError(replies.DENIED)

    def abandoned_reply(self) -> bytes:
        """See Session. A client that half-closes while it waits for a job receives TIMED_OUT."""
        reserves = any(isinstance(one, Operation) and one.verb.reserves for one in self._waits)
        return replies.TIMED_OUT if reserves or self.awaits_job else b""

    def error_reply(self, error: Exception) -> bytes:
        """See Session. beanstalkd's errors are few: the log has the reason of an internal error."""
        if isinstance(error, replies.RefusedError):
            return error.reply
        if not isinstance(error, PressureError):
            self.log_unexpected(error)
            return replies.INTERNAL_ERROR
        reply = replies.OF_ERROR.get(error.kind, replies.INTERNAL_ERROR)
        if error.kind is ErrorKind.PASSING:
            logger.debug("the reply is INTERNAL_ERROR: %s", error, extra=self.log_fields(error.code))
        elif reply is replies.INTERNAL_ERROR:
            fields = self.log_fields(error.code)
            self.listener.errors.warn(f"replied INTERNAL_ERROR to a client: {error}", fields)
        return reply
