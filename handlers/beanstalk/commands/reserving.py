"""Commands of workers: reserve jobs, and end or change reservations."""

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, cast

from handlers.beanstalk import replies
from handlers.beanstalk.parser import Request
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import UINT32, command
from pressure_server.errors import QueueClosedError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import ReservedJob, claim, id_of, owned, released, word_of
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.queue_operations import kick as kick_jobs

# In the last second of a reservation, its client is not made to wait for another job.
_SAFETY_MARGIN = 1.0
# Reserved jobs are counted as the client's memory after so many more.
_RECOUNTED = 64
_SECONDS = re.compile(rb" *([+-]?[0-9]*)")
# The events that a client lets happen to a job, and the replies if they have happened.
_DONE = {
    verbs.DELETE_JOB: replies.DELETED,
    verbs.RELEASE: b"RELEASED\r\n",
    verbs.BURY: b"BURIED\r\n",
    verbs.TOUCH: b"TOUCHED\r\n",
}


def _ended(operation: Operation) -> bytes:
    """Return the replies to an event of jobs."""
    client, verb = cast(BeanstalkSession, operation.owner), operation.verb
    if operation.error is not None:
        return client.error_reply(operation.error) * len(operation.sizes)
    if verb is verbs.DELETE_JOB:
        client.listener.of_tube(operation.name)["cmd-delete"] += operation.results.count(1)
    jobs = zip(operation.messages, operation.results, strict=True)
    return b"".join([_outcome(client, verb, id_of(job[: job.index(b" ")]), result) for job, result in jobs])


def _outcome(client: BeanstalkSession, verb: Verb, job: int, result: Any) -> bytes:
    """Return the reply to an event of a job.

    An event that was refused, or that ends the reservation, makes the client forget it. After an error it
    may still be reserved: then it is given up when the client leaves.
    """
    if isinstance(result, Exception):
        return client.error_reply(result)
    if result != 1 or verb is not verbs.TOUCH:
        client.reserved_jobs.discard(job)
    return _DONE[verb] if result == 1 else replies.NOT_FOUND


def _seconds(rest: bytes) -> tuple[float | None]:
    """Parse a timeout as strtol does: what does not begin with a number is 0; a negative one is no limit."""
    found = _SECONDS.match(rest)
    digits = found[1].lstrip(b"+") if found else b""
    seconds = min(int(digits), UINT32) if digits.strip(b"-") else 0
    return (float(seconds) if seconds >= 0 else None,)


def _now() -> float:
    return asyncio.get_running_loop().time()


@command(
    "reserve-with-timeout <seconds>",
    needs="get",
    parse=_seconds,
    summary="The same, but waits so long at most: then `TIMED_OUT`.",
)
@command("reserve", needs="get")
def reserve(client: BeanstalkSession, timeout: float | None = None) -> Coroutine[Any, Any, bytes] | None:
    """Reserves the next job of the watched tubes, and waits for one.

    The reply is `RESERVED <id> <bytes>` and the job, or `DEADLINE_SOON`.
    """
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
    again = Request(b"reserve" if timeout is None else b"reserve-with-timeout %d" % timeout)
    equal = 0 if client.is_next_to_wait else client.take_equal(again, client.may_submit - 1)
    if equal:
        client.listener.commands[again.line.split()[0].decode()] += equal
        encode = partial(_reserved, again=again)
        wanted_by_all = [wanted] * (1 + equal)
        client.submit(verbs.RESERVE, tube, wanted_by_all, 1, encode, commands=1 + equal, wait=Wait(0))
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
    margin = _margin(client) if client.reserved_jobs else inf
    if margin < (inf if timeout is None else timeout):
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
    return _in_vain(client) if found is None else replies.reserved(ReservedJob.of(found[1][0]))


def _in_vain(client: BeanstalkSession) -> bytes:
    # Timers are accurate to a millisecond.
    return b"DEADLINE_SOON\r\n" if _margin(client) <= 0.001 else replies.TIMED_OUT


def _reserved(operation: Operation, again: Request | None = None) -> bytes:
    """Reply to reserves. If they may run `again`, those without a job do, and the first of these waits."""
    client, error = cast(BeanstalkSession, operation.owner), operation.error
    if error is not None and not isinstance(error, QueueClosedError | QueueDoesNotExistError):
        return client.error_reply(error) * len(operation.sizes)
    jobs = b"".join(map(replies.reserved, map(ReservedJob.of, operation.results)))
    missing = len(operation.sizes) - len(operation.results)
    if not missing:
        return jobs
    if again is None:
        return jobs + _in_vain(client) * missing
    client.listener.commands[again.line.split()[0].decode()] -= missing
    client.execute_instead([again] * missing)
    client.is_next_to_wait = True
    return jobs


@command("reserve-job <id>", needs="get")
async def reserve_one(client: BeanstalkSession, job: int) -> bytes:
    """Reserves a job that is ready, delayed or buried.

    The reply is `RESERVED <id> <bytes>` and the job, or `NOT_FOUND`.
    """
    found = await client.in_tube_of(job, verbs.RESERVE_JOB, [word_of(job), claim(client.job_owner)])
    if not found:
        return replies.NOT_FOUND
    client.is_worker = True
    return replies.reserved(ReservedJob.of(found[1]))


def _event(
    client: BeanstalkSession, verb: Verb, job: int, argument: bytes
) -> Coroutine[Any, Any, bytes] | None:
    """Let an event happen to a job that the client has reserved; also delete a job that nobody has."""
    queue = _queue_of_reserved(client, verb, job)
    if queue is None:
        later = _delete_free if verb is verbs.DELETE_JOB else _event_later
        return later(client, verb, job, argument)
    client.submit(verb, queue, [argument], 1, _ended)
    return None


async def _event_later(client: BeanstalkSession, verb: Verb, job: int, argument: bytes) -> bytes:
    """Look again when all replies before this one are written: one of them may have brought the job."""
    queue = _queue_of_reserved(client, verb, job)
    if queue is None:
        return replies.NOT_FOUND
    (result,) = await client.database.run(verb, queue, [argument], client=client)
    return _outcome(client, verb, job, result)


async def _delete_free(client: BeanstalkSession, verb: Verb, job: int, argument: bytes) -> bytes:
    done = await client.in_tube_of(job, verb, [argument])
    if done is None:
        return replies.NOT_FOUND
    client.reserved_jobs.discard(job)  # a reply before this one may have brought the job
    client.listener.of_tube(done[0])["cmd-delete"] += 1
    return replies.DELETED


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


@command("delete <id>", needs="get")
def delete(client: BeanstalkSession, job: int) -> Coroutine[Any, Any, bytes] | None:
    """Deletes a job that the client has reserved, or that nobody has: `DELETED` or `NOT_FOUND`."""
    return _event(client, verbs.DELETE_JOB, job, owned(job, client.job_owner))


@command("release <id> <pri> <delay>", needs="get")
def release(client: BeanstalkSession, job: int, pri: int, delay: int) -> Coroutine[Any, Any, bytes] | None:
    """Makes a reserved job ready again, or delayed: `RELEASED` or `NOT_FOUND`."""
    return _event(client, verbs.RELEASE, job, released(job, client.job_owner, pri, delay))


@command("bury <id> <pri>", needs="get")
def bury(client: BeanstalkSession, job: int, priority: int) -> Coroutine[Any, Any, bytes] | None:
    """Sets a reserved job aside until it is kicked: `BURIED` or `NOT_FOUND`."""
    return _event(client, verbs.BURY, job, owned(job, client.job_owner) + b" %d" % priority)


@command("touch <id>", needs="get")
def touch(client: BeanstalkSession, job: int) -> Coroutine[Any, Any, bytes] | None:
    """Lets the time to run of a reserved job begin again: `TOUCHED` or `NOT_FOUND`."""
    return _event(client, verbs.TOUCH, job, owned(job, client.job_owner))


@command("kick-job <id>", needs="get")
async def kick_one(client: BeanstalkSession, job: int) -> bytes:
    """Makes a buried or delayed job ready: `KICKED` or `NOT_FOUND`."""
    found = await client.in_tube_of(job, verbs.KICK_JOB, [word_of(job)])
    return b"KICKED\r\n" if found else replies.NOT_FOUND


def _count(rest: bytes) -> tuple[int]:
    """Parse a count as strtoul does: the rest of the line is ignored, and a negative one is huge."""
    found = re.match(rb" +([+-]?)([0-9]+)", rest)
    if found is None:
        raise replies.RefusedError(replies.BAD_FORMAT)
    count = min(int(found[2][:20]), UINT32)
    return (UINT32 if count and found[1] == b"-" else count,)


@command("kick <bound>", needs="get", parse=_count)
async def kick(client: BeanstalkSession, most: int) -> bytes:
    """Makes at most `bound` buried jobs of the used tube ready, or delayed jobs if none are buried.

    The reply is `KICKED <count>`.
    """
    client.permit_tube(client.used)
    kicked = 0
    with suppress(QueueDoesNotExistError):
        kicked = await kick_jobs(client.database, client.used, most, client)
    return b"KICKED %d\r\n" % kicked
