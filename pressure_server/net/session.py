"""A client's session, whatever its wire protocol: its commands, and replies in their order.

A handler's sub-class parses bytes into commands and executes them. A command replies at once, or submits
operations whose replies keep the order of the commands, or is a coroutine that runs alone: after all replies
before it, and before the next command.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from pressure_server.auth.users import NOBODY
from pressure_server.errors import PressureError, StoppingError, forget_frames
from pressure_server.net.client import Client
from pressure_server.net.clients import Clients
from pressure_server.net.connection import CLIENT_CLOSED, LEAST_COUNTED, OPEN
from pressure_server.net.reserved_jobs import ReservedJobs
from pressure_server.net.slow_log import messages_of_first_command
from pressure_server.queues.database import Database
from pressure_server.queues.lanes.reservations import owner_of
from pressure_server.queues.operations.batch import MAX_BYTES
from pressure_server.queues.operations.operation import Encode, Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.wait import Unblocking, Wait

# The most commands in flight for one client; it is not read further until some are answered. A new client
# begins with fewer, and gets more while its replies stay so small that this many bytes hold them all.
MAX_UNANSWERED = 1024
FIRST_UNANSWERED = 4
UNANSWERED_BYTES = 1 << 20
_SMALL_REPLY = UNANSWERED_BYTES // MAX_UNANSWERED
# A client whose unanswered requests take more memory than this is not read until all are answered.
REQUEST_BYTES = 4 << 20
# Estimated bytes for a command besides its words, and for an operation or a reply in the queue of replies.
_COMMAND_COST = 512
_REPLY_COST = 512
# Why a connection ended, for the log.
SENT_HTTP = "it sent HTTP"


class RequestBatch(Protocol):
    """A request that stands for many commands."""

    @property
    def count(self) -> int:
        """The number of commands."""


class Parser(Protocol):
    """The parser of a wire protocol: bytes to requests."""

    def feed(self, data: bytes) -> list[Any]:
        """Return the requests that are complete with these bytes."""

    @property
    def unparsed(self) -> int:
        """The bytes in memory of a request that is not complete yet."""

    @property
    def exceeds_login_limits(self) -> bool:
        """Whether that request is too large for a client that has not logged in."""


class _NoParser:
    """The parser of a client whose requests are not read any longer."""

    unparsed = 0
    exceeds_login_limits = False

    def feed(self, _data: bytes) -> list[Any]:
        """Return nothing."""
        return []


_NO_PARSER = _NoParser()


class _Unblock(NamedTuple):
    """A request to end the client's waits, and the answer to it: whether a wait has ended for this reason."""

    request: Unblocking
    answer: asyncio.Future[bool]


@lru_cache
def unanswered(encode: Encode) -> Encode:
    """Return an encoder without a reply, for a command that `encode` would answer. Count its errors."""

    def encode_nothing(operation: Operation) -> bytes:
        reply = encode(operation)
        if operation.error is not None or operation.has_errors:
            cast(Client, operation.owner).count_failures(operation, reply)
        return b""

    return encode_nothing


class Session(Client):
    """The part of a session that all handlers share. Sub-classes define the abstract methods.

    Ways to end: `finish` executes the commands that have come; `close_when_replied` replies to those that
    were executed; `stop` replies to those that are done; `give_up` executes none, and frees what it can;
    `break_off` ends the connection at once.
    """

    __slots__ = (
        "_alone", "_backlog", "_barrier", "_has_waited", "_is_to_flush", "_last", "_max_unanswered",
        "_measured", "_measured_from", "_measures_next", "_parser", "_position", "_ready_bytes", "_replies",
        "_reply_size", "_request_bytes", "_running", "_taken", "_unanswered", "_unblock", "_waits",
        "database", "is_held", "is_silent", "reserved_jobs",
    )  # fmt: skip
    # The protocol's type of a request that stands for many commands, and the request that takes the place of
    # one that is too large before a login.
    BATCH: ClassVar[type[RequestBatch]]
    TOO_LARGE: ClassVar[Any]

    def __init__(self, clients: Clients, database: Database, parser: Parser) -> None:
        super().__init__(clients)
        self.database = database
        self.reserved_jobs = ReservedJobs()
        self._parser = parser
        # The operation whose latency is measured, and since when: the first one of each read.
        self._measures_next = False
        self._measured: Operation | None = None
        self._measured_from = 0.0
        # Replies in the order of the commands; an operation stands for the reply that it will have.
        self._replies: list[bytes | Operation] = []
        self._last: Operation | None = None  # may be extended by the next command
        self._unanswered = 0
        self._is_to_flush = False  # whether `flush` will be called when all replies of the call are ready
        self._request_bytes = 0  # of what was received; reset when everything is answered
        self._ready_bytes = 0  # of replies that wait for the replies before them
        self._reply_size = 0  # the largest of the latest replies
        self._max_unanswered = FIRST_UNANSWERED
        self._backlog: list[Any] = []
        self._position = 0  # of the next command in the backlog
        self._alone: Coroutine[Any, Any, bytes] | asyncio.Task[None] | None = None
        self._running: Any = None  # the command that runs alone, or the last one that did
        self._taken: list[Operation] = []  # by operations of the command that runs alone
        # What waits for this client, each with the queues on which it waits.
        self._waits: dict[Operation | Waiter, Sequence[bytes]] = {}
        self._unblock: _Unblock | None = None  # until the waits have ended
        self._has_waited = False  # since the command that runs alone began
        # The last command that may have to wait. A later command is held until it has its reply.
        self._barrier: Operation | None = None
        self.is_held = False  # whether the command that was executed last is to be executed again
        self.is_silent = False  # whether the command that was executed last has no reply

    @abstractmethod
    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Execute a command: call `reply` or `submit`, or return a coroutine that runs alone."""

    def encode(self, value: Any) -> bytes:
        """Return the reply for a value that a coroutine returned."""
        reply: bytes = value
        return reply

    def count_of(self, command: Any) -> int:
        """Return the number of commands for which a parsed request stands."""
        return command.count if type(command) is self.BATCH else 1

    @property
    def details(self) -> Mapping[str, Any]:
        """What only clients of this protocol have; see ClientFacts."""
        return {}

    @property
    def extra_bytes(self) -> int:
        """The bytes kept for the client besides its requests and replies."""
        return 0

    @property
    def unparsed(self) -> int:
        """The bytes in memory of a request that is not complete yet."""
        return self._parser.unparsed

    def received(self, data: bytes) -> None:
        """See connection.Receiver."""
        clients, connection, parser = self.clients, self.connection, self._parser
        commands = parser.feed(data)
        if self.user is NOBODY and parser.exceeds_login_limits and not any(map(self.may_log_in, commands)):
            commands.append(self.TOO_LARGE)
        clients.commands += len(commands)
        for command in commands:
            if type(command) is self.BATCH:
                clients.commands += command.count - 1
        self._measures_next = True
        for observer in clients.observers:
            observer.received(self, commands)
        if commands and not connection.counted and not self._replies and not self._backlog:
            self._request_bytes = 0  # everything before is answered
        self._request_bytes += len(data) + _COMMAND_COST * len(commands)
        if self._backlog:
            self._backlog += commands
        else:
            self._backlog = commands
            self.proceed()
        if self._request_bytes > LEAST_COUNTED or connection.counted:
            connection.recount()

    def proceed(self) -> None:
        """Execute commands from the backlog, until one has to wait for a reply, for memory, or for room."""
        backlog, connection = self._backlog, self.connection
        while self._position < len(backlog):
            if (
                self._alone is not None
                or connection.server_side is not OPEN
                or self._waits
                or self._unanswered >= self._max_unanswered
            ):
                break
            command = backlog[self._position]
            self._position += 1
            if command is None:
                self.close_when_replied()
                return
            self._alone = self.execute(command)
            if self._alone is not None:
                self._running = command
            if self.is_held:
                self.is_held = False
                self._position -= 1
                break
        else:
            if backlog:
                backlog.clear()
                self._position = 0
        self.database.end_of_read()
        if self._alone is not None and not self._replies and not isinstance(self._alone, asyncio.Task):
            coroutine = self._alone
            self._has_waited = False
            self._alone = asyncio.create_task(self._run_alone(coroutine))
            # A task that is cancelled before it begins leaves its coroutine as it was.
            self._alone.add_done_callback(lambda _: coroutine.close())
        state = connection.server_side
        if state is OPEN:
            is_held_up = self._backlog or self._alone is not None or self._waits
            if is_held_up or (self._request_bytes > REQUEST_BYTES and self._replies):
                connection.pause_reading()
            elif not connection.is_read:
                connection.resume_reading()
        elif state.takes_commands:
            connection.pause_reading()
        elif not self._replies and self._alone is None:
            self._give_up_reserved()
            connection.close_when_sent()

    def reply(self, data: bytes) -> None:
        """Reply to the command that is being executed."""
        if self.is_silent:
            data = b""
        if self._replies:
            self._replies.append(data)
            self._ready_bytes += len(data)
            self._unanswered += 1
            self._last = None
        else:
            self.connection.write(data)

    @property
    def may_submit(self) -> int:
        """How many more commands may be in flight; at least one, for the command that is being executed."""
        return max(1, self._max_unanswered - self._unanswered)

    def execute_instead(self, commands: list[Any]) -> None:
        """Execute these commands next, instead of the present or ended one, which stands for them."""
        self._backlog[self._position : self._position] = commands

    def take_equal(self, most: int) -> int:
        """Take commands that follow the present one and equal it, at most so many; return how many.

        They become part of the present command. While commands are held, none is taken.
        """
        if self._barrier is not None:
            return 0
        backlog, first = self._backlog, self._position
        end = min(len(backlog), first + most)
        while self._position < end and backlog[self._position] == backlog[first - 1]:
            self._position += 1
        self.command_statistics.calls += self._position - first
        return self._position - first

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
        commands of that size; `messages` are those of all of them. Equal commands in a row become one
        operation, whose `sizes` has an entry a command; `encode` returns all their replies.

        Pass `wait` for a command that waits for a message. Until it has its reply, the next command is held,
        and executed again afterwards. After a put that may have to wait for room, equal puts are not held.
        """
        barrier = self._barrier
        if barrier is not None and (
            wait is not None
            or barrier.wait is not None
            or barrier.verb is not verb
            or barrier.name != name
            or barrier.options != options
        ):
            self.is_held = True
            return
        if self.is_silent:
            encode = unanswered(encode)
        last = self._last
        if (
            last is not None
            and last.name == name
            and wait is None
            and last.may_extend(verb, name, encode, options)
        ):
            last.extend(messages, size, commands)
        else:
            operation = Operation(verb, name, messages, size, self, encode, commands, wait, options)
            operation.command = self.command_statistics
            if self._measures_next:
                self._measures_next = False
                self._measured = operation
                self._measured_from = perf_counter()
            lane = self.database.add(operation)
            self._replies.append(operation)
            self._last = operation
            if wait is not None or (verb.puts and lane.may_be_bounded):
                self._barrier = operation
        self._unanswered += commands

    def begin_wait(self, waiter: Operation | Waiter, queues: Sequence[bytes]) -> None:
        """Do not read from the client until `end_wait` of this waiter, because it waits on these queues.

        A client that has closed its side waits for nothing: its connection is closed.
        """
        self._waits[waiter] = queues
        self._has_waited = True
        if len(self._waits) == 1 and not self.connection.transport.is_closing():
            self.connection.pause_reading()
            if self.has_disconnected:
                self.abandon_waits()
        if self._unblock is not None:
            # The command has waited before. The operation is not in its line yet.
            asyncio.get_running_loop().call_soon(self._unblock_waits)

    def end_wait(self, waiter: Operation | Waiter) -> None:
        """End a wait, whatever its result."""
        self._waits.pop(waiter, None)  # a session that has ended has none
        self._answer_unblock()

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for a message, for room or for a role."""
        return bool(self._waits)

    async def unblock(self, error: PressureError | None) -> bool:
        """End what the client waits for as if its time were up, or with an error.

        Return False if the client does not wait, or gets something: what is in flight when this is called.
        """
        alone_waits = isinstance(self._alone, asyncio.Task) and self._has_waited
        if self._unblock is not None or not (self._waits or alone_waits):
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._unblock = _Unblock(Unblocking(error), answer)
        self._unblock_waits()
        return await answer

    def _unblock_waits(self) -> None:
        for waiter in list(self._waits):
            if self._unblock is None:
                break
            if isinstance(waiter, Operation):
                self.database.unblock(waiter, self._unblock.request)
            else:
                waiter.unblock(self._unblock.request)

    def _answer_unblock(self) -> None:
        """Answer the request to end the waits, if there is one and nothing waits any longer."""
        if self._unblock is None or self._waits or isinstance(self._alone, asyncio.Task):
            return
        (request, answer), self._unblock = self._unblock, None
        if not answer.done():  # the client that wants to know may have gone
            answer.set_result(request.has_ended_wait)

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has closed its side, and cannot wait."""
        return self.connection.has_disconnected

    def waits_on(self) -> list[bytes]:
        """Return the queues on which the client waits, each once."""
        return list(dict.fromkeys(queue for queues in self._waits.values() for queue in queues))

    def wait_began(self, operation: Operation) -> None:
        """See Owner."""
        self._last = None
        if operation is self._measured:
            self._measured = None
        self.begin_wait(operation, (operation.name,))

    def completed(self, operation: Operation) -> None:
        """See Owner. Encode the replies; they are written once for all operations of a call."""
        if operation.wait is not None and operation.wait.in_line:
            self.end_wait(operation)
        if operation is self._barrier:
            self._barrier = None
        if operation is self._measured:
            self._measured = None
            seconds = perf_counter() - self._measured_from
            operation.command.measure(seconds)
            if seconds >= self.clients.slow_log.threshold:
                words = [operation.name, *messages_of_first_command(operation)]
                self.note_slow(seconds, [operation.command.name.encode(), *words])
        if operation is self._last:
            self._last = None
        has_failed = operation.error is not None or operation.has_errors
        if has_failed and operation.is_left_undone:
            self.connection.drain()  # it gets no reply: see `_drop_undone`
        else:
            data = operation.encode(operation)
            if has_failed and data:
                self.count_failures(operation, data)
            if operation.verb.reserves:
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
        if not self._is_to_flush:
            answered = self.database.answers.clients
            if answered is None:
                self.flush()
            else:
                self._is_to_flush = True
                answered.append(self)

    def flush(self) -> None:
        """See AnsweredClient. Write the replies that are ready, up to the first that is not; then go on."""
        self._is_to_flush = False
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
        """Drop the last commands if the stop has left them undone: they get no reply.

        So a client may send a command again that got none. If a command is done after one that is not, an
        error takes the place of the other's reply.
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

    def _adapt(self, size: int) -> None:
        """Set how many commands may be in flight, after a reply of this size in bytes."""
        self._reply_size = max(size, self._reply_size - (self._reply_size >> 3))
        fitting = max(1, UNANSWERED_BYTES // (self._reply_size + 1))
        self._max_unanswered = min(MAX_UNANSWERED, 2 * self._max_unanswered, fitting)

    def partly_taken(self, operation: Operation) -> None:
        """See Owner. Count the messages that the operation has so far."""
        self._request_bytes += max(MAX_BYTES, len(operation.results[-1]))
        self.connection.recount()

    @property
    def counted_bytes(self) -> int:
        """The bytes that the client's requests keep until they have their replies."""
        return self._request_bytes

    def count_bytes(self, size: int) -> None:
        """Count bytes that the command that runs alone keeps until it has its reply, or that it has freed."""
        self._request_bytes += size
        self.connection.recount()

    def take_over(self, operation: Operation) -> None:
        """See Owner. The operation belongs to the command that runs alone.

        If that has been cancelled, or the messages cannot be delivered, put them back now: later, other
        clients might take the messages after them, and put those back first.
        """
        if self._alone is None or not self.connection.can_deliver():
            operation.put_back()
            return
        if operation.verb.reserves:
            self._reserve(operation)
        self._taken.append(operation)
        # A command on many queues replies when it has all messages. Each counts twice: see `buffered_bytes`.
        self._request_bytes += 2 * sum(map(len, operation.results))
        self.connection.recount()

    async def _run_alone(self, command: Coroutine[Any, Any, bytes]) -> None:
        statistics, began = self.command_statistics, perf_counter()
        # A client that has not logged in may do so with this command, which then has a password.
        has_logged_in = self.user is not NOBODY
        try:
            data = self.encode(await command)
        except StoppingError as error:
            self._put_back(self._taken)
            data = b""
            self.connection.drain()
            forget_frames(error)
        except Exception as error:
            self._put_back(self._taken)
            data = self.error_reply(error)
            statistics.fail(self.error_code(error, data))
            forget_frames(error)
        if self.is_silent:
            data = b""
        if not self._has_waited:
            seconds = perf_counter() - began
            statistics.measure(seconds)
            if seconds >= self.clients.slow_log.threshold and has_logged_in:
                for words in self.words_of(self._running)[:1]:
                    self.note_slow(seconds, words)
        self._running = None
        self._alone = None
        self._answer_unblock()
        took, self._taken = self._taken, []
        # All these messages are in one reply: they are delivered together or not at all.
        taken = [(len(data), len(data), operation) for operation in took if operation.deliveries]
        self.connection.write(data, taken)
        self.proceed()
        if self.connection.counted:
            self.connection.recount()

    def _put_back(self, operations: list[Operation]) -> None:
        """Put back the messages of these operations."""
        for operation in operations:
            operation.put_back()
        operations.clear()

    @property
    def is_busy(self) -> bool:
        """See connection.Receiver."""
        return bool(self._replies or self._backlog) or self._alone is not None

    @property
    def is_answering(self) -> bool:
        """See connection.Receiver."""
        return (isinstance(self._alone, asyncio.Task) and not self._has_waited) or not all(
            isinstance(reply, Operation) and (reply.is_left_undone or reply in self._waits)
            for reply in self._replies
        )

    @property
    def may_proceed(self) -> bool:
        """See connection.Receiver."""
        return not self._waits and (bool(self._backlog) or not self._replies)

    def buffered_bytes(self) -> int:
        """See connection.Receiver."""
        if not self.is_busy:
            self._request_bytes = self.unparsed
        # Ready replies count twice: the messages in them, and their encoding.
        return (
            self._request_bytes
            + _REPLY_COST * len(self._replies)
            + self.extra_bytes
            + self.reserved_jobs.size
            + 2 * self._ready_bytes
        )

    def finish(self) -> None:
        """See connection.Receiver."""
        self._backlog.append(None)

    def break_off(self, reason: str = "") -> None:
        """End the connection at once. The log has the reason, if one is given."""
        self.connection.break_off(reason)

    def close_when_replied(self, reason: str = "") -> None:
        """See connection.Receiver."""
        self._execute_no_more(reason)
        self.proceed()

    def stop(self) -> None:
        """See connection.Receiver."""
        if self._alone is not None and not isinstance(self._alone, asyncio.Task):
            self._end_alone()
        self.close_when_replied()

    def give_up(self) -> None:
        """See connection.Receiver."""
        self._execute_no_more()
        self._give_up_reserved()
        self._parser = _NO_PARSER

    def _execute_no_more(self, reason: str = "") -> None:
        self.connection.stop_receiving(reason)
        self._backlog.clear()
        self._position = 0

    def _give_up_reserved(self) -> None:
        """Give up the jobs that the client has reserved: its connection is about to end.

        Send them at once, so that commands that other clients send after the end are done later. If clients
        have closed their side, send the jobs of all clients that leave together.
        """
        leaves_with_others = self.connection.is_stopping or self.has_disconnected
        self.reserved_jobs.give_up_all(self.job_owner, at_once=not leaves_with_others)

    def abandon_waits(self) -> None:
        """See connection.Receiver. Commands before the first one that waits are still answered."""
        if self.connection.has_left:
            if last_reply := self.abandoned_reply():
                self.connection.write(last_reply)
            self.connection.break_off()
        else:
            asyncio.get_running_loop().call_soon(self._abandon_waits)

    def abandoned_reply(self) -> bytes:
        """Return the reply to a command that waits while its client closes its side."""
        return b""

    def _abandon_waits(self) -> None:
        if not self._waits or self.connection.transport.is_closing():
            return
        last_reply = self.abandoned_reply()
        self._execute_no_more(CLIENT_CLOSED)
        waiting = (at for at, reply in enumerate(self._replies) if reply in self._waits)
        first = next(waiting, len(self._replies))
        dropped, self._replies[first:] = self._replies[first:], []
        for reply in dropped:
            if isinstance(reply, Operation):
                self._waits.pop(reply, None)
        self._drop(dropped)
        self._end_alone()
        self._answer_unblock()
        if last_reply:
            self.reply(last_reply)
        self.proceed()

    def ended(self) -> None:
        """See connection.Receiver."""
        replies, self._replies = self._replies, []
        self._drop(replies)
        self._end_alone()
        self.reserved_jobs.give_up_all(self.job_owner)
        self._backlog = []
        self._position = 0
        # Operations refer to the session: without this, only the garbage collector would free them.
        self._last = self._barrier = self._measured = self._running = None
        self._waits = {}
        self._answer_unblock()

    def _drop(self, replies: list[bytes | Operation]) -> None:
        """Give up replies that are not sent: put back their messages, and cancel operations."""
        for reply in replies:
            if not isinstance(reply, Operation):
                continue
            if reply.encoded_reply is not None:
                reply.put_back()
            else:
                self.database.cancel(reply)

    def _end_alone(self) -> None:
        """Cancel the command that runs alone, if any, and put back what it has taken."""
        self._put_back(self._taken)
        if isinstance(self._alone, asyncio.Task):
            self._alone.cancel()
        elif self._alone is not None:
            self._alone.close()
        self._alone = None
