"""Commands that only look: peek, and statistics of the server, of tubes and of jobs, as in beanstalkd."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from functools import partial

from handlers.beanstalk import replies
from handlers.beanstalk.reports import is_in_use, report_on_all, report_on_tube
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import FOLLOWED_VERSION, UINT64, command, is_tube, numbers, tube
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import JobInfo, id_of, word_of
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.operations.queue_info import QueueInfo

_COUNTED = (
    "put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve", "reserve-with-timeout", "delete",
    "release", "use", "watch", "ignore", "bury", "kick", "touch", "stats", "stats-job", "stats-tube",
    "list-tubes", "list-tube-used", "list-tubes-watched", "pause-tube",
)  # fmt: skip
_STATES = ("urgent", "ready", "reserved", "delayed", "buried")


@command(
    "peek <id>",
    "Returns a job without reserving it: `FOUND <id> <bytes>` and the job, or `NOT_FOUND`.",
    numbers(UINT64),
    needs="read",
)
async def peek(client: BeanstalkSession, arguments: tuple[int]) -> bytes:
    """Return a job by its id."""
    (job,) = arguments
    found = await client.in_tube_of(job, verbs.PEEK_JOB, [word_of(job)])
    return replies.found(id_of(found[1][0]), found[1][1]) if found else replies.NOT_FOUND


async def _peek(client: BeanstalkSession, tube: bytes, which: bytes) -> bytes:
    client.permit_tube(tube)
    (found,) = await client.database.run(verbs.PEEK_JOB, tube, [which], client=client)
    return replies.found(id_of(found[0]), found[1]) if found else replies.NOT_FOUND


async def _peek_next(client: BeanstalkSession, _nothing: None, *, state: bytes) -> bytes:
    return await _peek(client, client.used, state)


for _state in ("ready", "delayed", "buried"):
    command(f"peek-{_state}", f"The same, of the next {_state} job of the used tube.", needs="read")(
        partial(_peek_next, state=_state.encode())
    )


def _jobs_of(about: QueueInfo) -> dict[str, int]:
    """Return the numbers of jobs by state."""
    return {state: getattr(about, state) for state in _STATES}


def _current(counts: dict[str, int]) -> dict[str, object]:
    return {f"current-jobs-{state}": counts.get(state, 0) for state in _STATES}


@command(
    "stats-job <id>",
    "Describes a job: `OK <bytes>` and YAML, or `NOT_FOUND`.",
    numbers(UINT64),
    needs="read",
)
async def stats_job(client: BeanstalkSession, arguments: tuple[int]) -> bytes:
    """Describe a job. Times are in whole seconds."""
    (job,) = arguments
    found = await client.in_tube_of(job, verbs.JOB_INFO, [word_of(job)])
    about = JobInfo.of(found[1]) if found else None
    if found is None or about is None:
        return replies.NOT_FOUND
    return replies.yaml_dictionary(
        {
            "id": job,
            "tube": found[0] if is_tube(found[0]) else replies.quoted(found[0]),
            "state": about.state,
            "pri": about.priority,
            "age": about.age // 1000,
            "delay": about.delay // 1000,
            "ttr": about.ttr // 1000,
            "time-left": about.time_left // 1000,
            "file": 0,
            "reserves": about.reserves,
            "timeouts": about.timeouts,
            "releases": about.releases,
            "buries": about.buries,
            "kicks": about.kicks,
        }
    )


@command("stats-tube <tube>", "Describes a tube: `OK <bytes>` and YAML, or `NOT_FOUND`.", tube, needs="read")
async def stats_tube(client: BeanstalkSession, name: bytes) -> bytes:
    """Describe a tube."""
    client.permit_tube(name)
    (about,) = await client.database.run_each(verbs.INFO, [name])
    if isinstance(about, Exception) and not await is_in_use(client, name):
        return replies.NOT_FOUND
    report = await report_on_tube(client, name)
    waiting = await client.context.workers.waiting(client.database.database_number, [name])
    exists = isinstance(about, QueueInfo)
    paused = about.paused if exists else 0
    return replies.yaml_dictionary(
        {
            "name": name,
            **_current(_jobs_of(about) if exists else {}),
            "total-jobs": about.produced if exists else 0,
            "current-using": report.using,
            "current-watching": report.watching,
            "current-waiting": waiting[name][Line.CONSUMERS],
            "cmd-delete": report.commands["cmd-delete"],
            "cmd-pause-tube": report.commands["cmd-pause-tube"],
            "pause": report.pause if paused else 0,
            "pause-time-left": paused // 1000,
        }
    )


@command(
    "stats", "Describes the server, and all jobs that the user may see: `OK <bytes>` and YAML.", needs="read"
)
async def stats(client: BeanstalkSession, _nothing: None) -> bytes:
    """Describe the server, and count the jobs in queues that can be reached and that the user may access."""
    reachable = client.database.queues(reachable=True)
    names = [queue async for queue in reachable if client.user.may_access(queue)]
    jobs: Counter[str] = Counter()
    total = timeouts = 0
    for about in await client.database.run_each(verbs.INFO, names):
        if isinstance(about, QueueInfo):
            jobs.update(_jobs_of(about))
            total += about.produced
            timeouts += about.timeouts
    tubes = list(filter(is_tube, names))
    report, totals = await report_on_all(client), await client.context.workers.totals()
    return replies.yaml_dictionary(
        {
            **_current(jobs),
            **{f"cmd-{name}": report.commands[name] for name in _COUNTED},
            "job-timeouts": timeouts,
            "total-jobs": total,
            "max-job-size": client.max_job_size,
            "current-tubes": len(report.tubes.union(tubes)),
            "current-connections": report.connections,
            "current-producers": report.producers,
            "current-workers": report.workers,
            "current-waiting": report.waiting,
            "total-connections": totals.accepted,
            "pid": os.getpid(),
            "version": f'"{FOLLOWED_VERSION}"',
            "rusage-utime": f"{totals.user_seconds:.6f}",
            "rusage-stime": f"{totals.system_seconds:.6f}",
            "uptime": int(time.time() - client.context.started),
            "binlog-oldest-index": 0,
            "binlog-current-index": 0,
            "binlog-records-migrated": 0,
            "binlog-records-written": 0,
            "binlog-max-size": 10485760,
            "draining": str(client.context.is_draining).lower(),
            "id": client.context.broker.identity.rpartition(":")[2],
            "hostname": platform.node(),
            "os": platform.version(),
            "platform": platform.machine(),
            # Not in beanstalkd: queues that other clients have given names that no tube can have.
            "current-unlisted-queues": len(names) - len(tubes),
        }
    )
