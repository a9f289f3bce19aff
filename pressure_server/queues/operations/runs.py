"""Runs: what they send to the library, and its reply distributed among their operations.

Pure. A run is neighbouring operations with the same verb and options. Only what is not done yet is packed.
A `distribute_…` function adds to the operations' results. It returns whether an operation may have to wait,
and that operation's `wait` then says for what. batch.lua defines the formats; verbs.py says which verb uses
which functions.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from pressure_server.errors import PressureError, QueueFullError
from pressure_server.lua.layout import NUMBERS
from pressure_server.queues.operations.flagged import Popped, attach_flags
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait import Wait, WaitCondition
from pressure_server.text import printable

# The third message of an operation that has removed some copies, and may remove more.
_MORE: Final = b"more"
_PLUS: Final = ord("+")


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
        done = len(operation.results)
        if operation.commands_in_call is None:
            arguments += operation.messages[done:]
        else:
            arguments += operation.messages[done : done + operation.units_in_call]
    return arguments


def pack_count(operations: Sequence[Operation]) -> list[bytes]:
    """Return how many messages are still wanted."""
    if len(operations) == 1 and operations[0].commands_in_call is None:
        return [NUMBERS[operations[0].wanted - len(operations[0].results)]]
    return [b"%d" % sum([operation.units_in_call for operation in operations])]


def pack_claims(operations: Sequence[Operation]) -> list[bytes]:
    """Return a claim for each message that is still wanted; an operation has one for all of its messages."""
    claims: list[bytes] = []
    for operation in operations:
        claims += operation.messages * operation.units_in_call
    return claims


def pack_arguments(operations: Sequence[Operation]) -> list[bytes]:
    """Return the arguments of the run's only operation."""
    return operations[0].messages


def pack_nothing(_operations: Sequence[Operation]) -> list[bytes]:
    """Return no arguments: the verb needs none."""
    return []


def _hand_out(operations: Sequence[Operation], values: list[Any]) -> None:
    if len(operations) == 1 and operations[0].commands_in_call is None:
        operations[0].results += values
        return
    start = 0
    for operation in operations:
        end = start + operation.units_in_call
        some = values[start:end]
        operation.results += some
        if operation.commands_in_call is not None:
            operation.commands_in_call -= len(some)
        start = end


def distribute_values(operations: Sequence[Operation], reply: list[Any]) -> bool:
    """Give each operation as many values as it asked for, in order, while there are any.

    An error among them is about one message. Of an operation that has been split, the rest is left.
    """
    is_split = any(operation.commands_in_call is not None for operation in operations)
    if not any(map(_is_error, reply)):
        _hand_out(operations, reply)
        return is_split
    name = operations[0].name
    _hand_out(operations, [exception_for(name, str(value)) if _is_error(value) else value for value in reply])
    for operation in operations:
        operation.has_errors = any(map(_is_error, operation.results))
        if operation.has_errors and operation.wanted == 1:
            (operation.error,) = operation.results
            operation.results = []
    return is_split


def _is_error(value: object) -> bool:
    return isinstance(value, Exception)


def distribute_removed(operations: Sequence[Operation], reply: list[int]) -> bool:
    """Give the only operation the number of copies that it has removed.

    A second number says that there may be more: the operation is sent again, and keeps the number, also if it
    fails then. An empty reply says that the copies cannot be found yet.
    """
    (operation,) = operations
    if reply:
        left, message = int(operation.messages[0]), operation.messages[1]
        left = left - reply[0] if left > 0 else left + reply[0] if left < 0 else 0
        operation.results = [sum(operation.results) + reply[0]]
        operation.messages = [b"%d" % left, message, *([_MORE] if len(reply) > 1 else [])]
    return False


def copies_left(operation: Operation) -> int:
    """Return 0 if the operation has removed all copies that it should, else 1."""
    return int(not operation.results or operation.messages[-1] is _MORE)


def distribute_peeked(operations: Sequence[Operation], reply: list[bytes] | None) -> bool:
    """Give every command the list of the oldest message, with its flags; empty if there is none.

    The reply is None if there is no such queue. Operations that wait, and got no message, wait for one.
    """
    if reply or not operations[0].options.waits:
        return repeat_value(operations, attach_flags(reply or []))
    return _wait_for_message(operations, exists=reply is not None)


def _sizes_left(operations: Sequence[Operation]) -> list[int]:
    """Return how many messages each command that is not done has left to put."""
    sizes: list[int] = []
    for operation in operations:
        done = len(operation.results)
        sizes += operation.sizes[done : done + operation.units_in_call]
    begun = _wait_of_next(operations)
    if begun is not None:
        sizes[0] -= begun.messages_done
    return sizes


def _wait_of_next(operations: Sequence[Operation]) -> Wait | None:
    """Return the wait of the operation whose command is next: it says how much of the command is done."""
    return next((operation.wait for operation in operations if operation.commands_left()), None)


def distribute_counts(operations: Sequence[Operation], reply: Any) -> bool:
    """Give each command a number: the queue's length, or with `unique` how many messages were new.

    One value says that all were put: the length before the first, or b"new" if all were new.
    """
    if reply == b"new":
        for operation in operations:
            if operation.wait is not None or operation.results:
                break
        else:
            # By far the most frequent case: nothing was put in an earlier call.
            for operation in operations:
                operation.results = operation.sizes[:]
            return False
        reply = _sizes_left(operations)
    elif isinstance(reply, int):
        reply = list(accumulate(_sizes_left(operations), initial=reply))[1:]
    return _distribute_counts(operations, reply)


def _distribute_counts(operations: Sequence[Operation], reply: list[Any]) -> bool:
    """Give each command its number; -1 means that it found the queue full.

    If only part was done, the reply is b"part", how many messages of the next command were put, how many of
    these were new, and the numbers of the commands that were done.
    """
    messages = new = 0
    in_part = reply[:1] == [b"part"]
    if in_part:
        _, messages, new, reply = reply
    if -1 in reply or operations[0].options.once:
        reply = _with_errors(operations, reply)
    begun = _wait_of_next(operations)
    if begun is not None and reply:
        if isinstance(reply[0], PressureError) and begun.messages_done:
            reply[0] = reply[0].after(begun.messages_done)  # the queue no longer blocks
        elif operations[0].options.unique and isinstance(reply[0], int):
            reply[0] += begun.new_done
        begun.messages_done = begun.new_done = 0
    _hand_out(operations, reply)
    if not in_part and all(operation.commands_in_call is None for operation in operations):
        return False
    missing = [operation for operation in operations if operation.commands_left()]
    for operation in missing:
        _set_condition(operation, WaitCondition.ROOM).has_unsent = not in_part
    if missing and missing[0].wait is not None:
        missing[0].wait.messages_done += messages
        missing[0].wait.new_done += new
    return bool(missing)


def _with_errors(operations: Sequence[Operation], reply: list[Any]) -> list[Any]:
    """Return the numbers, with an error for each command that found the queue full, or was refused alone."""
    name = operations[0].name
    full = QueueFullError(printable(name))
    found = [
        full if value == -1 else exception_for(name, str(value)) if _is_error(value) else value
        for value in reply
    ]
    if any(map(_is_error, found)):
        for operation in operations:
            operation.has_errors = True
    return found


def _set_condition(operation: Operation, condition: WaitCondition) -> Wait:
    wait = operation.wait = operation.wait or Wait()
    wait.condition = condition
    if condition is WaitCondition.ROOM:
        wait.timeout_error = QueueFullError(
            printable(wait.destination if wait.at_destination else operation.name)
        )
        operation.require_existing()
    return wait


def distribute_messages(operations: Sequence[Operation], reply: list[Any] | None) -> bool:
    """Give out messages; None if there is no such queue. Those that wait, and got none, wait for one."""
    options = operations[0].options
    if options.has_flags and reply:
        reply = attach_flags(reply)
    if len(operations) == 1 and operations[0].commands_in_call is None:
        operations[0].results += reply or ()
        is_split = False
    else:
        _hand_out(operations, reply or [])
        is_split = any(operation.commands_in_call is not None for operation in operations)
    if not options.waits:
        return is_split
    return _wait_for_message(operations, exists=reply is not None) or is_split


def distribute_reserved(operations: Sequence[Operation], reply: list[bytes] | None) -> bool:
    """Give out reserved jobs, each as `ReservedJob.of` reads it; see `distribute_messages`."""
    return distribute_messages(operations, reply and _each_with_its_id(reply))


def distribute_popped(operations: Sequence[Operation], reply: list[bytes] | None) -> bool:
    """Give out the messages of reserved jobs, each as `Popped`; see `distribute_messages`."""
    return distribute_messages(operations, reply and [Popped.of(job) for job in _each_with_its_id(reply)])


def _each_with_its_id(reply: list[bytes]) -> list[bytes]:
    """Return the jobs of a reply, each with its id. job_gets.lua gives '+' in place of an id that follows."""
    jobs: list[bytes] = []
    job = offset = 0
    about = b""
    for text in reply:
        if text[0] != _PLUS:
            jobs.append(text)
            about = b""
            continue
        if not about:
            place, ttr, flags, reserves, _ = jobs[-1].split(b" ", 4)
            job, offset = int(place[:13], 16), int(place[14:])
            about = b"%b %b %b" % (ttr, flags, reserves)
        job += 1
        offset += 1
        jobs.append(b"%013x@%d %b %b" % (job, offset, about, text[1:]))
    return jobs


def _wait_for_message(operations: Sequence[Operation], *, exists: bool) -> bool:
    hungry = [operation for operation in operations if not operation.results]
    for operation in hungry:
        wait = _set_condition(operation, WaitCondition.MESSAGE)
        wait.timeout_error, wait.found_queue = None, exists
        if exists and not wait.outlives_queue:
            operation.require_existing()
    return bool(hungry)


def distribute_moved(operations: Sequence[Operation], reply: Any) -> bool:
    """Give out the message, if there was one; the reply is -1 if the destination is full."""
    operation = operations[0]
    if reply == -1:
        operation.wait = operation.wait or Wait()
        operation.wait.at_destination = True
        _set_condition(operation, WaitCondition.ROOM)
        operation.require_existing(at_destination=True)
        return True
    operation.results = reply or []
    if not operation.options.waits:
        return False
    if operation.wait is not None:
        operation.wait.at_destination = False  # it may have waited for room there before
    return _wait_for_message(operations, exists=reply is not None)


def repeat_value(operations: Sequence[Operation], reply: Any) -> bool:
    """Give the single value to every command."""
    for operation in operations:
        operation.results = [reply] * len(operation.sizes)
    return False
