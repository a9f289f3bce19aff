"""Operations: what a client wants done on one queue, and how it travels to the batch script and back.

Pure: values in, values out. An operation may stand for a run of equal commands of one client, and a
batch folds neighbouring operations of one kind into one run of the script (see batch.lua).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any

from pressure_server.broker.names import printable
from pressure_server.broker.wait import Lack, Wait
from pressure_server.errors import PressureError, QueueFullError


class Operation:
    """One or more equal commands on one queue.

    `sizes` has one number a command: how many messages it brought (put, add, contains, remove), or
    wants (get, take). `messages` are theirs, end to end. Other kinds have their arguments in `messages`.

    When it has ended, `owner.completed(operation)` is called, and either `error` is set, or `results`
    holds: for put and add one entry a command (the queue's length after it; how many of its messages
    were new; or the error that it alone met), for contains and remove one 1 or 0 a message, for get and
    take the messages, fewer than wanted when the queue ran empty or the time out; for other kinds the one
    value.

    `sent` is how many of the commands that are left go with the call under way; None is all of them.

    One that may have to wait, otherwise than all do, is made with a `Wait`. `owner.waits(operation)` is
    called when it begins to.
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
        "sent",
        "sizes",
        "wait",
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
        wait: Wait | None = None,
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
        self.sent: int | None = None
        self.cancelled = False
        self.wait = wait

    def extend(self, messages: list[bytes], size: int, commands: int) -> None:
        """Append more commands of `size` messages each; only while the operation is not sealed."""
        self.messages += messages
        self.sizes += [size] * commands
        self.wanted += size * commands

    @property
    def has_taken(self) -> bool:
        """Whether it has messages that are nowhere else now."""
        return bool(self.results) and self.kind.takes and not self.kind.moves

    def size_sent(self) -> int:
        """The bytes of the messages that go with the call under way."""
        done = len(self.results)
        first = sum(self.sizes[:done])
        last = first + sum(self.sizes[done : done + _units_sent(self)])
        return sum(map(len, self.messages[first:last]))

    def fail(self, error: PressureError) -> None:
        """End with an error what has not been done; what has been done (in an earlier call) stays done."""
        in_part = self.wait.messages if self.wait is not None else 0
        if in_part:
            self.results.append(error.after(in_part))
        if not self.results:
            self.error = error
        elif self.kind.folds and not self.kind.takes:
            self.results += [error] * self.kind.rest(self)


class Line(Enum):
    """The two lines of a queue in which operations wait, by the role they need."""

    PRODUCERS = "producer"
    CONSUMERS = "consumer"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kind:
    """How operations of one kind are packed for the script, and how a reply is shared out among them.

    `pack` appends the run's arguments. `share` extends each operation's results from the run's reply, and
    says whether one may lack something, as it then notes in the operation's `wait`. `rest` is what an
    operation still lacks, in the units in which the script says what it left undone.

    `line` is where one waits, and `serves` are those who may go on when one has been done. One that has
    waited goes on as `waiting`, which does not create a queue that has been deleted meanwhile. `counts`: a
    command's result is a count, which adds up where it is done in parts.
    """

    name: bytes
    pack: Callable[[Sequence[Operation]], list[bytes]]
    share: Callable[[Sequence[Operation], Any], bool]
    rest: Callable[[Operation], int] = lambda _: 0
    puts: bool = False
    takes: bool = False
    moves: bool = False
    folds: bool = True
    counts: bool = False
    line: Line | None = None
    serves: tuple[Line, ...] = ()
    satisfied: Callable[[Operation], bool] = lambda _: True
    waiting: Kind | None = None

    def __repr__(self) -> str:
        """Its name."""
        return self.name.decode()


def _pack_commands(operations: Sequence[Operation]) -> list[bytes]:
    sizes: list[int] = []
    arguments = [b""]
    for operation in operations:
        done = len(operation.results)
        wait = operation.wait
        if done or operation.sent is not None or (wait is not None and wait.messages):
            ahead = wait.messages if wait is not None else 0
            first = sum(operation.sizes[:done]) + ahead
            rest = operation.sizes[done : done + _units_sent(operation)]
            rest[0] -= ahead
            sizes += rest
            arguments += operation.messages[first : first + sum(rest)]
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


def _pack_nothing(_operations: Sequence[Operation]) -> list[bytes]:
    return []


def _hand_out(operations: Sequence[Operation], values: list[Any]) -> None:
    start = 0
    for operation in operations:
        end = start + _units_sent(operation)
        some = values[start:end]
        operation.results += some
        if operation.sent is not None:
            operation.sent -= len(some)
        start = end


def _units_sent(operation: Operation) -> int:
    rest = operation.kind.rest(operation)
    return rest if operation.sent is None else min(rest, operation.sent)


def _share_values(operations: Sequence[Operation], values: list[Any]) -> bool:
    _hand_out(operations, values)
    return False


def _sizes_left(operations: Sequence[Operation]) -> list[int]:
    """How many messages each command still brings."""
    sizes: list[int] = []
    for operation in operations:
        done = len(operation.results)
        sizes += operation.sizes[done : done + _units_sent(operation)]
    begun = _begun(operations)
    if begun is not None:
        sizes[0] -= begun.messages
    return sizes


def _begun(operations: Sequence[Operation]) -> Wait | None:
    """How far the next command has come, where it has been waited with."""
    return next((operation.wait for operation in operations if _commands_left(operation)), None)


def _share_lengths(operations: Sequence[Operation], reply: Any) -> bool:
    if isinstance(reply, int):
        reply = list(accumulate(_sizes_left(operations), initial=reply))[1:]
    return _share_counts(operations, reply)


def _share_counts(operations: Sequence[Operation], reply: Any) -> bool:
    if reply == b"new":
        reply = _sizes_left(operations)
    messages = new = 0
    in_part = reply[:1] == [b"part"]
    if in_part:
        _, messages, new, reply = reply
    if -1 in reply:
        full = QueueFullError(printable(operations[0].name))
        reply = [full if value == -1 else value for value in reply]
    begun = _begun(operations)
    if begun is not None and reply:
        if operations[0].kind.counts and isinstance(reply[0], int):
            reply[0] += begun.new
        begun.messages = begun.new = 0
    _hand_out(operations, reply)
    if not in_part and all(operation.sent is None for operation in operations):
        return False
    missing = [operation for operation in operations if _commands_left(operation)]
    for operation in missing:
        _lacks(operation, Lack.ROOM).was_cut = not in_part
    if missing and missing[0].wait is not None:
        missing[0].wait.messages += messages
        missing[0].wait.new += new
    return bool(missing)


def _lacks(operation: Operation, lack: Lack) -> Wait:
    wait = operation.wait = operation.wait or Wait()
    wait.lack = lack
    if lack is Lack.ROOM:
        wait.reason = QueueFullError(printable(wait.other if wait.elsewhere else operation.name))
    elif lack is Lack.MESSAGE:
        wait.reason = None
    # What waits on a queue that exists does not wait for another of that name.
    operation.kind = operation.kind.waiting or operation.kind
    return wait


def _share_taken(operations: Sequence[Operation], reply: list[Any] | None) -> bool:
    _hand_out(operations, reply or [])
    hungry = [operation for operation in operations if not operation.results]
    for operation in hungry:
        kind = operation.kind
        _lacks(operation, Lack.MESSAGE)
        if reply is None:
            operation.kind = kind  # there is no such queue yet, and it may wait for one
    return bool(hungry)


def _share_moved(operations: Sequence[Operation], reply: Any) -> bool:
    operation = operations[0]
    if reply == -1:
        operation.wait = operation.wait or Wait()
        operation.wait.elsewhere = True
        _lacks(operation, Lack.ROOM)
        return True
    if not reply and operation.messages[2] == b"wait":
        return _share_taken(operations, reply)
    operation.results = reply
    return False


def _share_one(operations: Sequence[Operation], reply: Any) -> bool:
    for operation in operations:
        operation.results = [reply] * len(operation.sizes)
    return False


def _share_deleted(operations: Sequence[Operation], reply: Any) -> bool:
    if reply == b"begun":
        operations[0].kind = FINISH_DELETE
        return True
    return _share_one(operations, reply)


def _commands_left(operation: Operation) -> int:
    return len(operation.sizes) - len(operation.results)


def _messages_left(operation: Operation) -> int:
    return operation.wanted - len(operation.results)


def _none_left(operation: Operation) -> bool:
    return len(operation.sizes) == len(operation.results)


def _has_results(operation: Operation) -> bool:
    return bool(operation.results)


def _putting(name: bytes, share: Callable[[Sequence[Operation], Any], bool], waiting: Kind | None) -> Kind:
    return Kind(
        name,
        _pack_commands,
        share,
        _commands_left,
        puts=True,
        counts=name.startswith(b"add"),
        line=Line.PRODUCERS,
        serves=(Line.CONSUMERS,),
        satisfied=_none_left,
        waiting=waiting,
    )


def _taking(
    name: bytes, pack: Callable[[Sequence[Operation]], list[bytes]], *, folds: bool, waiting: Kind | None
) -> Kind:
    return Kind(
        name,
        pack,
        _share_moved if name.startswith(b"move") else _share_taken,
        _messages_left,
        takes=True,
        moves=name.startswith(b"move"),
        folds=folds,
        line=Line.CONSUMERS,
        serves=(Line.PRODUCERS,),
        satisfied=_has_results,
        waiting=waiting,
    )


def _asking(
    name: bytes, pack: Callable[[Sequence[Operation]], list[bytes]] = _pack_nothing, *, folds: bool = True
) -> Kind:
    return Kind(name, pack, _share_one, folds=folds)


def _living(
    name: bytes,
    pack: Callable[[Sequence[Operation]], list[bytes]] = _pack_nothing,
    share: Callable[[Sequence[Operation], Any], bool] = _share_one,
    line: Line | None = None,
) -> Kind:
    return Kind(
        name,
        pack,
        share,
        folds=False,
        line=line,
        serves=(Line.PRODUCERS, Line.CONSUMERS),
        satisfied=_has_results,
    )


# `…_EXISTING` refuses a queue that does not exist, where the other creates it, or waits for it.
PUT_EXISTING = _putting(b"put existing", _share_lengths, None)
ADD_EXISTING = _putting(b"add existing", _share_counts, None)
PUT_OVERFILL = _putting(b"put overfill", _share_lengths, None)
ADD_OVERFILL = _putting(b"add overfill", _share_counts, None)
# `…_PATIENT` waits for room whatever the queue's own setting is.
PUT_PATIENT = _putting(b"put wait", _share_lengths, None)
ADD_PATIENT = _putting(b"add wait", _share_counts, None)
PUT = _putting(b"put", _share_lengths, PUT_EXISTING)
ADD = _putting(b"add", _share_counts, ADD_EXISTING)
GET = Kind(
    b"get",
    _pack_count,
    _share_values,
    _messages_left,
    takes=True,
    line=Line.CONSUMERS,
    serves=(Line.PRODUCERS,),
)
TAKE_EXISTING = _taking(b"take existing", _pack_count, folds=True, waiting=None)
TAKE = _taking(b"take", _pack_count, folds=True, waiting=TAKE_EXISTING)
# `…_ELSE` takes nothing where the run before it has taken something.
TAKE_ELSE = _taking(b"take else", _pack_count, folds=False, waiting=None)
SOME_ELSE = _taking(b"some else", _pack_count, folds=False, waiting=None)
SOME_EXISTING = _taking(b"some existing", _pack_count, folds=False, waiting=None)
SOME = _taking(b"some", _pack_count, folds=False, waiting=SOME_EXISTING)
MOVE_EXISTING = _taking(b"move existing", _pack_arguments, folds=False, waiting=None)
MOVE = _taking(b"move", _pack_arguments, folds=False, waiting=MOVE_EXISTING)
RESTORE = Kind(b"restore", _pack_arguments, _share_one, folds=False, serves=(Line.CONSUMERS,))
REMOVE = Kind(
    b"remove", _pack_messages, _share_values, _messages_left, line=Line.CONSUMERS, serves=(Line.PRODUCERS,)
)
CONTAINS = Kind(b"contains", _pack_messages, _share_values, _messages_left)
LENGTH = _asking(b"length")
EXISTS = _asking(b"exists")
INFO = _asking(b"info")
VERSION = _asking(b"version")
RANGE = _asking(b"range", _pack_arguments, folds=False)
SCAN = _asking(b"scan", _pack_arguments, folds=False)
SAMPLE = _asking(b"sample", _pack_arguments, folds=False)
CREATE = _living(b"create", _pack_arguments, line=Line.PRODUCERS)
CLOSE = _living(b"close", line=Line.PRODUCERS)
DELETE = _living(b"delete", share=_share_deleted, line=Line.CONSUMERS)
FINISH_DELETE = _living(b"finish_delete", line=Line.CONSUMERS)
EXPIRE = _living(b"expire", _pack_arguments)
CLEAN = _living(b"clean")
EXAMINE = _asking(b"examine")
REPAIR = _living(b"repair", _pack_arguments)
TURN = _living(b"turn")
