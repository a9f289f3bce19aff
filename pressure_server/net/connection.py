"""A client's connection, whatever its wire protocol: its commands, and replies in their order.

A handler's sub-class parses bytes into commands and executes them. A command replies at once, or submits
operations whose replies keep the order of the commands, or is a coroutine that runs alone: after all replies
before it, and before the next command.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, cast

from pressure_server.auth.logins import MAX_FAILURES
from pressure_server.auth.users import NOBODY
from pressure_server.errors import PressureError, forget_frames
from pressure_server.net.clients import Clients
from pressure_server.net.observed_stream import ObservedStream
from pressure_server.net.reserved_jobs import ReservedJobs
from pressure_server.net.stream import CLIENT_CLOSED, LAST_WORDS, LEAST_COUNTED
from pressure_server.queues.database import Database
from pressure_server.queues.deliveries.reservations import owner_of
from pressure_server.queues.operations.batch import MAX_BYTES
from pressure_server.queues.operations.jobs import attached
from pressure_server.queues.operations.operation import Encode, Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.wait import Wait

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
# The protocol of a transport whose connection has ended.
_GONE = asyncio.Protocol()
_IDLE = "it was idle (--idle-timeout)"


class Connection(ObservedStream):
    """The part of a connection that all handlers share. Sub-classes define the abstract methods."""

    __slots__ = (
        "_alone", "_backlog", "_barrier", "_is_to_flush", "_last", "_max_unanswered", "_position",
        "_ready_bytes", "_replies", "_reply_size", "_request_bytes", "_running", "_taken", "_unanswered",
        "_writing_is_paused", "database", "failed_logins", "is_held", "reserved_jobs",
    )  # fmt: skip

    def __init__(self, clients: Clients, database: Database) -> None:
        super().__init__(clients)
        self.database = database
        self.reserved_jobs = ReservedJobs()
        self.failed_logins = 0
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
        self._writing_is_paused = False
        # The last command that may have to wait. A later command is held until it has its reply.
        self._barrier: Operation | None = None
        self.is_held = False  # the command that was executed last

    @abstractmethod
    def parse(self, data: bytes) -> list[Any]:
        """Return the commands that are complete with these bytes. One may stand for a protocol error."""

    @abstractmethod
    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Execute a command: call `reply` or `submit`, or return a coroutine that runs alone."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the reply for a value that a coroutine returned."""

    @abstractmethod
    def error_reply(self, error: Exception) -> bytes:
        """Return the reply for an error that a coroutine raised."""

    @abstractmethod
    def too_many_clients_reply(self) -> bytes:
        """Return the reply to a connection that exceeds `--max-clients`."""

    def count_of(self, _command: Any) -> int:
        """Return the number of commands for which a parsed request stands."""
        return 1

    @property
    @abstractmethod
    def unparsed(self) -> int:
        """The bytes in memory of a request that is not complete yet."""

    @abstractmethod
    def forget_unparsed(self) -> None:
        """Free the incomplete request. Nothing is parsed after this."""

    @property
    def extra_bytes(self) -> int:
        """The bytes kept for the client besides its requests and replies."""
        return 0

    def reply(self, data: bytes) -> None:
        """Reply to the command that is being executed."""
        if self._replies:
            self._replies.append(data)
            self._ready_bytes += len(data)
            self._unanswered += 1
            self._last = None
        else:
            self.write(data)

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
        self.command.calls += self._position - first
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
        last = self._last
        if last is not None and wait is None and last.may_extend(verb, name, encode, options):
            last.extend(messages, size, commands)
        else:
            operation = Operation(verb, name, messages, size, self, encode, commands, wait, options)
            operation.command = self.command
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
            self._measure(operation)
        if operation.error is not None or operation.has_errors:
            self._count_failures(operation)
        if operation is self._last:
            self._last = None
        data = operation.encode(operation)
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
            self._is_to_flush = True
            self.database.flush_replies(self)

    def flush(self) -> None:
        """See AnsweredClient. Write the replies that are ready, up to the first that is not; then go on."""
        self._is_to_flush = False
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
            self.write(pieces[0] if len(pieces) == 1 else b"".join(pieces), taken)
            if not self._reading or self._closing or self._backlog:
                self.proceed()
        if self._replies:
            if self._ready_bytes > self._counted + LEAST_COUNTED:
                self.recount()
        elif self._counted:
            self.recount()

    async def log_in(self, name: bytes, password: bytes, *, logged: bytes | None = None) -> bool:
        """Act as this user from now on. Return whether the login succeeds; close after MAX_FAILURES.

        The log shows `logged` as the name of a failed login, if it is given.
        """
        access = self.clients.access
        user = access.users.log_in(name.decode("utf-8", "replace"), password)
        if user is None:
            await access.logins.fail(self.transport, name if logged is None else logged, self.failed_logins)
            self.failed_logins += 1
            if self.failed_logins >= MAX_FAILURES:
                self.close_when_replied()
            return False
        self.user = user
        access.logins.succeed(self.transport, user)
        return True

    @property
    def job_owner(self) -> bytes:
        """The owner of the jobs that the client reserves, unless it names another one."""
        return attached(self.id)

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
        self.recount()

    @property
    def can_proceed(self) -> bool:
        """See memory.AccountedConnection."""
        is_stuck = self.is_waiting or self._writing_is_paused or self._closing
        return not is_stuck and (bool(self._backlog) or not self._replies)

    def buffered_bytes(self) -> int:
        """See ClientStream."""
        if not (self._replies or self._backlog or self._alone is not None):
            self._request_bytes = self.unparsed
        # Ready replies count twice: the messages in them, and their encoding.
        return (
            self._request_bytes
            + _REPLY_COST * len(self._replies)
            + self.extra_bytes
            + self.reserved_jobs.size
            + 2 * self._ready_bytes
        )

    def evict(self, why: PressureError) -> None:
        """See memory.AccountedConnection. A client that does not read its replies receives no error."""
        self.close_reason = f"evicted: {why}"
        self._evicted = True
        self.acknowledge_sent()
        self._is_throttled = False
        self._execute_no_more()
        self._give_up_reserved()
        self.forget_unparsed()
        if self.transport.get_write_buffer_size():
            self.break_off()
            return
        self.write(self.error_reply(why))
        if self._replies or self._alone is not None:
            self.transport.close()
        else:
            # A client that still sends must be read: at a close, its kernel would drop the reply unread.
            self.resume_reading()
        asyncio.get_running_loop().call_later(LAST_WORDS, self.break_off)

    def take_over(self, operation: Operation) -> None:
        """See Owner. The operation belongs to the command that runs alone.

        If that has been cancelled, or the messages cannot be delivered, put them back now: later, other
        clients might take the messages after them, and put those back first.
        """
        if self._alone is None or not self.can_deliver():
            operation.put_back()
            return
        if operation.verb.reserves:
            self._reserve(operation)
        self._taken.append(operation)
        # A command on many queues replies when it has all messages. Each counts twice: see `buffered_bytes`.
        self._request_bytes += 2 * sum(map(len, operation.results))
        self.recount()

    def break_off(self) -> None:
        """See ClientStream."""
        self._execute_no_more()
        self._give_up_reserved()
        super().break_off()

    def _execute_no_more(self) -> None:
        self._closing = True
        self._backlog.clear()
        self._position = 0

    def close_when_replied(self) -> None:
        """Execute no further command. Close when every reply is written."""
        self._execute_no_more()
        self.proceed()

    def _give_up_reserved(self) -> None:
        """Give up the jobs that the client has reserved: its connection is about to end.

        Send them at once, so that commands that other clients send after the end are done later. If clients
        have closed their side, send the jobs of all clients that leave together.
        """
        self.reserved_jobs.give_up_all(self.job_owner, at_once=not (self._drains or self.has_disconnected))

    def abandon_waits(self) -> None:
        """See ClientStream. Commands before the first one that waits are still answered."""
        if self.has_left:
            if last_reply := self.abandoned_reply():
                self.write(last_reply)
            self.break_off()
        else:
            asyncio.get_running_loop().call_soon(self._abandon_waits)

    def abandoned_reply(self) -> bytes:
        """Return the reply to a command that waits while its client closes its side."""
        return b""

    def _abandon_waits(self) -> None:
        if not self._waits or self.transport.is_closing():
            return
        self.close_reason = CLIENT_CLOSED
        last_reply = self.abandoned_reply()
        self._execute_no_more()
        waiting = (at for at, reply in enumerate(self._replies) if reply in self._waits)
        first = next(waiting, len(self._replies))
        dropped, self._replies[first:] = self._replies[first:], []
        for reply in dropped:
            self._waits.pop(reply, None)
        self._drop(dropped)
        self._end_alone()
        if last_reply:
            self.reply(last_reply)
        self.proceed()

    def close_if_idle(self) -> None:
        """Close, unless the client waits for a reply. A client that does not read its replies is closed."""
        if self._writing_is_paused or self.transport.get_write_buffer_size():
            self.close_reason = _IDLE
            self.break_off()
        elif not self._replies and not self._backlog and self._alone is None:
            self.close_reason = _IDLE
            self.close_when_replied()

    def drain(self) -> None:
        """Stop reading. Close when the commands already read have their replies."""
        self.close_reason = "the server stops"
        self._drains = True
        self.pause_reading()
        if self._backlog or self._alone or self._replies:
            self._backlog.append(None)
        else:
            self.close_when_replied()

    def proceed(self) -> None:
        """Execute commands from the backlog, until one has to wait for a reply, for memory, or for room."""
        backlog = self._backlog
        while self._position < len(backlog):
            if (
                self._alone is not None
                or self._writing_is_paused
                or self._is_throttled
                or self._closing
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
        self.database.flush()
        if self._alone is not None and not self._replies and not isinstance(self._alone, asyncio.Task):
            command = self._alone
            self._alone = asyncio.create_task(self._run_alone(command))
            # A task that is cancelled before it begins leaves its coroutine as it was.
            self._alone.add_done_callback(lambda _: command.close())
        if self._closing and not self._replies and self._alone is None:
            self._give_up_reserved()
            # If messages are left, `acknowledge_sent` calls this again.
            if self._has_read_end or not self._outbox.has_messages:
                self.hang_up()
        elif (
            self._backlog
            or self._alone is not None
            or self._waits
            or self._is_throttled
            or (self._request_bytes > REQUEST_BYTES and self._replies)
        ):
            self.pause_reading()
        elif not self._reading and not self._closing:
            self.resume_reading()

    async def _run_alone(self, command: Coroutine[Any, Any, bytes]) -> None:
        statistics, began = self.command, perf_counter()
        self._has_waited = False
        # A client that has not logged in may do so with this command, which then has a password.
        has_logged_in = self.user is not NOBODY
        try:
            data = self.encode(await command)
        except Exception as error:
            self._put_back(self._taken)
            data = self.error_reply(error)
            statistics.fail(self.error_code(error, data))
            forget_frames(error)
        if not self._has_waited:
            words = self.words_of(self._running)[:1] if has_logged_in else []
            self._measure_command(statistics, perf_counter() - began, words)
        self._running = None
        self._alone = None
        took, self._taken = self._taken, []
        # All these messages are in one reply: they are delivered together or not at all.
        self.write(data, [(len(data), len(data), operation) for operation in took if operation.deliveries])
        self.proceed()
        if self._counted:
            self.recount()

    def _put_back(self, operations: list[Operation]) -> None:
        """Put back the messages of these operations."""
        for operation in operations:
            operation.put_back()
        operations.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client has connected."""
        self.open(cast(asyncio.Transport, transport))
        if refusal := self.clients.admit(self):
            self._closing = True
            self.transport.write(refusal)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: the client has sent these bytes."""
        if self._closing:
            return
        commands = self.parse(data)
        self.clients.commands += len(commands)
        self.active = self.clients.now
        self._measures_next = True
        for observer in self.clients.observers:
            observer.received(self, commands)
        if commands and not self._counted and not self._replies and not self._backlog:
            self._request_bytes = 0  # everything before is answered
        self._request_bytes += len(data) + _COMMAND_COST * len(commands)
        if self._backlog:
            self._backlog += commands
        else:
            self._backlog = commands
            self.proceed()
        if self._request_bytes > LEAST_COUNTED or self._counted:
            self.recount()

    def eof_received(self) -> bool:
        """Called by asyncio: the client has closed its side. Reply to its requests, and close.

        Return whether the connection stays open until then.
        """
        self.clients.disconnects.poll()
        if not self.has_disconnected:  # this system does not report it
            self.client_disconnected(entirely=False)
        self.acknowledge_sent()
        if self.has_left or self._has_hung_up or self.transport.is_closing():
            return False
        is_busy = bool(self._replies or self._backlog or self._alone is not None)
        if not (is_busy or self._outbox.has_messages):
            return False
        self._has_read_end = True
        self.close_reason = self.close_reason or CLIENT_CLOSED
        if is_busy and not self._closing:
            self._backlog.append(None)
        else:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.proceed)
        return True

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads its replies too slowly."""
        self._writing_is_paused = True
        self.pause_reading()
        self.clients.deliveries.watch(self)

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read enough replies."""
        self._writing_is_paused = False
        self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection has ended.

        Messages whose replies were not sent are put back. Operations that wait are cancelled.
        """
        reason = self._why_closed(exc)
        self._closing = True
        self.clients.remove(self, reason)
        self._outbox.end(exc)
        replies, self._replies = self._replies, []
        self._drop(replies)
        self._end_alone()
        self.reserved_jobs.give_up_all(self.job_owner)
        self._backlog = []
        self._position = 0
        # Operations and the transport refer to the connection: without these lines, only the garbage
        # collector would free it and its messages.
        self._evicted = True  # calls in flight may still report to the memory account
        self._last = self._barrier = self._measured = self._running = None
        self._waits = {}
        self.transport.set_protocol(_GONE)

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
