"""A client: who it is, its login, and what is counted and logged of its commands."""

import logging
from abc import abstractmethod
from typing import Any, ClassVar

from pressure_server.auth.logins import MAX_FAILURES
from pressure_server.auth.peer_address import Addresses
from pressure_server.auth.users import DEFAULT as DEFAULT_USER
from pressure_server.auth.users import NOBODY
from pressure_server.compiled import mypyc_attr
from pressure_server.errors import PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.command_statistics import UNKNOWN, statistics_of
from pressure_server.net.command_table import Refusal
from pressure_server.net.connection import Connection
from pressure_server.queues.operations.jobs import attached
from pressure_server.queues.operations.operation import Operation, Owner

logger = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Client(Owner):
    """The part of a session that knows its client. `command_statistics` are of the command executed last."""

    __slots__ = (
        "command_statistics", "connection", "failed_logins", "name", "sends_garbage", "user",
    )  # fmt: skip
    # The name of the wire protocol.
    PROTOCOL: ClassVar[str]
    # The beginnings of error replies.
    ERRORS: ClassVar[tuple[bytes, ...]]
    # The reply to a connection that exceeds `--max-clients`.
    TOO_MANY_CLIENTS: ClassVar[bytes]

    connection: Connection

    def __init__(self) -> None:
        self.user = NOBODY
        self.failed_logins = 0
        self.name = b""  # that the client has given its connection
        self.sends_garbage = False  # see client_log.UnknownCommands
        self.command_statistics = statistics_of(self.PROTOCOL, UNKNOWN)

    def encode(self, value: Any) -> bytes:
        """Return the reply for a value that a coroutine returned."""
        reply: bytes = value
        return reply

    @abstractmethod
    def error_reply(self, error: Exception) -> bytes:
        """Return the reply for an error."""

    @abstractmethod
    def words_of(self, command: Any) -> list[list[bytes]]:
        """Return the words of the commands for which a parsed request stands, for MONITOR and the slow log.

        Logins are left out, and so is everything that may be a garbled login: requests that are no valid
        command, or that the client sends before it has logged in.
        """

    @abstractmethod
    def may_log_in(self, request: Any) -> bool:
        """Return whether a parsed request may be a login."""

    @abstractmethod
    def close_when_replied(self, reason: str = "") -> None:
        """Execute no further command. Close the connection when every reply is written."""

    @property
    def clients(self) -> Clients:
        """The clients of all listeners."""
        return self.connection.clients

    @property
    def library_name(self) -> str:
        """The client's library and version, if it has told them."""
        return ""

    @property
    def id(self) -> int:
        """The number of the client's connection."""
        return self.connection.id

    @property
    def addresses(self) -> Addresses:
        """The addresses of the client's connection."""
        return self.connection.addresses

    @property
    def user_name(self) -> str:
        """The name of the client's user. As in Redis, `default` if the client has not logged in."""
        return self.user.name or DEFAULT_USER

    @property
    def job_owner(self) -> bytes:
        """The owner of the jobs that the client reserves, unless it names another one."""
        return attached(self.connection.id)

    async def log_in(self, name: bytes, password: bytes, *, logged: bytes | None = None) -> bool:
        """Act as this user from now on. Return whether the login succeeds: after a delay, if it fails.

        Close after MAX_FAILURES. The log shows `logged`, if it is given, as the name of a failed login.
        """
        access, transport = self.clients.access, self.connection.transport
        user = access.users.log_in(name.decode("utf-8", "replace"), password)
        if user is None:
            await access.logins.fail(transport, name if logged is None else logged, self.failed_logins)
            self.failed_logins += 1
            if self.failed_logins >= MAX_FAILURES:
                self.close_when_replied()
            return False
        self.user = user
        self.clients.welcome(self.connection)
        access.logins.succeed(transport, user)
        return True

    def log_fields(self, error: str) -> dict[str, object]:
        """Return the fields of JSON logs about an error of the command that is being executed."""
        return {
            "client": self.addresses.shown,
            "user": self.user_name,
            "command": self.command_statistics.name,
            "error": error,
        }

    def error_code(self, error: Exception, reply: bytes) -> str:
        """Return the code by which an error is counted; `reply` is the reply that the client gets for it."""
        if isinstance(error, PressureError):
            return error.code
        return reply.partition(b" ")[0].strip(b"-\r\n").decode("ascii", "replace")

    def log_unexpected(self, error: Exception) -> None:
        """Log an error that no command raises on purpose. The client gets an internal error instead."""
        logger.error(
            "unexpected error in a command; its connection stays open",
            exc_info=error,
            extra=self.log_fields(type(error).__name__),
        )

    def count_refusal(self, why: Refusal) -> None:
        """Count a command that the client's user may not execute."""
        self.clients.access.refused[why.value] += 1

    def refuse(self, error: Exception, calls: int = 1) -> bytes:
        """Count commands that are refused before they are done. Return the reply to one of them."""
        reply = self.error_reply(error)
        self.command_statistics.reject(self.error_code(error, reply), calls)
        return reply

    def note_slow(self, seconds: float, words: list[bytes]) -> None:
        """Note a command that was slow, with its words."""
        self.clients.slow_log.add(seconds, words, self.addresses.client, self.name.decode())

    def count_failures(self, operation: Operation, reply: bytes) -> None:
        """Count the commands of an operation that `reply` answers with errors: not all of its errors are."""
        statistics, error = operation.command, operation.error
        if statistics is None:
            return
        if error is not None:
            if reply.startswith(self.ERRORS):
                statistics.fail(error.code, len(operation.sizes))
            return
        for error in operation.errors_of_commands():
            statistics.fail(error.code)
