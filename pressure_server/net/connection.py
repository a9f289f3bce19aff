"""A client's connection, whatever its wire protocol: replies in the order of the commands, and backpressure.

A handler's sub-class parses bytes into commands and executes one. A command either replies at once, or
submits operations whose replies take their place in the order, or is a coroutine that runs alone: after
all replies before it, and before any command behind it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, cast

from pressure_server.auth.users import NOBODY
from pressure_server.errors import PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.outbox import Outbox
from pressure_server.queues.database import Database
from pressure_server.queues.operations.batch import MAX_BYTES
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.wait import Wait

# A client with so many commands unanswered is not read further until some are; fewer, until it is known how
# large its replies are, and so that a mebibyte of them is under way.
MAX_UNANSWERED = 1024
FIRST_UNANSWERED = 4
UNANSWERED_BYTES = 1 << 20
_SMALL_REPLY = UNANSWERED_BYTES // MAX_UNANSWERED
# One whose requests cost so much since everything was answered is not read until it is again.
REQUEST_BYTES = 4 << 20
# What a command costs beside its bytes, and an operation or a reply behind another. In the account of memory
# there are connections that hold more than the least, or have written so much since it was looked.
_COMMAND_COST = 512
_REPLY_COST = 512
_LEAST_COUNTED = 4096
# So large a reply is counted when it is written, and not only when others have been, too.
_LARGE = 64 << 10
# Seconds in which a client that we close may read what was written last, and close its side.
_LAST_WORDS = 1.0

Encode = Callable[[Operation], bytes]


class Connection(asyncio.Protocol, ABC):
    """The part of a connection that all handlers share. Sub-classes define the methods up to `refused`."""

    __slots__ = (
        "_allowed", "_alone", "_backlog", "_barrier", "_closing", "_cost", "_counted", "_deferred",
        "_drains", "_evicted", "_has_hung_up", "_last", "_look_at", "_next", "_outbox", "_paused",
        "_reading", "_ready", "_replies", "_reply_size", "_took", "_unanswered", "_unsent_bytes",
        "_waiting", "active", "clients", "database", "has_left", "held", "is_muted", "transport", "user",
    )  # fmt: skip

    transport: asyncio.Transport
    _outbox: Outbox

    def __init__(self, clients: Clients, database: Database) -> None:
        self.clients = clients
        self.database = database
        self.active = 0.0
        self.user = NOBODY
        self._replies: list[bytes | Operation] = []
        self._last: Operation | None = None
        self._unanswered = 0
        # What was received and not answered yet costs; less only when all is answered.
        self._cost = 0
        self._ready = 0  # the bytes of replies behind others
        self._unsent_bytes = 0  # written, and in memory until the socket has taken all
        self._look_at = _LEAST_COUNTED  # how much will have been written when it is looked again
        self._counted = 0  # what the account has of us
        self._deferred = False  # until the account has room
        self._reply_size = 0  # of the largest lately
        self._allowed = FIRST_UNANSWERED
        self._backlog: list[Any] = []
        self._next = 0
        self._alone: Coroutine[Any, Any, bytes] | asyncio.Task[None] | None = None
        self._reading = True
        self._paused = False
        self._closing = False
        self._drains = False
        self._has_hung_up = False  # and waits for the client to do so
        # The last command that may have to wait: what comes behind it waits for its reply.
        self._barrier: Operation | None = None
        self.held = False  # the command that was executed has to wait for that
        self._waiting = 0
        # Whether the client has closed its side; then it is muted when a reply cannot be delivered.
        self.has_left = False
        self.is_muted = False
        self._evicted = False  # the account has written us off
        # What operations have taken for the command that runs alone.
        self._took: list[Operation] = []

    @abstractmethod
    def parse(self, data: bytes) -> list[Any]:
        """The commands that are complete with these bytes. A command may stand for a protocol error."""

    @abstractmethod
    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Do a command: by `reply`, by `submit`, or by the coroutine that is returned."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """The reply for the value that a coroutine has returned."""

    @abstractmethod
    def failed(self, error: Exception) -> bytes:
        """The reply that reports an error which a coroutine raised."""

    @abstractmethod
    def refused(self) -> bytes:
        """What a client is told when there are too many."""

    @property
    @abstractmethod
    def unparsed(self) -> int:
        """What a request that has not come to its end takes in memory, in bytes."""

    @abstractmethod
    def forget_unparsed(self) -> None:
        """Free that; nothing more is parsed."""

    @property
    def kept(self) -> int:
        """What the client has us keep beside requests and replies, in bytes."""
        return 0

    def reply(self, data: bytes) -> None:
        """Reply to the command that is being executed."""
        if self._replies:
            self._replies.append(data)
            self._ready += len(data)
            self._unanswered += 1
            self._last = None
        else:
            self._write(data)

    @property
    def may_submit(self) -> int:
        """How many more commands may be under way; at least the one that is being executed."""
        return max(1, self._allowed - self._unanswered)

    def execute_instead(self, commands: list[Any]) -> None:
        """Execute these next, in place of the command that is being executed, which stood for them."""
        self._backlog[self._next : self._next] = commands

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
        """Submit the operation that a command stands for; `encode(operation)` is to be its reply.

        `size` is how many messages the command brings or wants. With `commands`, so many equal ones of that
        size are submitted at once, and `messages` are those of all. Equal commands in a row become one
        operation, so `encode` replies for all that `sizes` lists. Raises QueueNameError.

        `wait` is for commands that wait for a message. Behind such a one nothing is submitted, and behind a
        put that may have to wait for room only further ones like it; others are `held`, and executed again
        when it has ended.
        """
        barrier = self._barrier
        if barrier is not None and (
            wait is not None
            or barrier.wait is not None
            or barrier.verb is not verb
            or barrier.name != name
            or barrier.options != options
        ):
            self.held = True
            return
        last = self._last
        if last is not None and wait is None and last.may_extend(verb, name, encode, options):
            last.extend(messages, size, commands)
        else:
            operation = Operation(verb, name, messages, size, self, encode, commands, wait, options)
            self.database.add(operation)
            self._replies.append(operation)
            self._last = operation
            if wait is not None or (verb.puts and self.database.known.may_be_bounded(name)):
                self._barrier = operation
        self._unanswered += commands

    def waits(self, operation: Operation) -> None:
        """The broker: an operation of ours waits."""
        self._last = None
        self.begin_wait()

    def begin_wait(self) -> None:
        """The client waits for something, until `end_wait`. It is not read meanwhile.

        A client that has left waits for nothing: its connection is closed.
        """
        self._waiting += 1
        if self._waiting == 1 and not self.transport.is_closing():
            self._stop_reading()
            if self.has_left:
                self.break_off()

    def end_wait(self) -> None:
        """The client has what it waited for, or never will."""
        self._waiting -= 1

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for something."""
        return self._waiting > 0

    @property
    def socket(self) -> Any:
        """See disconnects.Peer."""
        return self._outbox.socket

    def client_left(self) -> None:
        """See disconnects.Peer. What the client has sent is still done, except that it gets no message."""
        self.has_left = True
        if self._waiting:
            self.break_off()

    def _can_deliver(self) -> bool:
        """Whether the client is still there to take a message.

        The one rule for what is delivered, asked when a reply with messages is about to be written. Where it
        says no, the messages go back, and the client gets no further replies: it could not tell them apart.
        """
        self.clients.disconnects.refresh()
        if self.has_left and not self.is_muted:
            self.is_muted = True
        return not (self.is_muted or self.transport.is_closing())

    def completed(self, operation: Operation) -> None:
        """The broker: an operation of ours has ended. What it has taken is ours, to deliver or put back."""
        if operation.wait is not None and operation.wait.in_line:
            self.end_wait()
        if operation is self._barrier:
            self._barrier = None
        replies = self._replies
        self._unanswered -= len(operation.sizes)
        if operation is self._last:
            self._last = None
        data = operation.reply(operation)
        if self._allowed < MAX_UNANSWERED or len(data) >= _SMALL_REPLY:
            self._adapt(len(data) // len(operation.sizes))
        if replies and replies[0] is operation:
            taken = [(0, len(data), operation)] if operation.deliveries else []
            if len(replies) == 1:
                replies.clear()
            else:
                pieces, length = [data], len(data)
                for reply in islice(replies, 1, None):
                    if type(reply) is Operation:
                        if reply.encoded is None:
                            break
                        piece, reply.encoded = reply.encoded, None
                        if reply.deliveries:
                            taken.append((length, length + len(piece), reply))
                    else:
                        piece = cast(bytes, reply)
                    pieces.append(piece)
                    length += len(piece)
                    self._unanswered -= 1
                del replies[: len(pieces)]
                self._ready += len(data)
                data = b"".join(pieces)
                self._ready -= len(data)
            self._write(data, taken)
            if not self._reading or self._closing:
                self._proceed()
            if self._counted and not replies:
                self.recount()
        elif replies:
            operation.encoded = data
            self._unanswered += 1  # until those before it are answered
            self._ready += len(data)
            if self._ready > self._counted + _LEAST_COUNTED:
                self.recount()
        else:
            # The connection was lost while the operation was under way.
            operation.put_back()

    def _adapt(self, size: int) -> None:
        """A reply had that size: so many commands may be under way. A large one counts for the next, too."""
        self._reply_size = max(size, self._reply_size - (self._reply_size >> 3))
        fitting = max(1, UNANSWERED_BYTES // (self._reply_size + 1))
        self._allowed = min(MAX_UNANSWERED, 2 * self._allowed, fitting)

    def has_some(self, operation: Operation) -> None:
        """The broker: a call has brought some of what an operation takes, and others are to follow."""
        self._cost += max(MAX_BYTES, len(operation.results[-1]))
        self.recount()

    def _write(self, data: bytes, taken: Sequence[tuple[int, int, Operation]] = ()) -> None:
        """Write replies. `taken` are those in `data` that bring messages: see Outbox.expect."""
        if taken:
            if not self._can_deliver():
                for _, _, operation in taken:
                    operation.put_back()
                return
            self._outbox.expect(taken)
            self.clients.deliveries.watch(self)
        if self.is_muted or self.transport.is_closing():
            return
        outbox = self._outbox
        outbox.write(data)
        if outbox.written > self._look_at:
            self._look_at = outbox.written + _LEAST_COUNTED
            self.clients.deliveries.watch(self)
            if len(data) > _LARGE:
                self._count_unsent()

    def _count_unsent(self) -> int:
        """How much the socket has not taken yet. What was more stays in memory until it has taken all."""
        size = self.transport.get_write_buffer_size()
        kept = max(size, self._unsent_bytes) if size else 0
        if kept != self._unsent_bytes:
            self._unsent_bytes = kept
            self.recount()
        return size

    def recount(self) -> None:
        """Tell the account of memory what the client has us keep."""
        if not (self._replies or self._backlog or self._alone is not None):
            self._cost = self.unparsed
        size = self._cost + _REPLY_COST * len(self._replies) + self.kept
        # Of what was taken and has not arrived we have the messages as well.
        size += 2 * self._ready + (2 if self._outbox.has_messages else 1) * self._unsent_bytes
        counted = size if size > _LEAST_COUNTED else 0
        if counted != self._counted and not self._evicted:
            self._counted = counted
            self.clients.memory.holds(self, counted)

    @property
    def wants_more(self) -> bool:
        """See pressure_server.net.memory.Holder."""
        is_stuck = self._waiting or self._paused or self._closing
        return not is_stuck and (bool(self._backlog) or not self._replies)

    def defer(self) -> None:
        """See pressure_server.net.memory.Holder."""
        self._deferred = True
        self._stop_reading()

    def go_on(self) -> None:
        """See pressure_server.net.memory.Holder."""
        self._deferred = False
        self._proceed()

    def evict(self, why: PressureError) -> None:
        """See pressure_server.net.memory.Holder. A client that does not read its replies is not told why."""
        self._evicted = True
        self.look_what_was_sent()
        self._closing = True
        self._deferred = False
        self._backlog.clear()
        self._next = 0
        self.forget_unparsed()
        if self.transport.get_write_buffer_size():
            self.break_off()
            return
        self._write(self.failed(why))
        if self._replies or self._alone is not None:
            self.transport.close()
        elif not self._reading:
            # Were it closed at once, what it is sending would have its system throw the reply away.
            self._reading = True
            self.transport.resume_reading()
        asyncio.get_running_loop().call_later(_LAST_WORDS, self.break_off)

    def look_what_was_sent(self) -> bool:
        """Tell what the socket has taken that it is delivered; whether that is all."""
        if self.transport.is_closing():
            return True  # connection_lost knows more
        outbox = self._outbox
        unsent = outbox.look()
        if unsent or self._unsent_bytes:
            self._count_unsent()
        if outbox.has_messages:
            return False
        if self._closing:
            self._proceed()
        return not unsent

    def took(self, operation: Operation) -> None:
        """The broker: an operation has taken this for the command that runs alone, and it is ours now.

        It goes back at once if its reply could not be delivered: later, others might have taken what comes
        after it, and given that back before.
        """
        if not self._can_deliver():
            operation.put_back()
            return
        self._took.append(operation)
        # A command that takes from many queues replies when it has all: each is a message, and in the reply.
        self._cost += 2 * sum(map(len, operation.results))
        self.recount()

    def break_off(self) -> None:
        """End the connection at once; what has not been sent never is, nor what is read executed."""
        self._closing = True
        self._backlog.clear()
        self._next = 0
        self._outbox.break_off()

    def close_when_replied(self) -> None:
        """Execute nothing more; close when every reply is written."""
        self._closing = True
        self._backlog.clear()
        self._next = 0
        self._proceed()

    def close_if_idle(self) -> None:
        """Close, unless the client waits for something. One that does not read its replies does not."""
        if self._paused or self.transport.get_write_buffer_size():
            self.break_off()
        elif not self._replies and not self._backlog and self._alone is None:
            self.close_when_replied()

    def drain(self) -> None:
        """Read nothing more; close when what has been read is done and answered."""
        self._drains = True
        self._stop_reading()
        if self._backlog or self._alone or self._replies:
            self._backlog.append(None)
        else:
            self.close_when_replied()

    def _proceed(self) -> None:
        """Execute what has been read, as far as it may be executed now."""
        backlog = self._backlog
        while self._next < len(backlog):
            if (
                self._alone is not None
                or self._paused
                or self._deferred
                or self._closing
                or self._waiting
                or self._unanswered >= self._allowed
            ):
                break
            command = backlog[self._next]
            self._next += 1
            if command is None:
                self.close_when_replied()
                return
            self._alone = self.execute(command)
            if self.held:
                self.held = False
                self._next -= 1
                break
        else:
            if backlog:
                backlog.clear()
                self._next = 0
        self.database.flush()
        if self._alone is not None and not self._replies and not isinstance(self._alone, asyncio.Task):
            command = self._alone
            self._alone = asyncio.create_task(self._run_alone(command))
            # A task that is cancelled before it begins leaves its coroutine as it was.
            self._alone.add_done_callback(lambda _: command.close())
        if self._closing and not self._replies and self._alone is None:
            if not self._outbox.has_messages:  # else when these are known to have been sent
                self._hang_up()
        elif (
            self._backlog
            or self._alone is not None
            or self._waiting
            or self._deferred
            or (self._cost > REQUEST_BYTES and self._replies)
        ):
            self._stop_reading()
        elif not self._reading and not self._closing:
            self._reading = True
            self.transport.resume_reading()

    def _hang_up(self) -> None:
        """Close the connection when the client has closed its side, too, or after a second.

        If the socket is closed while the client sends, its kernel throws replies away that it has not sent.
        """
        if self._drains or not self.transport.can_write_eof():
            self.transport.close()
        elif not self._has_hung_up:
            self._has_hung_up = True
            self.transport.write_eof()
            if not self._reading:
                self._reading = True
                self.transport.resume_reading()
            asyncio.get_running_loop().call_later(_LAST_WORDS, self.transport.close)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    async def _run_alone(self, command: Coroutine[Any, Any, bytes]) -> None:
        try:
            data = self.encode(await command)
        except Exception as error:
            self._put_back(self._took)
            data = self.failed(error)
        self._alone = None
        took, self._took = self._took, []
        # One reply brings all of it, or nothing.
        self._write(data, [(len(data), len(data), operation) for operation in took if operation.deliveries])
        self._proceed()
        if self._counted:
            self.recount()

    def _put_back(self, operations: list[Operation]) -> None:
        """Nobody gets what these have taken."""
        for operation in operations:
            operation.put_back()
        operations.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client has connected."""
        self.transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self.transport)
        if refusal := self.clients.refusal(self):
            self._closing = True
            self.transport.write(refusal)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """asyncio: the client has sent something."""
        if self._closing:
            return
        commands = self.parse(data)
        self.clients.commands += len(commands)
        self.active = self.clients.now
        if commands and not self._counted and not self._replies and not self._backlog:
            self._cost = 0  # all before is answered, but for a small beginning of the first of these
        self._cost += len(data) + _COMMAND_COST * len(commands)
        if self._backlog:
            self._backlog += commands
        else:
            self._backlog = commands
            self._proceed()
        if self._cost > _LEAST_COUNTED or self._counted:
            self.recount()

    def eof_received(self) -> None:
        """asyncio: the client sends nothing more, and what it has not been sent yet it may not get."""
        self.look_what_was_sent()

    def pause_writing(self) -> None:
        """asyncio: the client does not read its replies as fast as they come."""
        self._paused = True
        self._stop_reading()
        self.clients.deliveries.watch(self)

    def resume_writing(self) -> None:
        """asyncio: it has read some."""
        self._paused = False
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended.

        What its gets have not taken yet, they leave; what waits is not done.
        """
        self._closing = True
        self.clients.leave(self)
        self._outbox.end(exc)
        replies, self._replies = self._replies, []
        for reply in replies:
            if not isinstance(reply, Operation):
                continue
            if reply.encoded is not None:
                reply.put_back()
            else:
                self.database.cancel(reply)
        self._put_back(self._took)
        self._backlog = []
        self._next = 0
        if isinstance(self._alone, asyncio.Task):
            self._alone.cancel()
        elif self._alone is not None:
            self._alone.close()
        self._alone = None
