"""A client's pipeline: commands that are not executed yet, and replies that are not written yet, in order."""

import asyncio
from abc import abstractmethod
from enum import Enum
from functools import lru_cache
from time import perf_counter
from typing import Any, Final, cast

from pressure_server.compiled import mypyc_attr
from pressure_server.net.client import Client
from pressure_server.net.connection import LEAST_COUNTED, OPEN
from pressure_server.net.reserved_jobs import ReservedJobs
from pressure_server.net.slow_log import messages_of_first_command
from pressure_server.queues.database import Database
from pressure_server.queues.lanes.reservations import owner_of
from pressure_server.queues.operations.jobs import reserved_as
from pressure_server.queues.operations.operation import Encode, Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.verbs import POP
from pressure_server.queues.operations.wait import Wait

# The most commands in flight for one client; it is not read further until some are answered. A new client
# begins with fewer, and gets more while its replies stay so small that this many bytes hold them all.
MAX_UNANSWERED: Final = 1024
FIRST_UNANSWERED: Final = 4
UNANSWERED_BYTES: Final = 1 << 20
_SMALL_REPLY: Final = UNANSWERED_BYTES // MAX_UNANSWERED


class TooEarly(BaseException):  # not an error, and no handler may take it for one
    """The command may not be executed yet: execute it again when the commands before it have replies."""


class ReplyMode(Enum):
    """Which commands of a client have replies: see CLIENT REPLY of Redis."""

    ON = "all"
    OFF = "none"
    SKIP = "the next one has none"
    SKIPPING = "the one that is being executed has none"
    SKIPPED = "the last one had none, and the next one has"


# A name for each request: Python 3.11 takes long to find a member of an enumeration.
REPLIES: Final = ReplyMode.ON


@lru_cache
def unanswered(encode: Encode) -> Encode:
    """Return an encoder without a reply, for a command that `encode` would answer. Count its errors."""

    def encode_nothing(operation: Operation) -> bytes:
        reply = encode(operation)
        if operation.error is not None or operation.has_errors:
            cast(Client, operation.owner).count_failures(operation, reply)
        return b""

    return encode_nothing


@mypyc_attr(allow_interpreted_subclasses=True)
class PipelinedClient(Client):
    """The part of a session that keeps the order of commands and replies."""

    __slots__ = (
        "_backlog", "_barrier", "_max_unanswered", "_measures_next", "_ready_bytes", "_replies",
        "_reply_size", "_unanswered", "database", "reply_mode", "reserved_jobs",
    )  # fmt: skip

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.reserved_jobs = ReservedJobs()
        self.reply_mode = ReplyMode.ON
        self._backlog: list[Any] = []  # the next command is the last one
        # Replies in the order of the commands; an operation stands for the reply that it will have.
        self._replies: list[bytes | Operation] = []
        self._unanswered = 0
        self._ready_bytes = 0  # of replies that wait for the replies before them
        self._reply_size = 0  # the largest of the latest replies
        self._max_unanswered = FIRST_UNANSWERED
        # The last command that may have to wait. A later command is held until it has its reply.
        self._barrier: Operation | None = None
        self._measures_next = False  # the latency of the next operation, the first one of a read

    @abstractmethod
    def proceed(self) -> None:
        """Go on with the client's commands: some replies are written."""

    @abstractmethod
    def end_wait(self, waiter: Operation | Waiter) -> None:
        """End a wait, whatever its result."""

    def reply(self, data: bytes) -> None:
        """Reply to the command that is being executed."""
        if self.reply_mode is not REPLIES:
            data = b""
        if self._replies:
            self._replies.append(data)
            self._ready_bytes += len(data)
            self._unanswered += 1
        else:
            self.connection.write(data)

    @property
    def may_submit(self) -> int:
        """How many more commands may be in flight; at least one, for the command that is being executed."""
        return max(1, self._max_unanswered - self._unanswered)

    def execute_instead(self, commands: list[Any]) -> None:
        """Execute these commands next, instead of the present or ended one, which stands for them."""
        self._backlog += reversed(commands)

    def take_equal(self, command: Any, most: int) -> int:
        """Make at most `most` following commands that equal this one a part of it; return how many."""
        backlog, taken = self._backlog, 0
        while self._barrier is None and taken < most and backlog and backlog[-1] == command:
            backlog.pop()
            taken += 1
        self.command_statistics.calls += taken
        return taken

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
        """Submit the operation of a command. Its reply will be `encode(operation)`. Raises QueueNameError.

        `size` is the number of messages that the command brings or wants. `commands` is the number of equal
        commands of that size; `messages` has the messages of all commands. Equal commands in a row become one
        operation; `encode` returns all their replies.

        After a command with a `wait`, or a put that may have to wait for room, raise TooEarly: the next
        command is executed again after the reply. Equal puts are not held.
        """
        barrier = self._barrier
        if barrier is not None and (
            wait is not None
            or barrier.wait is not None
            or barrier.verb is not verb
            or barrier.name != name
            or barrier.options != options
        ):
            raise TooEarly
        if self.reply_mode is not REPLIES:
            encode = unanswered(encode)
        last = self._replies[-1] if self._replies else None
        if (
            type(last) is Operation
            and last.name == name
            and last.encoded_reply is None
            and wait is None
            and last.may_extend(verb, name, encode, options)
        ):
            last.extend(messages, size, commands)
        else:
            operation = Operation(verb, name, messages, size, self, encode, commands, wait, options)
            operation.command = self.command_statistics
            if self._measures_next:
                self._measures_next = False
                operation.measured_from = perf_counter()
            lane = self.database.add(operation)
            self._replies.append(operation)
            if wait is not None or (verb.puts and lane.may_be_bounded):
                self._barrier = operation
        self._unanswered += commands

    def completed(self, operation: Operation) -> None:
        """See Owner. Encode the replies; they are written once for all operations of a call."""
        if operation.wait is not None and operation.wait.in_line:
            self.end_wait(operation)
        if operation is self._barrier:
            self._barrier = None
        if operation.measured_from:
            seconds = perf_counter() - operation.measured_from
            operation.command.measure(seconds)
            if seconds >= self.connection.clients.slow_log.threshold:
                words = [operation.name, *messages_of_first_command(operation)]
                self.note_slow(seconds, [operation.command.name.encode(), *words])
        has_failed = operation.error is not None or operation.has_errors
        if has_failed and operation.is_left_undone:
            self.connection.drain()  # it gets no reply: see `_drop_undone`
        else:
            data = operation.encode(operation)
            if has_failed and data:
                self.count_failures(operation, data)
            if operation.verb.reserves and operation.verb is not POP:
                self._reserve(operation)
            if self._max_unanswered < MAX_UNANSWERED or len(data) >= _SMALL_REPLY:
                self._adapt(len(data) // len(operation.sizes))
            if operation.cancelled:
                # The connection was lost while the operation was in flight, or its client no longer waits.
                operation.put_back()
                return
            operation.encoded_reply = data
            self._unanswered -= len(operation.sizes) - 1  # one until it is written
            self._ready_bytes += len(data)
        answered = self.database.answers.clients
        if answered is None:
            self.flush()
        else:
            answered[self] = None

    def flush(self) -> None:
        """See AnsweredClient. Write the replies that are ready, up to the first that is not; then go on."""
        connection = self.connection
        if connection.server_side is not OPEN and connection.is_stopping:
            self._drop_undone()
        pieces: list[bytes] = []
        taken: list[tuple[int, int, Operation]] = []
        length = 0
        for reply in self._replies:
            if type(reply) is Operation:
                piece = reply.encoded_reply
                if piece is None:
                    break
                if reply.deliveries:
                    taken.append((length, length + len(piece), reply))
                    reply.encoded_reply = None  # the operation is kept until the messages have arrived
                    if reply.verb is POP:
                        self.note_popped(reply)
            else:
                piece = cast(bytes, reply)
            pieces.append(piece)
            length += len(piece)
        if pieces:
            del self._replies[: len(pieces)]
            self._unanswered -= len(pieces)
            self._ready_bytes -= length
            connection.write(pieces[0] if len(pieces) == 1 else b"".join(pieces), taken)
            if not connection.is_read or connection.server_side is not OPEN or self._backlog:
                self.proceed()
        elif connection.is_stopping and not self._replies:
            self.proceed()
        if self._replies:
            if self._ready_bytes > connection.counted + LEAST_COUNTED:
                connection.recount()
        elif connection.counted:
            connection.recount()

    def _drop_undone(self) -> None:
        """Drop the last commands if the stop has left them undone: the client may send them again.

        If a command is done after one that is not, an error takes the place of the other's reply.
        """
        replies = self._replies
        undone = [one for one in replies if isinstance(one, Operation) and one.encoded_reply is None]
        if not all(operation.is_left_undone for operation in undone):
            return  # some are in flight
        while undone:
            at = replies.index(undone[-1])
            after = replies[at + 1 :]
            if any(isinstance(reply, Operation) for reply in after):
                break
            # What replies at once (PING) changes nothing that outlives the connection.
            self._ready_bytes -= sum(len(reply) for reply in after if isinstance(reply, bytes))
            del replies[at + 1 :]
            if undone[-1].drop_undone():
                break
            replies.pop()
            undone.pop()
        for operation in undone:
            operation.encoded_reply = operation.encode(operation)
            if operation.encoded_reply:
                self.count_failures(operation, operation.encoded_reply)

    def _reserve(self, operation: Operation) -> None:
        """Note the jobs that the client has reserved, if the reservation ends with its connection."""
        if operation.results and owner_of(operation) == self.job_owner:
            self.reserved_jobs.add(operation, self.database, asyncio.get_running_loop().time())

    def note_popped(self, operation: Operation) -> None:
        """Note that the reply of a pop is written: the client's next pop acknowledges its messages."""
        self.reserved_jobs.add_pop(operation, self.database, asyncio.get_running_loop().time())

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]]:
        """See Owner. What the client has popped from other queues before is acknowledged, too."""
        return self.job_owner, self.acknowledge_pops(name)

    def acknowledge_pops(self, name: bytes | None = None) -> list[bytes]:
        """Delete what the client has popped and finished. Return instead what is from the queue `name`."""
        here: list[bytes] = []
        if self.reserved_jobs.finished_pops:
            owner = self.job_owner
            for pop in self.reserved_jobs.take_finished():
                finished = [reserved_as(*job, owner) for job in pop.jobs]
                if pop.queue == name and pop.database is self.database:
                    here += finished
                else:
                    pop.database.submit(
                        pop.database.shard_of(pop.queue).reservations.ending(pop.queue, finished)
                    )
        return here

    def _adapt(self, size: int) -> None:
        """Set how many commands may be in flight, after a reply of this size in bytes."""
        self._reply_size = max(size, self._reply_size - (self._reply_size >> 3))
        fitting = max(1, UNANSWERED_BYTES // (self._reply_size + 1))
        self._max_unanswered = min(MAX_UNANSWERED, 2 * self._max_unanswered, fitting)
