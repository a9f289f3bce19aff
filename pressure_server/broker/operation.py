"""Operations: what a client wants done on one queue, and how it travels to the batch script and back.

Pure: values in, values out. An operation may stand for a run of equal commands of one client, and a
batch folds neighbouring operations of one kind into one run of the script (see batch.lua).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pressure_server.broker.names import printable
from pressure_server.errors import PressureError, QueueFullError


class Operation:
    """One or more equal commands on one queue.

    `sizes` has one number a command: how many messages it brought (put, add, contains, remove), or
    wants (get). `messages` are theirs, end to end. Other kinds have their arguments in `messages`.

    When it has ended, `owner.completed(operation)` is called, and either `error` is set, or `results`
    holds: for put and add one entry a command (the queue's length after it; how many of its messages
    were new; or the error that it alone met), for contains and remove one 1 or 0 a message, for get
    the messages, fewer than wanted when the queue ran empty; for other kinds the one value.
    """

    __slots__ = (
        "cancelled",
        "error",
        "kind",
        "messages",
        "name",
        "owner",
        "reply",
        "results",
        "sealed",
        "sizes",
        "wanted",
    )

    def __init__(
        self,
        kind: Kind,
        name: bytes,
        messages: list[bytes],
        size: int,
        owner: Any,
        reply: Any = None,
        commands: int = 1,
    ) -> None:
        self.kind = kind
        self.name = name
        self.messages = messages
        self.sizes = [size] if commands == 1 else [size] * commands
        self.wanted = size * commands
        self.owner = owner
        self.reply = reply
        self.results: list[Any] = []
        self.error: PressureError | None = None
        self.sealed = False
        self.cancelled = False

    def extend(self, messages: list[bytes], size: int, commands: int) -> None:
        """Append more commands of `size` messages each; only while the operation is not sealed."""
        self.messages += messages
        self.sizes += [size] * commands
        self.wanted += size * commands

    def fail(self, error: PressureError) -> None:
        """End with an error what has not been done; what has been done (in an earlier call) stays done."""
        if not self.results:
            self.error = error
        elif self.kind.folds and not self.kind.takes:
            self.results += [error] * self.kind.rest(self)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """How operations of one kind are packed for the script, and how a reply is shared out among them.

    `pack` appends the run's arguments. `share` extends each operation's results from the run's reply.
    `rest` is what an operation still lacks, in the units in which the script says what it left undone.
    """

    name: bytes
    pack: Callable[[Sequence[Operation]], list[bytes]]
    share: Callable[[Sequence[Operation], Any], None]
    rest: Callable[[Operation], int]
    puts: bool = False
    takes: bool = False
    folds: bool = True


def _pack_commands(operations: Sequence[Operation]) -> list[bytes]:
    sizes: list[int] = []
    arguments = [b""]
    for operation in operations:
        done = len(operation.results)
        if done:
            sizes += operation.sizes[done:]
            arguments += operation.messages[sum(operation.sizes[:done]) :]
        else:
            sizes += operation.sizes
            arguments += operation.messages
    if len(sizes) != len(arguments) - 1:
        arguments[0] = b" ".join([b"%d" % size for size in sizes])
    return arguments


def _pack_messages(operations: Sequence[Operation]) -> list[bytes]:
    arguments: list[bytes] = []
    for operation in operations:
        arguments += operation.messages[len(operation.results) :]
    return arguments


def _pack_count(operations: Sequence[Operation]) -> list[bytes]:
    return [b"%d" % sum([operation.wanted - len(operation.results) for operation in operations])]


def _pack_arguments(operations: Sequence[Operation]) -> list[bytes]:
    return operations[0].messages


def _hand_out(operations: Sequence[Operation], values: list[Any]) -> None:
    start = 0
    for operation in operations:
        end = start + operation.kind.rest(operation)
        operation.results += values[start:end]
        start = end


def _full(operations: Sequence[Operation]) -> QueueFullError:
    return QueueFullError(printable(operations[0].name))


def _share_lengths(operations: Sequence[Operation], reply: Any) -> None:
    if isinstance(reply, int):
        sizes = [size for operation in operations for size in operation.sizes[len(operation.results) :]]
        _hand_out(operations, list(accumulate(sizes, initial=reply))[1:])
    else:
        _share_counts(operations, reply)


def _share_counts(operations: Sequence[Operation], reply: Any) -> None:
    if reply == b"new":
        for operation in operations:
            operation.results += operation.sizes[len(operation.results) :]
        return
    if -1 in reply:
        full = _full(operations)
        reply = [full if value == -1 else value for value in reply]
    _hand_out(operations, reply)


def _share_one(operations: Sequence[Operation], reply: Any) -> None:
    for operation in operations:
        operation.results = [reply] * len(operation.sizes)


def _commands_left(operation: Operation) -> int:
    return len(operation.sizes) - len(operation.results)


def _messages_left(operation: Operation) -> int:
    return operation.wanted - len(operation.results)


PUT = Kind(b"put", _pack_commands, _share_lengths, _commands_left, puts=True)
ADD = Kind(b"add", _pack_commands, _share_counts, _commands_left, puts=True)
GET = Kind(b"get", _pack_count, _hand_out, _messages_left, takes=True)
REMOVE = Kind(b"remove", _pack_messages, _hand_out, _messages_left)
CONTAINS = Kind(b"contains", _pack_messages, _hand_out, _messages_left)
LENGTH = Kind(b"length", lambda _: [], _share_one, lambda _: 0)
EXISTS = Kind(b"exists", lambda _: [], _share_one, lambda _: 0)
INFO = Kind(b"info", lambda _: [], _share_one, lambda _: 0)
RANGE = Kind(b"range", _pack_arguments, _share_one, lambda _: 0, folds=False)
SCAN = Kind(b"scan", _pack_arguments, _share_one, lambda _: 0, folds=False)
SAMPLE = Kind(b"sample", _pack_arguments, _share_one, lambda _: 0, folds=False)
CREATE = Kind(b"create", _pack_arguments, _share_one, lambda _: 0, folds=False)
DELETE = Kind(b"delete", lambda _: [], _share_one, lambda _: 0, folds=False)
