"""A memcached client's session: from requests to commands of the table, and the client's open reads.

Logins are as in memcached's text protocol: the first command is a `set` with the data `USER PASSWORD`.
"""

import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from handlers.memcached.arguments import queue_of
from handlers.memcached.parser import BINARY_REPLY, Request, RequestParser
from handlers.memcached.replies import ERROR, STORED, ClientError, client_error, server_error
from handlers.memcached.table import COMMANDS, PROTOCOL, QUEUE, Command
from handlers.memcached.values import Values
from pressure_server.auth.users import NOBODY
from pressure_server.errors import ErrorKind, PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.command_table import Refusal
from pressure_server.net.handler import Context
from pressure_server.net.line_parser import Refused
from pressure_server.net.session import Session
from pressure_server.net.workers import sum_fields
from pressure_server.queues.operations.jobs import ReservedJob
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.verbs import RESERVE

# The memory for an open read besides its message, in bytes.
_COST = 1024

logger = logging.getLogger(__name__)
_UNKNOWN = statistics_of(PROTOCOL, UNKNOWN)
# Commands on queues whose keys may have options. In other commands `/open` is part of the name.
_WITH_OPTIONS = ("get", "gets", "mg")
_UNAUTHENTICATED = client_error("unauthenticated")
# Commands allowed before a login. Health checks have no password.
_BEFORE_LOGIN = (b"ready", b"quit")


@dataclass(frozen=True)
class ListenerOptions:
    """The options in a listener's URL: its mode, and whether clients may use `flush_all`."""

    mode: str
    flush_all: bool


@dataclass
class Counts:
    """The counts of one listener's commands, in this process."""

    gets: int = 0
    hits: int = 0
    sets: int = 0
    peeks: int = 0
    touches: int = 0
    flushes: int = 0
    # How many messages clients have opened, by queue; only in reports.
    opened: Counter[bytes] = field(default_factory=Counter)

    def got(self, hits: int, misses: int) -> None:
        """Count the reads of items: those found, and those not found."""
        self.gets += hits + misses
        self.hits += hits

    def add(self, operation: Operation) -> None:
        """Count the commands of an operation that has ended."""
        if operation.verb.puts:
            self.sets += len(operation.sizes)
        elif operation.verb.takes:
            self.got(len(operation.results), len(operation.sizes) - len(operation.results))

    def reset(self) -> None:
        """Set all counts to 0."""
        Counts.__init__(self)


class NoCommandError(Exception):
    """No command has this name and this number of words."""


class MemcachedSession(Session):
    """A memcached client.

    `open_reads` are the messages that the client has opened and not closed, `values` the items of mode kv.
    """

    PROTOCOL = PROTOCOL
    ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
    MANY = Request
    TOO_LARGE = Refused(_UNAUTHENTICATED, closes=True)
    TOO_MANY_CLIENTS = b"ERROR Too many open connections\r\n"
    __slots__ = ("_commands", "counts", "extra_bytes", "open_reads", "options", "report", "values")
    extra_bytes: int

    def __init__(
        self, context: Context, options: ListenerOptions, counts: Counts, report: str, values: Values
    ) -> None:
        """`report` is the name of the report of the listener's counts, in all processes of the server."""
        super().__init__(context, RequestParser(context.settings.max_message_bytes))
        self.options = options
        self.counts = counts
        self.report = report
        self.values = values
        self.open_reads: dict[bytes, ReservedJob] = {}
        self.extra_bytes = 0  # of the open reads
        self._commands = COMMANDS[options.mode]

    def take_over(self, operation: Operation) -> None:
        """See owners.Client. Keep an open read until the client closes or aborts it."""
        super().take_over(operation)
        if operation.verb is RESERVE and self.connection.can_deliver():
            job = self.open_reads[operation.name] = ReservedJob.of(operation.results[0])
            self.extra_bytes += _COST + len(job.message)
            self.connection.recount()

    def pop_open(self, queue: bytes) -> ReservedJob | None:
        """Remove and return the open message of the queue, if any."""
        job = self.open_reads.pop(queue, None)
        if job is not None:
            self.extra_bytes -= _COST + len(job.message)
        return job

    def completed(self, operation: Operation) -> None:
        """See Session. Count the commands that have ended."""
        self.counts.add(operation)
        super().completed(operation)

    def may_log_in(self, request: Any) -> bool:
        """See Session."""
        return type(request) is not Refused and request.words[0] == b"set"

    def words_of(self, command: Any) -> list[list[bytes]]:
        """See Session. A request of a client that has not logged in has the password."""
        if type(command) is Refused or self.user is NOBODY or command.words[0] not in self._commands:
            return []
        return [[*one.words, *one.blocks] for one in command.requests()]

    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """See Session. Check the request, and run its command."""
        if type(command) is Refused:
            is_stranger = self.user is NOBODY and not command.closes
            self.reply(_UNAUTHENTICATED if is_stranger else command.reply)
            if command.reply.startswith(BINARY_REPLY):
                self.clients.unknown_commands.note_protocol(
                    self, "memcached's binary protocol", "let it use the text protocol, or the meta commands"
                )
            if command.closes:
                self.close_when_replied()
            return None
        entry = self._commands.get(command.words[0])
        self.command_statistics = entry.statistics if entry is not None else _UNKNOWN
        if command.count > 1:
            may_repeat = (
                entry is not None
                and self.user is not NOBODY
                and entry.accepts(len(command.words))
                and (entry in self.user.allowed or not self._refusal(entry, self._keys_of(entry, command)))
            )
            self.execute_repeated(entry if may_repeat else None, command)
            return None
        if entry is None and self.is_http(command.words[0]):
            return None
        try:
            if self.user is NOBODY and command.words[0] not in _BEFORE_LOGIN:
                return self._log_in(command)
            if entry is None:
                self.clients.unknown_commands.note(self, command.words[:1], "memcached's error line")
                raise NoCommandError
            if not entry.accepts(len(command.words)):
                raise NoCommandError
            if entry not in self.user.allowed:
                self.permit(entry, self._keys_of(entry, command))
            coroutine = entry.function(self, command)
            self.command_statistics.calls += 1
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

    async def _log_in(self, request: Request) -> bytes:
        """Execute a login, and return the reply. Refuse any other request."""
        if request.words[0] != b"set":
            return _UNAUTHENTICATED
        name, _, password = request.blocks[0].partition(b" ")
        # Keep unknown names out of the log: this may be a password, or a message sent without a login.
        is_known = name.decode("utf-8", "replace") in self.clients.access.users.by_name
        if await self.log_in(name, password, logged=name if is_known else b""):
            return STORED
        return client_error("authentication failure")

    def _keys_of(self, entry: Command, request: Request) -> list[bytes]:
        """Return the keys or queues that a request names."""
        keys = request.words[entry.keys]
        has_options = self.options.mode == QUEUE and entry.name in _WITH_OPTIONS
        return [queue_of(key) for key in keys] if has_options else keys

    def _refusal(self, entry: Command, keys: list[bytes]) -> Refusal | None:
        return entry.refusal(self.user, (lambda: keys) if keys else None)

    def permit(self, entry: Command, keys: list[bytes]) -> None:
        """Raise ClientError if the user may not use this command on these keys or queues."""
        why = self._refusal(entry, keys)
        if why is None:
            return
        self.count_refusal(why)
        if why is Refusal.QUEUE:
            raise ClientError("this user has no permission for one of these keys")
        if self.user.rights.issuperset(entry.needs):
            raise ClientError(f"this user has no permission to {entry.name}: it requires access to all keys")
        raise ClientError(f"this user has no permission to {entry.name}")

    def error_code(self, error: Exception, reply: bytes) -> str:
        """See Session. Errors of the server have codes of their own."""
        return super().error_code(error, reply.removeprefix(b"SERVER_ERROR "))

    def error_reply(self, error: Exception) -> bytes:
        """See Session. Log errors that are not an expected result of a command."""
        if isinstance(error, NoCommandError):
            return ERROR
        if isinstance(error, ClientError) or (
            isinstance(error, PressureError) and error.kind is ErrorKind.REQUEST
        ):
            return client_error(str(error))
        if not isinstance(error, PressureError):
            self.log_unexpected(error)
            error = PressureError("internal error: the server's log has the details")
        return server_error(error)


def report(clients: Clients, counts: Counts, reset: bool) -> Counts:
    """Return a listener's counts and the open reads, in this process. `reset` sets the counts to 0 before."""
    if reset:
        counts.reset()
    found = [one for one in clients.connected if isinstance(one, MemcachedSession)]
    return replace(counts, opened=Counter(queue for one in found for queue in one.open_reads))


async def report_on_all(client: MemcachedSession, *, reset: bool = False) -> Counts:
    """Return the counts of the client's listener and the open reads, in all processes of the server."""
    found: list[Counts] = await client.context.workers.reports(client.report, reset)
    return sum_fields(Counts, found)
