"""Sharing: the reply of the batch script for a run, as results of the run's operations.

Pure. Each function extends the results, and returns whether an operation may lack something, which its `wait`
then says (batch.lua has the form of replies; kinds.py says which kind uses what).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pressure_server.broker.lack import Lack
from pressure_server.broker.marked import with_flags
from pressure_server.broker.names import printable
from pressure_server.broker.operation import Operation
from pressure_server.broker.wait import Wait
from pressure_server.errors import QueueFullError


def _hand_out(operations: Sequence[Operation], values: list[Any]) -> None:
    start = 0
    for operation in operations:
        end = start + operation.units_sent
        some = values[start:end]
        operation.results += some
        if operation.sent is not None:
            operation.sent -= len(some)
        start = end


def values(operations: Sequence[Operation], reply: list[Any]) -> bool:
    """To each as many values as it has asked for, while there are any."""
    _hand_out(operations, reply)
    return False


def marked_values(operations: Sequence[Operation], reply: list[bytes]) -> bool:
    """As `values`, of messages with their flags."""
    return values(operations, with_flags(reply))


def marked_taken(operations: Sequence[Operation], reply: list[bytes] | None) -> bool:
    """As `taken`, of messages with their flags."""
    return taken(operations, None if reply is None else with_flags(reply))


def peeked(operations: Sequence[Operation], reply: list[bytes]) -> bool:
    """The list of the one message with its flags, to every command."""
    return one(operations, with_flags(reply))


def _sizes_left(operations: Sequence[Operation]) -> list[int]:
    """How many messages each command still brings."""
    sizes: list[int] = []
    for operation in operations:
        done = len(operation.results)
        sizes += operation.sizes[done : done + operation.units_sent]
    begun = _begun(operations)
    if begun is not None:
        sizes[0] -= begun.messages
    return sizes


def _begun(operations: Sequence[Operation]) -> Wait | None:
    """How far the next command has come, where it has been waited with."""
    return next((operation.wait for operation in operations if operation.commands_left()), None)


def lengths(operations: Sequence[Operation], reply: Any) -> bool:
    """One length a command; or one number, the length before the first, where all messages were put."""
    if isinstance(reply, int):
        reply = list(accumulate(_sizes_left(operations), initial=reply))[1:]
    return counts(operations, reply)


def counts(operations: Sequence[Operation], reply: Any) -> bool:
    """One count a command, -1 where it found the queue full; or b"new" where all messages were new.

    Where only part was done it is b"part", how many messages of the next command were put, how many of these
    were new, and the counts of the commands that were done.
    """
    if reply == b"new":
        if len(operations) == 1 and operations[0].wait is None and not operations[0].results:
            # By far the most frequent: it saves 15 of 98 calls for a SADD (tests/path.py).
            operations[0].results = list(operations[0].sizes)
            return False
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
    missing = [operation for operation in operations if operation.commands_left()]
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
    operation.stay()
    return wait


def taken(operations: Sequence[Operation], reply: list[Any] | None) -> bool:
    """Messages; None where there is no such queue. Who got nothing lacks a message."""
    _hand_out(operations, reply or [])
    hungry = [operation for operation in operations if not operation.results]
    for operation in hungry:
        kind = operation.kind
        _lacks(operation, Lack.MESSAGE)
        if reply is None:
            operation.kind = kind  # there is no such queue yet, and it may wait for one
    return bool(hungry)


def moved(operations: Sequence[Operation], reply: Any) -> bool:
    """The message; none where there is none; -1 where the destination is full."""
    operation = operations[0]
    if reply == -1:
        operation.wait = operation.wait or Wait()
        operation.wait.elsewhere = True
        _lacks(operation, Lack.ROOM)
        operation.stay(elsewhere=True)
        return True
    if not reply and operation.messages[2] == b"wait":
        if operation.wait is not None:
            operation.wait.elsewhere = False  # whatever it had lacked before
        return taken(operations, reply)
    operation.results = reply
    return False


def one(operations: Sequence[Operation], reply: Any) -> bool:
    """The one value, to every command."""
    for operation in operations:
        operation.results = [reply] * len(operation.sizes)
    return False
