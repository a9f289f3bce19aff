"""Packing: runs as arguments for the batch script.

Pure. A run is neighbouring operations of one verb with the same options. What goes is what has not been done
yet (batch.lua has the form; verbs.py says which verb uses what).
"""

from __future__ import annotations

from collections.abc import Sequence

from pressure_server.queues.operations.operation import Operation


def commands(operations: Sequence[Operation]) -> list[bytes]:
    """The sizes of the commands, empty where each has one message, and their messages."""
    if len(operations) == 1 and operations[0].wanted == 1:
        # By far the most frequent with many queues.
        return [b"", *operations[0].messages]
    sizes: list[int] = []
    arguments = [b""]
    for operation in operations:
        done = len(operation.results)
        wait = operation.wait
        if done or operation.sent is not None or (wait is not None and wait.messages):
            ahead = wait.messages if wait is not None else 0
            first = sum(operation.sizes[:done]) + ahead
            rest = operation.sizes[done : done + operation.units_sent]
            rest[0] -= ahead
            sizes += rest
            arguments += operation.messages[first : first + sum(rest)]
        else:
            sizes += operation.sizes
            arguments += operation.messages
    if len(sizes) != len(arguments) - 1:
        arguments[0] = b" ".join([b"%d" % size for size in sizes])
    return arguments


def messages(operations: Sequence[Operation]) -> list[bytes]:
    """The messages."""
    arguments: list[bytes] = []
    for operation in operations:
        arguments += operation.messages[len(operation.results) :]
    return arguments


def count(operations: Sequence[Operation]) -> list[bytes]:
    """How many messages are wanted."""
    if len(operations) == 1:
        return [b"%d" % operations[0].messages_left()]
    return [b"%d" % sum([operation.messages_left() for operation in operations])]


def arguments(operations: Sequence[Operation]) -> list[bytes]:
    """The arguments of the one operation."""
    return operations[0].messages


def nothing(_operations: Sequence[Operation]) -> list[bytes]:
    """Nothing: the verb says all."""
    return []
