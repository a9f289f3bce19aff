"""Commands of workers: reserve jobs, and end or change reservations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, cast

from handlers.beanstalk import replies
from handlers.beanstalk.client import BeanstalkClient
from handlers.beanstalk.commands.encoders import event
from handlers.beanstalk.table import UINT32, UINT64, FormatError, command, numbers
from pressure_server.errors import QueueClosedError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import ReservedJob, claim, owned, released
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait

# In the last second of a reservation, its client is not made to wait for another job.
_SAFETY_MARGIN = 1.0
# Reserved jobs are counted as the client's memory after so many more.
_RECOUNTED = 64
_SECONDS = re.compile(rb" *([+-]?[0-9]*)")

_ENCODERS = {
    reply: event(reply) for reply in (replies.DELETED, replies.RELEASED, replies.BURIED, replies.TOUCHED)
}


def _seconds(rest: bytes) -> int:
    """Parse a timeout as strtol does: what does not begin with a number is 0."""
    found = _SECONDS.match(rest)
    digits = found[1].lstrip(b"+") if found else b""
    return max(-1, min(int(digits), UINT32)) if digits.strip(b"-") else 0


def _now() -> float:
    return asyncio.get_running_loop().time()


@command("reserve", needs="get")
def reserve(client: BeanstalkClient, _nothing: None) -> Coroutine[Any, Any, bytes] | None:
    """Reserve the next job of the watched tubes; wait for one."""
    return _reserve(client, None)


@command("reserve-with-timeout", _seconds, needs="get")
def reserve_with_timeout(client: BeanstalkClient, seconds: int) -> Coroutine[Any, Any, bytes] | None:
    """The same, but wait so many seconds at most. A negative number waits for ever."""
    return _reserve(client, float(seconds) if seconds >= 0 else None)


def _reserve(client: BeanstalkClient, timeout: float | None) -> Coroutine[Any, Any, bytes] | None:
    client.is_worker = True
    if not client.user.has_all_queues:
        for tube in client.watched:
            client.permit_tube(tube)
    if len(client.reserved_jobs) % _RECOUNTED == 0:
        client.recount()
    margin = client.reserved_jobs.first_deadline(_now()) - _SAFETY_MARGIN - _now()
    if margin <= 0:
        client.reply(replies.DEADLINE_SOON)
        return None
    if margin < (float("inf") if timeout is None else timeout):
        timeout = margin
    wanted = claim(client.job_owner)
    if len(client.watched) == 1:
        (tube,) = client.watched
        if timeout == 0:
            # Requests in a row become one operation.
            client.submit(verbs.RESERVE, tube, [wanted], 1, _reserved)
            return None
        client.submit(verbs.RESERVE, tube, [wanted], 1, _reserved, wait=Wait(timeout), options=WAITS)
        return None
    return _reserve_from_many(client, wanted, timeout)


async def _reserve_from_many(client: BeanstalkClient, wanted: bytes, timeout: float | None) -> bytes:
    try:
        found = await client.database.reserve(list(client.watched), wanted, timeout, client=client)
    except QueueClosedError:
        found = None
    if found is None:
        return _in_vain(client)
    job = ReservedJob.of(found[1][0])
    return replies.reserved(job.id, job.message)


def _in_vain(client: BeanstalkClient) -> bytes:
    margin = client.reserved_jobs.first_deadline(_now()) - _SAFETY_MARGIN - _now()
    return replies.DEADLINE_SOON if margin <= 0 else replies.TIMED_OUT


def _reserved(operation: Operation) -> bytes:
    client = cast(BeanstalkClient, operation.owner)
    if operation.error is not None and not isinstance(
        operation.error, QueueClosedError | QueueDoesNotExistError
    ):
        return client.error_reply(operation.error) * len(operation.sizes)
    jobs = [ReservedJob.of(result) for result in operation.results]
    missing = len(operation.sizes) - len(jobs)
    found = [replies.reserved(job.id, job.message) for job in jobs]
    return b"".join(found) + (_in_vain(client) * missing if missing else b"")


async def _in_tube_of(
    client: BeanstalkClient, verb: Verb, job: int, arguments: list[bytes]
) -> list[Any] | None:
    """Do something to a job, whichever tube it is in. Return None if no tube has it."""
    tube = await client.index.tube(job)
    if tube is None:
        return None
    client.permit_tube(tube)
    results: list[Any] = await client.database.run(verb, tube, arguments, client=client)
    return results


@command("reserve-job", numbers(UINT64), needs="get")
async def reserve_one(client: BeanstalkClient, arguments: tuple[int]) -> bytes:
    """Reserve a job that is ready, delayed or buried."""
    (job,) = arguments
    client.is_worker = True
    found = await _in_tube_of(client, verbs.RESERVE_JOB, job, [b"%d" % job, claim(client.job_owner)])
    if not found:
        return replies.NOT_FOUND
    reserved = ReservedJob.of(found[0])
    return replies.reserved(reserved.id, reserved.message)


def _event(
    client: BeanstalkClient, verb: Verb, job: bytes, argument: bytes, reply: bytes
) -> Coroutine[Any, Any, bytes] | None:
    """Let an event happen to a job that the client has reserved."""
    queue = _queue_of_reserved(client, job, verb)
    if queue is None:
        return _event_later(client, verb, job, argument, reply)
    client.submit(verb, queue, [argument], 1, _ENCODERS[reply])
    return None


async def _event_later(
    client: BeanstalkClient, verb: Verb, job: bytes, argument: bytes, reply: bytes
) -> bytes:
    """Look again when all replies before this one are written: one of them may have brought the job."""
    queue = _queue_of_reserved(client, job, verb)
    if queue is None:
        return replies.NOT_FOUND
    done = await client.database.run(verb, queue, [argument], client=client)
    return reply if done[0] == 1 else replies.NOT_FOUND


def _queue_of_reserved(client: BeanstalkClient, job: bytes, verb: Verb) -> bytes | None:
    """Return the queue of a job that the client has reserved. Note that the verb ends the reservation."""
    held = client.reserved_jobs.find(job)
    if held is None:
        return None
    if verb is verbs.TOUCH:
        client.reserved_jobs.touch(job, _now())
    else:
        client.reserved_jobs.discard(job)
    return held.queue


@command("delete", numbers(UINT64), needs="get")
def delete(client: BeanstalkClient, arguments: tuple[int]) -> Coroutine[Any, Any, bytes] | None:
    """Delete a job that the client has reserved, or that nobody has."""
    job = b"%d" % arguments[0]
    held = client.reserved_jobs.find(job)
    if held is None:
        return _delete_free(client, arguments[0])
    client.statistics.of_tube(held.queue)["cmd-delete"] += 1
    return _event(client, verbs.DELETE_JOB, job, owned(job, client.job_owner), replies.DELETED)


async def _delete_free(client: BeanstalkClient, job: int) -> bytes:
    client.reserved_jobs.discard(b"%d" % job)  # a reply before this one may have brought the job
    done = await _in_tube_of(client, verbs.DELETE_JOB, job, [owned(b"%d" % job, client.job_owner)])
    if not done or done[0] != 1:
        return replies.NOT_FOUND
    tube = client.index.known_tube(job)
    if tube is not None:
        client.statistics.of_tube(tube)["cmd-delete"] += 1
    return replies.DELETED


@command("release", numbers(UINT64, UINT32, UINT32), needs="get")
def release(client: BeanstalkClient, arguments: tuple[int, int, int]) -> Coroutine[Any, Any, bytes] | None:
    """Make a reserved job ready again, or delayed, with a new priority."""
    number, priority, delay = arguments
    job = b"%d" % number
    argument = released(job, client.job_owner, priority, delay)
    return _event(client, verbs.RELEASE, job, argument, replies.RELEASED)


@command("bury", numbers(UINT64, UINT32), needs="get")
def bury(client: BeanstalkClient, arguments: tuple[int, int]) -> Coroutine[Any, Any, bytes] | None:
    """Set a reserved job aside until it is kicked."""
    number, priority = arguments
    job = b"%d" % number
    argument = owned(job, client.job_owner) + b" %d" % priority
    return _event(client, verbs.BURY, job, argument, replies.BURIED)


@command("touch", numbers(UINT64), needs="get")
def touch(client: BeanstalkClient, arguments: tuple[int]) -> Coroutine[Any, Any, bytes] | None:
    """Let the time to run of a reserved job begin again."""
    job = b"%d" % arguments[0]
    return _event(client, verbs.TOUCH, job, owned(job, client.job_owner), replies.TOUCHED)


@command("kick-job", numbers(UINT64), needs="get")
async def kick_one(client: BeanstalkClient, arguments: tuple[int]) -> bytes:
    """Make a buried or delayed job ready."""
    done = await _in_tube_of(client, verbs.KICK_JOB, arguments[0], [b"%d" % arguments[0]])
    return replies.KICKED if done and done[0] == 1 else replies.NOT_FOUND


def _count(rest: bytes) -> int:
    """Parse a count as strtoul does: the rest of the line is ignored, and a negative one is huge."""
    found = re.match(rb" +(-?)([0-9]+)", rest)
    if found is None:
        raise FormatError
    return UINT32 if found[1] else min(int(found[2][:20]), UINT32)


@command("kick", _count, needs="get")
async def kick(client: BeanstalkClient, most: int) -> bytes:
    """Make up to so many buried jobs of the used tube ready; if none are buried, delayed ones."""
    client.permit_tube(client.used)
    try:
        done = await client.database.run(verbs.KICK, client.used, [b"%d" % most], client=client)
    except QueueDoesNotExistError:
        return replies.kicked(0)
    return replies.kicked(done[0])
