"""What operators see of a client's connection: its commands, their latencies and errors, its log lines.

The hot path of Connection, the sub-class, uses this state. So it is not in an object of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar

from pressure_server.auth.users import DEFAULT as DEFAULT_USER
from pressure_server.auth.users import NOBODY
from pressure_server.errors import PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.command_statistics import UNKNOWN, CommandStatistics, statistics_of
from pressure_server.net.stream import CLIENT_CLOSED, ClientStream
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.shown import messages_of_first_command


class ObservedStream(ClientStream):
    """A client's stream, and what operators see of it."""

    __slots__ = (
        "_measured", "_measured_from", "_measures_next", "active", "command", "id", "name", "sends_garbage",
        "since", "user",
    )  # fmt: skip
    # The name of the wire protocol.
    PROTOCOL: ClassVar[str]

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.id = next(clients.ids)
        self.user = NOBODY
        self.since = clients.now  # when the client connected, by the loop's clock
        self.active = 0.0  # when the last command came
        self.sends_garbage = False  # see unknown_commands
        self.name = b""  # that the client has given its connection
        # The statistics of the command that was executed last.
        self.command = statistics_of(self.PROTOCOL, UNKNOWN)
        # The operation whose latency is measured, and since when: the first one of each read.
        self._measures_next = False
        self._measured: Operation | None = None
        self._measured_from = 0.0

    @abstractmethod
    def error_reply(self, error: Exception) -> bytes:
        """Return the reply for an error."""

    @abstractmethod
    def words_of(self, command: Any) -> list[list[bytes]]:
        """Return the words of the commands for which a parsed request stands, for MONITOR and the slow log.

        Logins are left out, and so is everything that may be a garbled login: requests that are no valid
        command, or that the client sends before it has logged in.
        """

    def log_fields(self, error: str = "") -> dict[str, object]:
        """Return the fields of JSON logs about the command that is being executed."""
        fields: dict[str, object] = {
            "client": self.addresses.shown,
            "user": self.user_name,
            "command": self.command.name,
        }
        return {**fields, "error": error} if error else fields

    @property
    def library_name(self) -> str:
        """The client's library and version, if it has told them."""
        return ""

    @property
    def user_name(self) -> str:
        """The name of the client's user. As in Redis, `default` if the client has not logged in."""
        return self.user.name or DEFAULT_USER

    def _measure(self, operation: Operation) -> None:
        """Count the latency of an operation that has ended, and note it in the slow log if it was slow."""
        self._measured = None
        seconds = perf_counter() - self._measured_from
        statistics = operation.command
        if statistics is None:
            return
        statistics.measure(seconds)
        if seconds >= self.clients.slow_log.threshold:
            name = statistics.name.encode()
            self._note_slow(seconds, [name, operation.name, *messages_of_first_command(operation)])

    def _measure_command(
        self, statistics: CommandStatistics, seconds: float, words: Sequence[list[bytes]]
    ) -> None:
        """Count the latency of a command that ran alone. `words` has its words, unless they are secret."""
        statistics.measure(seconds)
        if words and seconds >= self.clients.slow_log.threshold:
            self._note_slow(seconds, words[0])

    def _note_slow(self, seconds: float, words: list[bytes]) -> None:
        self.clients.slow_log.add(seconds, words, self.addresses.client, self.name.decode())

    def _count_failures(self, operation: Operation) -> None:
        """Count the commands of an operation that reply with errors."""
        if operation.command is None:
            return
        if operation.error is not None:
            operation.command.fail(operation.error.code, len(operation.sizes))
            return
        for result in operation.results:
            if isinstance(result, PressureError):
                operation.command.fail(result.code)

    def error_code(self, error: Exception, reply: bytes) -> str:
        """Return the code by which an error is counted; `reply` is the reply that the client gets for it."""
        if isinstance(error, PressureError):
            return error.code
        return reply.partition(b" ")[0].strip(b"-\r\n").decode("ascii", "replace")

    def refuse(self, error: Exception, calls: int = 1) -> bytes:
        """Count commands that are refused before they are done. Return the reply to one of them."""
        reply = self.error_reply(error)
        self.command.reject(self.error_code(error, reply), calls)
        return reply

    def _why_closed(self, exc: Exception | None) -> str:
        """Return why the connection has ended."""
        if exc is not None and not self.close_reason:
            return f"it was lost ({exc})"
        return self.close_reason or ("the server closed it" if self._closing else CLIENT_CLOSED)
