"""Encoders: each returns the replies of an ended operation, one for each command that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from handlers.beanstalk import replies
from handlers.beanstalk.session import BeanstalkSession
from pressure_server.queues.operations.jobs import ReservedJob, id_of
from pressure_server.queues.operations.operation import Operation


def _client_of(operation: Operation) -> BeanstalkSession:
    return cast(BeanstalkSession, operation.owner)


def _failed(operation: Operation) -> bytes:
    reason = operation.error
    if reason is None:
        raise ValueError("the operation has not failed")
    return _client_of(operation).error_reply(reason) * len(operation.sizes)


def inserted(operation: Operation) -> bytes:
    """Return a reply for each put."""
    if operation.error is not None:
        return _failed(operation)
    results = operation.results
    if not any(isinstance(job, Exception) for job in results):
        return b"INSERTED %d\r\n" * len(results) % tuple([int(job, 16) for job in results])
    client = _client_of(operation)
    return b"".join(
        [
            client.error_reply(job) if isinstance(job, Exception) else b"INSERTED %d\r\n" % id_of(job)
            for job in results
        ]
    )


def reserved_job(operation: Operation) -> bytes:
    """Return the job that was reserved by its id."""
    if operation.error is not None:
        return _failed(operation)
    if not operation.results:
        return replies.NOT_FOUND
    job = ReservedJob.of(operation.results[0])
    return replies.reserved(job.id, job.message)


def event(done: bytes, *, ends: bool = True) -> Callable[[Operation], bytes]:
    """Return the encoder for an event of a job: the reply is `done` if it has happened.

    An event that was refused, or that `ends` the reservation, makes the client forget it. After an error it
    may still be reserved: then it is given up when the client leaves.
    """

    def encode(operation: Operation) -> bytes:
        if operation.error is not None:
            return _failed(operation)
        client = _client_of(operation)
        if done == replies.DELETED:
            client.statistics.of_tube(operation.name)["cmd-delete"] += operation.results.count(1)
        for job, result in zip(operation.messages, operation.results, strict=True):
            if not isinstance(result, Exception) and (ends or result != 1):
                client.reserved_jobs.discard(id_of(job[: job.index(b" ")]))
        return b"".join(
            [
                client.error_reply(result)
                if isinstance(result, Exception)
                else (done if result == 1 else replies.NOT_FOUND)
                for result in operation.results
            ]
        )

    return encode
