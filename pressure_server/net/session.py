"""A client's session, whatever its wire protocol: its commands, its waits, and how it ends.

A handler's sub-class parses bytes into commands and executes them: see docs/internals/handlers.md.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

from pressure_server.auth.users import NOBODY
from pressure_server.compiled import mypyc_attr
from pressure_server.errors import PressureError
from pressure_server.net.command_table import TableEntry
from pressure_server.net.connection import CLIENT_CLOSED, LEAST_COUNTED, OPEN
from pressure_server.net.lone_command import LoneCommand
from pressure_server.net.pipeline import PipelinedClient, ReplyMode, TooEarly
from pressure_server.net.waits import Waits
from pressure_server.queues.operations.batch import MAX_BYTES
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.verbs import POP

if TYPE_CHECKING:
    from pressure_server.net.handler import Context

logger = logging.getLogger(__name__)

# A client whose unanswered requests take more memory than this is not read until all are answered.
REQUEST_BYTES: Final = 4 << 20
# Estimated bytes for a command besides its words, and for an operation or a reply in the pipeline.
_COMMAND_COST: Final = 512
# Estimated bytes for a word besides its text, in a command of more than FEW_WORDS.
_WORD_COST: Final = 48
_REPLY_COST: Final = 512
# Words that begin lines of an HTTP request: a web page can make a browser send commands in a POST.
_HTTP_WORDS: Final = (b"post", b"host:")


class RepeatedRequest(Protocol):
    """Many equal requests in a row."""

    @property
    def count(self) -> int:
        """The number of requests."""

    def split(self, count: int) -> list[Any]:
        """Return the first `count` requests, and the others."""

    def requests(self) -> list[Any]:
        """Return the requests one by one."""


class Parser(Protocol):
    """The parser of a wire protocol: bytes to requests."""

    def feed(self, data: bytes) -> list[Any]:
        """Return the requests that are complete with these bytes."""

    @property
    def unparsed(self) -> int:
        """The bytes in memory of a request that is not complete yet."""

    @property
    def many_words(self) -> int:
        """The words that the last `feed` has read, of requests of more than FEW_WORDS."""

    @property
    def exceeds_login_limits(self) -> bool:
        """Whether that request is too large for a client that has not logged in."""


# The parser of a client whose requests are not read any longer: it gets no bytes.
_NO_PARSER: Final = cast(Parser, SimpleNamespace(unparsed=0))


@mypyc_attr(allow_interpreted_subclasses=True)
class Session(PipelinedClient):
    """A client. Sub-classes define the abstract methods."""

    __slots__ = ("_alone", "_parser", "_request_bytes", "_waits", "context")
    # The protocol's type of a request that stands for many commands, whose number is its `count`; and the
    # request that takes the place of one that is too large before a login.
    MANY: ClassVar[type[Any]]
    TOO_LARGE: ClassVar[Any]

    def __init__(self, context: Context, parser: Parser) -> None:
        super().__init__(context.broker.default_database)
        self.context = context
        self._parser = parser
        self._request_bytes = 0  # of what was received; reset when everything is answered
        self._alone: LoneCommand | None = None
        self._waits = Waits()

    @abstractmethod
    def execute(self, command: Any) -> Coroutine[Any, Any, bytes] | None:
        """Execute a command: call `reply` or `submit`, or return a coroutine that runs alone."""

    def count_of(self, command: Any) -> int:
        """Return the number of commands for which a parsed request stands."""
        return command.count if type(command) is self.MANY else 1

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
        """Execute the commands that are complete with these bytes."""
        connection, parser = self.connection, self._parser
        clients, commands = connection.clients, parser.feed(data)
        if self.user is NOBODY and parser.exceeds_login_limits and not any(map(self.may_log_in, commands)):
            commands.append(self.TOO_LARGE)
        clients.commands += len(commands)
        many = self.MANY
        for command in commands:
            if type(command) is many:
                clients.commands += command.count - 1
        self._measures_next = True
        if self.reserved_jobs.pops and commands:
            self.reserved_jobs.finished_pops = len(self.reserved_jobs.pops)
        for observer in clients.observers:
            observer.received(self, commands)
        if commands and not connection.counted and not self._replies and not self._backlog:
            self._request_bytes = 0  # everything before is answered
        words_cost = _WORD_COST * parser.many_words
        self._request_bytes += len(data) + words_cost + _COMMAND_COST * len(commands)
        commands.reverse()
        if self._backlog:
            self._backlog[:0] = commands
        else:
            self._backlog = commands
            self.proceed()
        if self._request_bytes > LEAST_COUNTED or connection.counted:
            connection.recount()

    def proceed(self) -> None:
        """Execute commands from the backlog, until one has to wait for a reply, for memory, or for room."""
        backlog, connection = self._backlog, self.connection
        while backlog:
            if (
                self._alone is not None
                or connection.server_side is not OPEN
                or self._waits
                or self._unanswered >= self._max_unanswered
            ):
                break
            command = backlog.pop()
            if command is None:
                self.close_when_replied()
                return
            try:
                coroutine = self.execute(command)
            except TooEarly:
                backlog.append(command)
                break
            if coroutine is not None:
                self._alone = LoneCommand(command, coroutine)
        self.database.end_of_read()
        if self._alone is not None and not (self._replies or self._alone.has_begun):
            self._alone.begin(self, self._alone_replied)
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

    def execute_repeated(self, entry: TableEntry | None, repeated: RepeatedRequest) -> None:
        """Execute many equal requests at once. Execute them one by one if `entry` cannot, or refuses them."""
        if repeated.count > self.may_submit:
            self.execute_instead(repeated.split(self.may_submit))
            return
        if entry is not None and entry.repeated is not None:
            self.command_statistics = entry.statistics
            try:
                entry.repeated(self, repeated)
            except Exception:
                logger.debug("repeated requests are executed one by one", exc_info=True)
            else:
                entry.statistics.calls += repeated.count
                return
        self.execute_instead(repeated.requests())

    def is_http(self, word: bytes) -> bool:
        """Return whether an unknown request begins a line of HTTP; then end the connection, as Redis does."""
        if word.lower() not in _HTTP_WORDS:
            return False
        self.break_off("it sent HTTP")
        return True

    def begin_wait(self, waiter: Operation | Waiter, queues: Sequence[bytes]) -> None:
        """Do not read from the client until `end_wait`. If it has closed its side, close its connection."""
        self._waits[waiter] = queues
        if self._alone is not None and self._alone.has_begun:
            self._alone.has_waited = True
        if len(self._waits) == 1 and not self.connection.transport.is_closing():
            self.connection.pause_reading()
            if self.has_disconnected:
                self.abandon_waits()
        if self._waits.are_to_end:
            # The command has waited before. The operation is not in its line yet.
            asyncio.get_running_loop().call_soon(self._waits.end_all, self.database)

    def end_wait(self, waiter: Operation | Waiter) -> None:
        """See PipelinedClient."""
        self._waits.pop(waiter, None)  # a session that has ended has none
        self.connection.waited = self.clients.now
        self._answer_unblock()

    def _answer_unblock(self) -> None:
        if self._alone is None or not self._alone.has_begun:  # otherwise it may wait again
            self._waits.answer_if_ended()

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for a message, for room or for a role."""
        return bool(self._waits)

    async def unblock(self, error: PressureError | None) -> bool:
        """End the client's waits: see Waits.unblock. Return False if it does not wait, or gets something."""
        alone_waits = self._alone is not None and self._alone.has_waited
        if self._waits.are_to_end or not (self._waits or alone_waits):
            return False
        return await self._waits.unblock(error, self.database)

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has closed its side, and cannot wait."""
        return self.connection.has_disconnected

    def waits_on(self) -> list[bytes]:
        """Return the queues on which the client waits, each once."""
        return self._waits.queues

    def wait_began(self, operation: Operation) -> None:
        """See Owner."""
        operation.measured_from = 0.0
        self.begin_wait(operation, (operation.name,))

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
        """See owners.Client. The operation belongs to the command that runs alone."""
        if self._alone is None or not self.connection.can_deliver():
            # Now: later, other clients might take the messages after them, and put those back first.
            operation.put_back()
            return
        if operation.verb.reserves and operation.verb is not POP:
            self._reserve(operation)
        self._alone.taken.append(operation)
        # A command on many queues replies when it has all messages. Each counts twice: see `buffered_bytes`.
        self._request_bytes += 2 * sum(map(len, operation.results))
        self.connection.recount()

    def _alone_replied(self, reply: bytes) -> None:
        """Write the reply of the command that ran alone, and go on."""
        taken = [] if self._alone is None else self._alone.taken
        self._alone = None
        self._answer_unblock()
        data = reply if self.reply_mode is ReplyMode.ON else b""
        delivered = [(len(data), len(data), operation) for operation in taken if operation.deliveries]
        self.connection.write(data, delivered)
        for operation in taken:
            if operation.verb is POP and operation.deliveries:
                self.note_popped(operation)
        self.proceed()
        if self.connection.counted:
            self.connection.recount()

    @property
    def is_busy(self) -> bool:
        """Whether a command has no reply yet."""
        return bool(self._replies or self._backlog) or self._alone is not None

    @property
    def is_answering(self) -> bool:
        """Whether a command that has begun, and does not wait, will have a reply."""
        alone = self._alone
        return (alone is not None and alone.has_begun and not alone.has_waited) or not all(
            isinstance(reply, Operation) and (reply.is_left_undone or reply in self._waits)
            for reply in self._replies
        )

    @property
    def may_proceed(self) -> bool:
        """Whether the session could proceed if its connection took replies."""
        return not self._waits and (bool(self._backlog) or not self._replies)

    def buffered_bytes(self) -> int:
        """Return the bytes of requests and replies in memory, without those that are written and unsent."""
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
        """Close the connection when the commands already received have their replies."""
        self._backlog.insert(0, None)

    def break_off(self, reason: str = "") -> None:
        """End the connection at once. The log has the reason, if one is given."""
        self.connection.break_off(reason)

    def close_when_replied(self, reason: str = "") -> None:
        """Execute no further command. Close the connection when every reply is written."""
        self._execute_no_more(reason)
        self.proceed()

    def stop(self) -> None:
        """Close the connection when the commands that have begun have their replies. Begin no other."""
        if self._alone is not None and not self._alone.has_begun:
            self._end_alone()
        self.close_when_replied()

    def give_up(self) -> None:
        """Execute no further command, free what is not parsed, and give up the client's reserved jobs."""
        self._execute_no_more()
        self._give_up_reserved()
        self._parser = _NO_PARSER

    def _execute_no_more(self, reason: str = "") -> None:
        self.connection.stop_receiving(reason)
        self._backlog.clear()

    def _give_up_reserved(self) -> None:
        """Give up the jobs that the client has reserved: its connection is about to end."""
        # At once, so that commands that other clients send after the end are done later. If clients have
        # closed their side, the jobs of all that leave go together.
        leaves_with_others = self.connection.is_stopping or self.has_disconnected
        self.reserved_jobs.give_up_all(self.job_owner, at_once=not leaves_with_others)

    def abandon_waits(self) -> None:
        """End the command that waits, and those after it: the client has closed its side."""
        if self.connection.has_left:
            if last_reply := self.abandoned_reply():
                self.connection.write(last_reply)
            self.connection.break_off()
        else:
            asyncio.get_running_loop().call_soon(self._abandon_waits)

    def abandoned_reply(self) -> bytes:
        """Return the reply to a command that waits when its client closes its side."""
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
        """Put back the messages whose replies were not written, and cancel operations that wait."""
        replies, self._replies = self._replies, []
        self._drop(replies)
        self._end_alone()
        if self.reserved_jobs.pops and not self.connection.is_stopping:
            self.clients.unknown_commands.note_unacknowledged(self, self.reserved_jobs.pops[0].queue)
        self.reserved_jobs.give_up_all(self.job_owner)
        self._backlog = []
        # Operations refer to the session: without this, only the garbage collector would free them.
        self._barrier = None
        self._waits.clear()
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
        if self._alone is not None:
            self._alone.end()
            self._alone = None
