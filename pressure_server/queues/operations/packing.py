"""Packing: runs of operations as arguments for the batch script.

Pure. A run is neighbouring operations with the same verb and options. Only what is not done yet is packed.
batch.lua defines the format; verbs.py says which verb uses which function.
"""

from __future__ import annotations

from collections.abc import Sequence

from pressure_server.lua.layout import NUMBERS
from pressure_server.queues.operations.operation import Operation


def pack_commands(operations: Sequence[Operation]) -> list[bytes]:
    """Return the sizes of the commands, empty if each has one message, and then their messages."""
    if len(operations) == 1 and operations[0].wanted == 1:
        # By far the most frequent case with many queues.
        return [b"", *operations[0].messages]
    sizes: list[int] = []
    arguments = [b""]
    for operation in operations:
        done = len(operation.results)
        wait = operation.wait
        if done or operation.commands_in_call is not None or (wait is not None and wait.messages_done):
            ahead = wait.messages_done if wait is not None else 0
            first = sum(operation.sizes[:done]) + ahead
            rest = operation.sizes[done : done + operation.units_in_call]
            rest[0] -= ahead
            sizes += rest
            arguments += operation.messages[first : first + sum(rest)]
        else:
            sizes += operation.sizes
            arguments += operation.messages
    if len(sizes) != len(arguments) - 1:
        arguments[0] = b" ".join([b"%d" % size for size in sizes])
    return arguments


def pack_messages(operations: Sequence[Operation]) -> list[bytes]:
    """Return the messages that have no result yet."""
    arguments: list[bytes] = []
    for operation in operations:
        arguments += operation.messages[len(operation.results) :]
    return arguments


def pack_count(operations: Sequence[Operation]) -> list[bytes]:
    """Return how many messages are still wanted."""
    if len(operations) == 1:
        return [NUMBERS[operations[0].wanted - len(operations[0].results)]]
    return [b"%d" % sum([operation.messages_left() for operation in operations])]


def pack_arguments(operations: Sequence[Operation]) -> list[bytes]:
    """Return the arguments of the run's only operation."""
    return operations[0].messages


def pack_nothing(_operations: Sequence[Operation]) -> list[bytes]:
    """Return no arguments: the verb needs none."""
    return []
