"""Commands of workers: reserve jobs, and end or change reservations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from handlers.beanstalk import replies
from handlers.beanstalk.parser import Request
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import UINT32, UINT64, FormatError, command, numbers
from pressure_server.errors import QueueClosedError, QueueDoesNotExistError
from pressure_server.queues.in_steps import kick as kick_jobs
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import ReservedJob, claim, id_of, owned, released, word_of
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait

# In the last second of a reservation, its client is not made to wait for another job.
_SAFETY_MARGIN = 1.0
# Reserved jobs are counted as the client's memory after so many more.
_RECOUNTED = 64
_SECONDS = re.compile(rb" *([+-]?[0-9]*)")


def _event_encoder(done: bytes, *, ends: bool = True) -> Callable[[Operation], bytes]:
    """Return the encoder for an event of a job: the reply is `done` if it has happened.

    An event that was refused, or that `ends` the reservation, makes the client forget it. After an error it
    may still be reserved: then it is given up when the client leaves.
    """

    def encode(operation: Operation) -> bytes:
        client = cast(BeanstalkSession, operation.owner)
        if operation.error is not None:
            return client.error_reply(operation.error) * len(operation.sizes)
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


_ENCODERS = {reply: _event_encoder(reply) for reply in (replies.DELETED, replies.RELEASED, replies.BURIED)}
_ENCODERS[replies.TOUCHED] = _event_encoder(replies.TOUCHED, ends=False)


def _seconds(rest: bytes) -> int:
    """Parse a timeout as strtol does: what does not begin with a number is 0."""
    found = _SECONDS.match(rest)
    digits = found[1].lstrip(b"+") if found else b""
    return max(-1, min(int(digits), UINT32)) if digits.strip(b"-") else 0


def _now() -> float:
    return asyncio.get_running_loop().time()


@command(
    "reserve",
    "Reserves the next job of the watched tubes, and waits for one: `RESERVED <id> <bytes>` and the job, or "
    "`DEADLINE_SOON`.",
    needs="get",
)
def reserve(client: BeanstalkSession, _nothing: None) -> Coroutine[Any, Any, bytes] | None:
    """Reserve the next job of the watched tubes; wait for one."""
    return _reserve(client, None)


@command(
    "reserve-with-timeout <seconds>",
    "The same, but waits so long at most: then `TIMED_OUT`.",
    _seconds,
    needs="get",
)
def reserve_with_timeout(client: BeanstalkSession, seconds: int) -> Coroutine[Any, Any, bytes] | None:
    """The same, but wait so many seconds at most. A negative number waits for ever."""
    return _reserve(client, float(seconds) if seconds >= 0 else None)


def _reserve(client: BeanstalkSession, timeout: float | None) -> Coroutine[Any, Any, bytes] | None:
    client.is_worker = True
    if not client.user.has_all_queues:
        for tube in client.watched:
            client.permit_tube(tube)
    held = len(client.reserved_jobs)
    if held and held % _RECOUNTED == 0:
        client.connection.recount()
    wanted = claim(client.job_owner)
    if len(client.watched) > 1:
        return _reserve_from_many(client, wanted, timeout)
    (tube,) = client.watched
    if timeout == 0:
        # Requests in a row become one operation.
        client.submit(verbs.RESERVE, tube, [wanted], 1, _reserved)
        return None
    # A pipeline of reserves takes the ready jobs together; only then does the next one wait.
    equal = 0 if client.is_next_to_wait else client.take_equal(Request(_line(timeout)), client.may_submit - 1)
    if equal:
        client.statistics.commands[_line(timeout).split()[0].decode()] += equal
        client.submit(
            verbs.RESERVE,
            tube,
            [wanted] * (1 + equal),
            1,
            partial(_reserved_some, timeout=timeout),
            commands=1 + equal,
            wait=Wait(0),
        )
        return None
    wait = Wait(_patience(client, timeout), outlives_queue=True)
    client.submit(verbs.RESERVE, tube, [wanted], 1, _reserved, wait=wait, options=WAITS)
    client.is_next_to_wait = False
    return None


def _margin(client: BeanstalkSession) -> float:
    """Return for how many seconds the client may wait: until the last second of its first reservation."""
    return client.reserved_jobs.first_deadline(_now()) - _SAFETY_MARGIN - _now()


def _patience(client: BeanstalkSession, timeout: float | None) -> float | None:
    """Return for how many seconds a reserve waits; None for ever."""
    margin = _margin(client) if client.reserved_jobs else float("inf")
    if margin < (float("inf") if timeout is None else timeout):
        return max(0.0, margin)
    return timeout


async def _reserve_from_many(client: BeanstalkSession, wanted: bytes, timeout: float | None) -> bytes:
    client.awaits_job = True
    try:
        patience = _patience(client, timeout)
        found = await client.database.reserve(
            list(client.watched), wanted, patience, client=client, outlives_queues=True
        )
    except QueueClosedError:
        found = None
    finally:
        client.awaits_job = False
    if found is None:
        return _in_vain(client)
    job = ReservedJob.of(found[1][0])
    return replies.reserved(job.id, job.message)


def _in_vain(client: BeanstalkSession) -> bytes:
    # Timers are accurate to a millisecond.
    return replies.DEADLINE_SOON if _margin(client) <= 0.001 else replies.TIMED_OUT


def _jobs_in(operation: Operation) -> bytes:
    jobs = map(ReservedJob.of, operation.results)
    return b"".join([replies.reserved(job.id, job.message) for job in jobs])


def _reserved(operation: Operation) -> bytes:
    client = cast(BeanstalkSession, operation.owner)
    error = operation.error
    if error is not None and not isinstance(error, QueueClosedError | QueueDoesNotExistError):
        return client.error_reply(error) * len(operation.sizes)
    missing = len(operation.sizes) - len(operation.results)
    return _jobs_in(operation) + (_in_vain(client) * missing if missing else b"")


def _line(timeout: float | None) -> bytes:
    return b"reserve" if timeout is None else b"reserve-with-timeout %d" % timeout


def _reserved_some(operation: Operation, timeout: float | None) -> bytes:
    """Reply to the reserves that have a job; the others are executed again, and the first of these waits."""
    client = cast(BeanstalkSession, operation.owner)
    error = operation.error
    missing = len(operation.sizes) - len(operation.results)
    if not missing or not (error is None or isinstance(error, QueueClosedError | QueueDoesNotExistError)):
        return _reserved(operation)
    line = _line(timeout)
    client.statistics.commands[line.split()[0].decode()] -= missing
    client.execute_instead([Request(line)] * missing)
    client.is_next_to_wait = True
    return _jobs_in(operation)


@command(
    "reserve-job <id>",
    "Reserves a job that is ready, delayed or buried: `RESERVED <id> <bytes>` and the job, or `NOT_FOUND`.",
    numbers(UINT64),
    needs="get",
)
async def reserve_one(client: BeanstalkSession, arguments: tuple[int]) -> bytes:
    """Reserve a job that is ready, delayed or buried."""
    (job,) = arguments
    found = await client.in_tube_of(job, verbs.RESERVE_JOB, [word_of(job), claim(client.job_owner)])
    if not found:
        return replies.NOT_FOUND
    client.is_worker = True
    reserved = ReservedJob.of(found[1])
    return replies.reserved(reserved.id, reserved.message)


def _event(
    client: BeanstalkSession, verb: Verb, job: int, argument: bytes, reply: bytes
) -> Coroutine[Any, Any, bytes] | None:
    """Let an event happen to a job that the client has reserved."""
    queue = _queue_of_reserved(client, verb, job)
    if queue is None:
        return _event_later(client, verb, job, argument, reply)
    client.submit(verb, queue, [argument], 1, _ENCODERS[reply])
    return None


async def _event_later(
    client: BeanstalkSession, verb: Verb, job: int, argument: bytes, reply: bytes
) -> bytes:
    """Look again when all replies before this one are written: one of them may have brought the job."""
    queue = _queue_of_reserved(client, verb, job)
    if queue is None:
        return replies.NOT_FOUND
    done = await client.database.run(verb, queue, [argument], client=client)
    if done[0] != 1 or verb is not verbs.TOUCH:
        client.reserved_jobs.discard(job)
    return reply if done[0] == 1 else replies.NOT_FOUND


def _queue_of_reserved(client: BeanstalkSession, verb: Verb, job: int) -> bytes | None:
    """Return the queue of a job that the client has reserved; note when the reservation ends now."""
    held = client.reserved_jobs.find(job)
    if held is None:
        return None
    if verb is verbs.TOUCH:
        client.reserved_jobs.touch(job, _now())
    else:
        client.reserved_jobs.end(job)
    return held.queue


@command(
    "delete <id>",
    "Deletes a job that the client has reserved, or that nobody has: `DELETED` or `NOT_FOUND`.",
    numbers(UINT64),
    needs="get",
)
def delete(client: BeanstalkSession, arguments: tuple[int]) -> Coroutine[Any, Any, bytes] | None:
    """Delete a job that the client has reserved, or that nobody has."""
    (job,) = arguments
    if client.reserved_jobs.find(job) is None:
        return _delete_free(client, job)
    return _event(client, verbs.DELETE_JOB, job, owned(job, client.job_owner), replies.DELETED)


async def _delete_free(client: BeanstalkSession, job: int) -> bytes:
    done = await client.in_tube_of(job, verbs.DELETE_JOB, [owned(job, client.job_owner)])
    if done is None:
        return replies.NOT_FOUND
    client.reserved_jobs.discard(job)  # a reply before this one may have brought the job
    client.statistics.of_tube(done[0])["cmd-delete"] += 1
    return replies.DELETED


@command(
    "release <id> <pri> <delay>",
    "Makes a reserved job ready again, or delayed: `RELEASED` or `NOT_FOUND`.",
    numbers(UINT64, UINT32, UINT32),
    needs="get",
)
def release(client: BeanstalkSession, arguments: tuple[int, int, int]) -> Coroutine[Any, Any, bytes] | None:
    """Make a reserved job ready again, or delayed, with a new priority."""
    job, priority, delay = arguments
    argument = released(job, client.job_owner, priority, delay)
    return _event(client, verbs.RELEASE, job, argument, replies.RELEASED)


@command(
    "bury <id> <pri>",
    "Sets a reserved job aside until it is kicked: `BURIED` or `NOT_FOUND`.",
    numbers(UINT64, UINT32),
    needs="get",
)
def bury(client: BeanstalkSession, arguments: tuple[int, int]) -> Coroutine[Any, Any, bytes] | None:
    """Set a reserved job aside until it is kicked."""
    job, priority = arguments
    argument = owned(job, client.job_owner) + b" %d" % priority
    return _event(client, verbs.BURY, job, argument, replies.BURIED)


@command(
    "touch <id>",
    "Lets the time to run of a reserved job begin again: `TOUCHED` or `NOT_FOUND`.",
    numbers(UINT64),
    needs="get",
)
def touch(client: BeanstalkSession, arguments: tuple[int]) -> Coroutine[Any, Any, bytes] | None:
    """Let the time to run of a reserved job begin again."""
    (job,) = arguments
    return _event(client, verbs.TOUCH, job, owned(job, client.job_owner), replies.TOUCHED)


@command(
    "kick-job <id>",
    "Makes a buried or delayed job ready: `KICKED` or `NOT_FOUND`.",
    numbers(UINT64),
    needs="get",
)
async def kick_one(client: BeanstalkSession, arguments: tuple[int]) -> bytes:
    """Make a buried or delayed job ready."""
    (job,) = arguments
    return (
        replies.KICKED if await client.in_tube_of(job, verbs.KICK_JOB, [word_of(job)]) else replies.NOT_FOUND
    )


def _count(rest: bytes) -> int:
    """Parse a count as strtoul does: the rest of the line is ignored, and a negative one is huge."""
    found = re.match(rb" +([+-]?)([0-9]+)", rest)
    if found is None:
        raise FormatError
    count = min(int(found[2][:20]), UINT32)
    return UINT32 if count and found[1] == b"-" else count


@command(
    "kick <bound>",
    "Makes up to so many buried jobs of the used tube ready, or delayed jobs if none are buried: "
    "`KICKED <count>`.",
    _count,
    needs="get",
)
async def kick(client: BeanstalkSession, most: int) -> bytes:
    """Make up to `most` buried jobs of the used tube ready, or delayed jobs if none are buried."""
    client.permit_tube(client.used)
    try:
        return replies.kicked(await kick_jobs(client.database, client.used, most, client))
    except QueueDoesNotExistError:
        return replies.kicked(0)
