"""Commands that only look: peek, and statistics of the server, of tubes and of jobs, as in beanstalkd."""

import json
import os
import platform
import time
from functools import partial

from handlers.beanstalk import replies
from handlers.beanstalk.listener_state import is_in_use, report_on
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import FOLLOWED_VERSION, command, is_tube
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import JobInfo, id_of, word_of
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.text import printable

_COUNTED = (
    "put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve", "reserve-with-timeout", "delete",
    "release", "use", "watch", "ignore", "bury", "kick", "touch", "stats", "stats-job", "stats-tube",
    "list-tubes", "list-tube-used", "list-tubes-watched", "pause-tube",
)  # fmt: skip
_STATES = ("urgent", "ready", "reserved", "delayed", "buried")
_CLIENTS = ("connections", "producers", "workers", "waiting")
# Milliseconds, and reported as whole seconds.
_JOB_TIMES = ("age", "delay", "ttr", "time_left")
_JOB_COUNTS = ("reserves", "timeouts", "releases", "buries", "kicks")


@command("peek <id>", needs="read")
async def peek(client: BeanstalkSession, job: int) -> bytes:
    """Returns a job without reserving it: `FOUND <id> <bytes>` and the job, or `NOT_FOUND`."""
    found = await client.in_tube_of(job, verbs.PEEK_JOB, [word_of(job)])
    return _found(found[1] if found else None)


def _found(job: tuple[bytes, bytes] | None) -> bytes:
    """Return the reply to a peek that has found this job: its id and its message."""
    return b"FOUND %d %d\r\n%b\r\n" % (id_of(job[0]), len(job[1]), job[1]) if job else replies.NOT_FOUND


async def _peek_next(client: BeanstalkSession, *, state: bytes) -> bytes:
    client.permit_tube(client.used)
    return _found((await client.database.run(verbs.PEEK_JOB, client.used, [state], client=client))[0])


for _state in ("ready", "delayed", "buried"):
    command(f"peek-{_state}", needs="read", summary=f"The same, of the next {_state} job of the used tube.")(
        partial(_peek_next, state=_state.encode())
    )


@command("stats-job <id>", needs="read")
async def stats_job(client: BeanstalkSession, job: int) -> bytes:
    """Describes a job: `OK <bytes>` and YAML, or `NOT_FOUND`."""
    found = await client.in_tube_of(job, verbs.JOB_INFO, [word_of(job)])
    if found is None or (about := JobInfo.of(found[1])) is None:
        return replies.NOT_FOUND
    return replies.yaml_dictionary(
        {
            "id": job,
            "tube": found[0].decode() if is_tube(found[0]) else json.dumps(printable(found[0])),
            "state": about.state.decode(),
            "pri": about.priority,
            **{name.replace("_", "-"): getattr(about, name) // 1000 for name in _JOB_TIMES},
            "file": 0,
            **{name: getattr(about, name) for name in _JOB_COUNTS},
        }
    )


async def _infos(client: BeanstalkSession, names: list[bytes]) -> list[QueueInfo]:
    """Return what is known of the queues that exist."""
    return [one for one in await client.database.run_each(verbs.INFO, names) if isinstance(one, QueueInfo)]


def _current(queues: list[QueueInfo]) -> dict[str, object]:
    """Return the numbers of jobs by state."""
    return {f"current-jobs-{state}": sum(getattr(one, state) for one in queues) for state in _STATES}


@command("stats-tube <tube>", needs="read")
async def stats_tube(client: BeanstalkSession, name: bytes) -> bytes:
    """Describes a tube: `OK <bytes>` and YAML, or `NOT_FOUND`."""
    client.permit_tube(name)
    found = await _infos(client, [name])
    if not found and not await is_in_use(client, name):
        return replies.NOT_FOUND
    report = await report_on(client, name)
    waiting = await client.context.workers.waiting(client.database.database_number, [name])
    paused = sum(one.paused for one in found)
    return replies.yaml_dictionary(
        {
            "name": name.decode(),
            **_current(found),
            "total-jobs": sum(one.produced for one in found),
            "current-using": report.counts["current-using"],
            "current-watching": report.counts["current-watching"],
            "current-waiting": waiting[name][Line.CONSUMERS],
            "cmd-delete": report.counts["cmd-delete"],
            "cmd-pause-tube": report.counts["cmd-pause-tube"],
            "pause": max(report.pauses) if paused else 0,
            "pause-time-left": paused // 1000,
        }
    )


@command("stats", needs="read")
async def stats(client: BeanstalkSession) -> bytes:
    """Describes the server, and all jobs that the user may see: `OK <bytes>` and YAML."""
    reachable = client.database.queues(reachable=True)
    names = [queue async for queue in reachable if client.user.may_access(queue)]
    found = await _infos(client, names)
    tubes = list(filter(is_tube, names))
    report, totals = await report_on(client), await client.context.workers.totals()
    return replies.yaml_dictionary(
        {
            **_current(found),
            **{f"cmd-{name}": report.counts[name] for name in _COUNTED},
            "job-timeouts": sum(one.timeouts for one in found),
            "total-jobs": sum(one.produced for one in found),
            "max-job-size": client.listener.max_job_size,
            "current-tubes": len({*report.tubes, *tubes}),
            **{f"current-{name}": report.counts[f"current-{name}"] for name in _CLIENTS},
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
