"""Encoders: each returns the replies of an ended operation, one for each command that it stands for.

Reading or taking from a queue that does not exist is no error: the reply is zero, nil or an empty list.
"""

from typing import Any, cast

from handlers.resp.replies import INTEGERS, NULL, NULL_ARRAY, bulk, encode, error, set_sign
from handlers.resp.session import Caller
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.queues.operations.jobs import ReservedJob, id_of, ids_of
from pressure_server.queues.operations.operation import Operation


def _protocol_of(operation: Operation) -> int:
    return cast(Caller, operation.owner).protocol


def _failed(operation: Operation, when_missing: bytes) -> bytes:
    """Return the error for each command, or `when_missing` if there is no queue to read or take from."""
    reason = operation.error
    if reason is None:
        raise ValueError("the operation has not failed")
    missing = isinstance(reason, QueueDoesNotExistError) and not operation.verb.puts
    return (when_missing if missing else error(reason)) * len(operation.sizes)


def _per_command(operation: Operation) -> list[list[Any]]:
    cut: list[list[Any]] = []
    start = 0
    for size in operation.sizes:
        cut.append(operation.results[start : start + size])
        start += size
    return cut


def integers(operation: Operation) -> bytes:
    """Return one integer per command."""
    if operation.error is not None:
        return _failed(operation, b":0\r\n")
    results = operation.results
    return INTEGERS[results[0]] if len(results) == 1 else b"".join([INTEGERS[value] for value in results])


def value(operation: Operation, reply: Any) -> bytes:
    """Return any reply, in the client's version of RESP."""
    return encode(reply, _protocol_of(operation))


def ones(operation: Operation) -> bytes:
    """Return 1 for each command that has put its message."""
    if operation.error is not None:
        return _failed(operation, b"")
    return b"".join([b":1\r\n" if isinstance(value, int) else INTEGERS[value] for value in operation.results])


def job_ids(operation: Operation) -> bytes:
    """Return the id of the job of each command."""
    if operation.error is not None:
        return _failed(operation, b"")
    ids = [INTEGERS[value if isinstance(value, Exception) else id_of(value)] for value in operation.results]
    return b"".join(ids)


def sums(operation: Operation) -> bytes:
    """Return the sum of the results of each command."""
    if operation.error is not None:
        return _failed(operation, b":0\r\n")
    if not operation.has_errors:
        return b"".join([INTEGERS[sum(flags)] for flags in _per_command(operation)])
    return b"".join([INTEGERS[_error_in(flags) or sum(flags)] for flags in _per_command(operation)])


def _error_in(results: list[Any]) -> Exception | None:
    """Return the first error of a single message of a command."""
    return next((result for result in results if isinstance(result, Exception)), None)


def member_flags(operation: Operation) -> bytes:
    """Return one list of 1s and 0s per command."""
    if operation.error is not None:
        zeros = b"".join(b"*%d\r\n" % size + b":0\r\n" * size for size in operation.sizes)
        return zeros if isinstance(operation.error, QueueDoesNotExistError) else _failed(operation, b"")
    return b"".join(
        [
            INTEGERS[refusal]
            if operation.has_errors and (refusal := _error_in(cut)) is not None
            else b"*%d\r\n" % len(cut) + bytes(cut).replace(b"\0", b":0\r\n").replace(b"\1", b":1\r\n")
            for cut in _per_command(operation)
        ]
    )


def one_message(operation: Operation) -> bytes:
    """Return one message or null per command."""
    messages = operation.results
    if len(messages) == len(operation.sizes) == 1:
        return b"$%d\r\n%b\r\n" % (len(messages[0]), messages[0])
    null = NULL[_protocol_of(operation)]
    if operation.error is not None:
        return _failed(operation, null)
    missing = len(operation.sizes) - len(messages)
    return b"".join([b"$%d\r\n%b\r\n" % (len(m), m) for m in messages]) + null * missing


def message_or_null(operation: Operation) -> bytes:
    """Return the message that a command has waited for, or null if none has come."""
    if operation.error is not None:
        return error(operation.error)
    return bulk(operation.results[0]) if operation.results else NULL[_protocol_of(operation)]


def queue_and_message(operation: Operation) -> bytes:
    """Return the queue and the message that a command has waited for, or null if none has come."""
    if operation.error is not None:
        return error(operation.error)
    if not operation.results:
        return NULL_ARRAY[_protocol_of(operation)]
    return b"*2\r\n" + bulk(operation.name) + bulk(operation.results[0])


def _lists(operation: Operation, sign: bytes, when_empty: bytes = b"") -> bytes:
    """Return the messages of each command. `when_empty` stands for none, if the command wants some."""
    parts: list[bytes] = []
    for size, messages in zip(operation.sizes, _per_command(operation), strict=True):
        if when_empty and size and not messages:
            parts.append(when_empty)
            continue
        parts.append(b"%b%d\r\n" % (sign, len(messages)))
        parts += map(bulk, messages)
    return b"".join(parts)


def message_sets(operation: Operation) -> bytes:
    """Return the messages of each command as a set, which is an array in RESP2."""
    sign = set_sign(_protocol_of(operation))
    if operation.error is not None:
        return _failed(operation, sign + b"0\r\n")
    return _lists(operation, sign)


def message_lists(operation: Operation) -> bytes:
    """Return the messages of each command as an array, or null if there are none, as for a missing list."""
    null = NULL_ARRAY[_protocol_of(operation)]
    if operation.error is not None:
        return _failed(operation, null)
    if not operation.results and all(operation.sizes):
        return null * len(operation.sizes)
    return _lists(operation, b"*", null)


def _job(queue: bytes, result: bytes) -> bytes:
    job = ReservedJob.of(result)
    return b"*4\r\n%b:%d\r\n%b:%d\r\n" % (bulk(queue), job.id, bulk(job.message), job.reserves)


def _not_reserved(operation: Operation, null: bytes) -> bytes:
    """Return the reply to commands that failed: an error also if the queue was deleted during a wait."""
    return error(operation.error) if operation.options.waits and operation.error else _failed(operation, null)


def reserved_job(operation: Operation) -> bytes:
    """Return one reserved job or null per command."""
    null = NULL_ARRAY[_protocol_of(operation)]
    if operation.error is not None:
        return _not_reserved(operation, null)
    jobs = [_job(operation.name, result) for result in operation.results]
    return b"".join(jobs) + null * (len(operation.sizes) - len(jobs))


def reserved_jobs(operation: Operation) -> bytes:
    """Return the reserved jobs of each command as an array, or null if there are none."""
    null = NULL_ARRAY[_protocol_of(operation)]
    if operation.error is not None:
        return _not_reserved(operation, null)
    parts: list[bytes] = []
    for results in _per_command(operation):
        parts.append(b"*%d\r\n" % len(results) if results else null)
        parts += [_job(operation.name, result) for result in results]
    return b"".join(parts)


def delivered_jobs(operation: Operation) -> bytes:
    """Return [id, message, reserves, offset] of each reserved job; null for a command without any."""
    protocol = _protocol_of(operation)
    null, no_offset = NULL_ARRAY[protocol], NULL[protocol]
    if operation.error is not None:
        return _failed(operation, null)
    parts: list[bytes] = []
    for results in _per_command(operation):
        parts.append(b"*%d\r\n" % len(results) if results else null)
        for job, _, reserves, message, offset in map(ReservedJob.of, results):
            place = no_offset if offset is None else b":%d\r\n" % offset
            parts.append(b"*4\r\n:%d\r\n%b:%d\r\n%b" % (job, bulk(message), reserves, place))
    return b"".join(parts)


def acknowledged_pops(operation: Operation) -> bytes:
    """Return how many popped messages have been acknowledged; the client holds none of these."""
    if operation.error is None:
        session = cast(Caller, operation.owner).session
        ended = {job for word in operation.messages for job in ids_of(word)}
        session.reserved_jobs.forget_pops(session.database, operation.name, ended)
    return sums(operation)


def ended_reservations(operation: Operation) -> bytes:
    """Return for how many jobs of each command the event has happened; the client holds none of these."""
    if operation.error is None:
        session = cast(Caller, operation.owner).session
        for word, result in zip(operation.messages, operation.results, strict=True):
            if word.split(b" ", 2)[1] == session.job_owner and not isinstance(result, Exception):
                for job in ids_of(word):
                    session.reserved_jobs.discard_from(session.database, operation.name, job)
    return sums(operation)
