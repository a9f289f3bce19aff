"""The rules of beanstalkd 1.12 for several clients, in memory: which client receives which reply.

A World follows beanstalkd exactly, also in what is left open by its protocol. `Rules` are the two points in
which the server differs on purpose (docs/reference/beanstalk.md). Time passes only in the step `elapse`: all
short times of a World (of one second) end there, and a program has at most one of these, or several waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

CLOSED = "(closed)"
SHORT = 1
_NOT_FOUND = "NOT_FOUND"
# Words after the command that name a job.
OF_JOBS = {"release", "bury", "kick-job", "delete", "touch", "reserve-job", "stats-job", "peek"}
LEAVING = {"quit", "close", "reset"}


class Rules(NamedTuple):
    """How waiting clients are served.

    `in_order`: the client that has waited longest is first. beanstalkd takes clients from an array in which
    the last client moves to the place of one that leaves.
    `best_of_several`: when a command makes several jobs ready, the best job is served first. beanstalkd
    serves each job when it becomes ready.
    """

    in_order: bool
    best_of_several: bool


BEANSTALKD = Rules(in_order=False, best_of_several=False)
SERVER = Rules(in_order=True, best_of_several=True)


class Step(NamedTuple):
    """What a client does: a command with its arguments, or `connect`, `close`, `reset`, `elapse`."""

    client: int
    command: str
    arguments: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        client = [f"{self.client}:"] if self.client >= 0 else []
        return " ".join(map(str, (*client, self.command, *self.arguments)))

    @property
    def job(self) -> str | None:
        """The job that the command is about."""
        return str(self.arguments[0]) if self.command in OF_JOBS else None

    @property
    def starts_time(self) -> bool:
        """Whether a short time may begin with the command, or later because of the job that it puts."""
        numbers = {"put": (2, 3), "release": (2,), "pause-tube": (1,), "reserve-with-timeout": (0,)}
        return any(self.arguments[at] == SHORT for at in numbers.get(self.command, ()))


@dataclass
class _Job:
    name: str
    number: int
    tube: str
    priority: int
    delay: int
    ttr: int
    state: str = "ready"
    holder: int | None = None
    since: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("reserves", "timeouts", "releases", "buries", "kicks"), 0)
    )

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number

    @property
    def has_short_time(self) -> bool:
        return (self.state == "delayed" and self.delay == SHORT) or (
            self.state == "reserved" and self.ttr == SHORT
        )


@dataclass
class _Client:
    number: int
    used: str
    watched: list[str]
    waits: bool = False
    has_timeout: bool = False
    since: int = 0
    held: list[str] = field(default_factory=list)
    quits: bool = False
    is_gone: bool = False


class _Tube:
    def __init__(self) -> None:
        self.pause = 0
        self.waiting: list[int] = []
        self.last = 0

    def remove(self, client: int) -> None:
        if client in self.waiting:
            self._delete(self.waiting.index(client))

    def take(self) -> int:
        self.last %= len(self.waiting)
        client = self._delete(self.last)
        self.last += 1
        return client

    def _delete(self, at: int) -> int:
        client = self.waiting[at]
        self.waiting[at] = self.waiting[-1]
        self.waiting.pop()
        return client


class World:
    """Tubes, jobs and clients. Client 0 watches all tubes and never reserves."""

    def __init__(self, rules: Rules, tubes: Iterable[str]) -> None:
        self.rules = rules
        self.tubes = {name: _Tube() for name in tubes}
        self.jobs: dict[str, _Job] = {}
        self.clients = [_Client(0, next(iter(self.tubes)), list(self.tubes))]
        self._now = 0
        self._replies: dict[int, list[str]] = {}
        self._leaving: list[_Client] = []
        # The tubes in which the step has made jobs ready.
        self._made_ready: set[str] = set()
        # Whether the step's replies depend on what the server does first.
        self.is_open = False

    def do(self, step: Step) -> dict[int, list[str]]:
        """Do a step. Return the replies by client."""
        self._now += 1
        self._replies = {}
        self._made_ready.clear()
        self.is_open = False
        command: Callable[..., str | None] = getattr(self, "_" + step.command.replace("-", "_"))
        if step.command in ("connect", "elapse"):
            command(*step.arguments)
        else:
            client = self.clients[step.client]
            reply = command(client, *step.arguments)
            if reply is not None:
                self._replies.setdefault(step.client, []).append(reply)
        self._serve()
        while self._leaving:
            self._leave(self._leaving.pop(0))
            self._serve()
        return self._replies

    def would_be_open(self, step: Step) -> bool:
        """Return whether the step's replies would depend on what the server does first."""
        if not any(client.waits for client in self.clients):
            return False
        if step.command not in LEAVING and not any(client.quits for client in self.clients):
            return False
        world = deepcopy(self)
        world.do(step)
        return world.is_open

    def can_act(self, client: int) -> bool:
        """Return whether the client exists and does not wait."""
        return client < len(self.clients) and not (
            self.clients[client].waits or self.clients[client].quits or self.clients[client].is_gone
        )

    def watchers(self, tube: str) -> int:
        """Return how many clients watch the tube."""
        return sum(tube in client.watched for client in self.clients if not client.is_gone)

    def times(self) -> list[str]:
        """Return the short times that run: `job`, `pause` or `wait`."""
        found = ["pause" for tube in self.tubes.values() if tube.pause == SHORT]
        found += ["wait" for client in self.clients if client.waits and client.has_timeout]
        return found + ["job"] * len(self.jobs_with_short_times())

    def jobs_with_short_times(self) -> list[str]:
        """Return the jobs whose delay or time to run ends in `elapse`."""
        return [job.name for job in self.jobs.values() if job.has_short_time]

    def has_short_job(self) -> bool:
        """Return whether a job has a short time to run, reserved or not."""
        return any(job.ttr == SHORT for job in self.jobs.values())

    def holders_of_short_jobs(self) -> list[int]:
        """Return the clients whose reservations end in `elapse`."""
        return [job.holder for job in self.jobs.values() if job.holder is not None and job.ttr == SHORT]

    # -- serving waiting clients

    def _best(self, tubes: Iterable[str], *, paused: bool = False) -> _Job | None:
        ready = [
            job
            for job in self.jobs.values()
            if job.state == "ready" and job.tube in tubes and (paused or not self.tubes[job.tube].pause)
        ]
        return min(ready, key=lambda job: job.rank, default=None)

    def _serve(self) -> None:
        if self.rules.in_order:
            for client in sorted((each for each in self.clients if each.waits), key=lambda each: each.since):
                job = self._best(client.watched)
                if job is not None:
                    # Jobs of several tubes come back one by one, and those of a client that quits at once.
                    self.is_open |= len(self._made_ready.intersection(client.watched)) > 1 or bool(
                        self._leaving
                    )
                    self._serve_with(client, job)
        else:
            while job := self._best([name for name, tube in self.tubes.items() if tube.waiting]):
                self._serve_with(self.clients[self.tubes[job.tube].take()], job)

    def _serve_with(self, client: _Client, job: _Job) -> None:
        self._stop_waiting(client)
        self._replies.setdefault(client.number, []).append(self._reserve_for(client, job))
        if client.quits:
            self._leaving.append(client)

    def _reserve_for(self, client: _Client, job: _Job) -> str:
        job.state, job.holder = "reserved", client.number
        job.counts["reserves"] += 1
        client.held.append(job.name)
        return f"RESERVED {job.name}"

    def _stop_waiting(self, client: _Client) -> None:
        client.waits = False
        for tube in self.tubes.values():
            tube.remove(client.number)

    def _make_ready(self, job: _Job) -> None:
        job.state, job.holder = "ready", None
        self._made_ready.add(job.tube)
        if not self.rules.best_of_several:
            self._serve()

    def _leave(self, client: _Client) -> None:
        client.is_gone = True
        self._stop_waiting(client)
        self._replies.setdefault(client.number, []).append(CLOSED)
        for name in client.held:
            self._make_ready(self.jobs[name])
        client.held.clear()

    # -- steps

    def _connect(self, tube: str) -> None:
        self.clients.append(_Client(len(self.clients), tube, [tube]))

    def _elapse(self) -> None:
        for tube in self.tubes.values():
            if tube.pause == SHORT:
                tube.pause = 0
                self._serve()
        for job in list(self.jobs.values()):
            if not job.has_short_time:
                continue
            if job.holder is not None:
                self.clients[job.holder].held.remove(job.name)
                job.counts["timeouts"] += 1
            self._make_ready(job)
        for client in sorted(self.clients, key=lambda each: each.since):
            if client.waits and client.has_timeout:
                self._stop_waiting(client)
                self._replies.setdefault(client.number, []).append("TIMED_OUT")
                if client.quits:
                    self._leaving.append(client)

    def _quit(self, client: _Client) -> None:
        client.quits = True
        if not client.waits:
            self._leave(client)

    def _close(self, client: _Client) -> None:
        self._leave(client)
        self._replies[client.number].remove(CLOSED)

    _reset = _close

    def _use(self, client: _Client, tube: str) -> str:
        client.used = tube
        return f"USING {tube}"

    def _watch(self, client: _Client, tube: str) -> str:
        if tube not in client.watched:
            client.watched.append(tube)
        return f"WATCHING {len(client.watched)}"

    def _ignore(self, client: _Client, tube: str) -> str:
        if client.watched == [tube]:
            return "NOT_IGNORED"
        if tube in client.watched:
            client.watched.remove(tube)
        return f"WATCHING {len(client.watched)}"

    def _put(self, client: _Client, name: str, priority: int, delay: int, ttr: int) -> str:
        job = self.jobs[name] = _Job(name, int(name[1:]), client.used, priority, delay, ttr)
        self._start(job)
        return f"INSERTED {name}"

    def _start(self, job: _Job) -> None:
        if job.delay:
            job.state, job.holder, job.since = "delayed", None, self._now
        else:
            self._make_ready(job)

    def _reserve(self, client: _Client) -> None:
        client.waits, client.since, client.has_timeout = True, self._now, False
        for tube in client.watched:
            self.tubes[tube].waiting.append(client.number)
        self._serve()
        if client.waits and any(self.jobs[name].ttr == SHORT for name in client.held):
            self._end_wait(client, "DEADLINE_SOON")

    def _reserve_with_timeout(self, client: _Client, seconds: int) -> None:
        self._reserve(client)
        if client.waits and not seconds:
            self._end_wait(client, "TIMED_OUT")
        client.has_timeout = seconds == SHORT

    def _end_wait(self, client: _Client, reply: str) -> None:
        self._stop_waiting(client)
        self._replies.setdefault(client.number, []).append(reply)

    def _held(self, client: _Client, name: str) -> _Job | None:
        job = self.jobs.get(name)
        return job if job and job.holder == client.number else None

    def _give_up(self, client: _Client, name: str) -> _Job | None:
        job = self._held(client, name)
        if job:
            client.held.remove(name)
            job.holder = None
        return job

    def _release(self, client: _Client, name: str, priority: int, delay: int) -> str:
        job = self._give_up(client, name)
        if job is None:
            return _NOT_FOUND
        job.priority, job.delay = priority, delay
        job.counts["releases"] += 1
        self._start(job)
        return "RELEASED"

    def _bury(self, client: _Client, name: str, priority: int) -> str:
        job = self._give_up(client, name)
        if job is None:
            return _NOT_FOUND
        job.priority, job.state, job.since = priority, "buried", self._now
        job.counts["buries"] += 1
        return "BURIED"

    def _touch(self, client: _Client, name: str) -> str:
        return "TOUCHED" if self._held(client, name) else _NOT_FOUND

    def _delete(self, client: _Client, name: str) -> str:
        job = self.jobs.get(name)
        if job is None or (job.state == "reserved" and self._give_up(client, name) is None):
            return _NOT_FOUND
        del self.jobs[name]
        return "DELETED"

    def _reserve_job(self, client: _Client, name: str) -> str:
        job = self.jobs.get(name)
        return _NOT_FOUND if job is None or job.state == "reserved" else self._reserve_for(client, job)

    def _kick_job(self, client: _Client, name: str) -> str:
        job = self.jobs.get(name)
        if job is None or job.state not in ("buried", "delayed"):
            return _NOT_FOUND
        job.counts["kicks"] += 1
        self._make_ready(job)
        return "KICKED"

    def _kick(self, client: _Client, most: int) -> str:
        jobs = self._in(client.used, "buried") or self._in(client.used, "delayed")
        for job in jobs[:most]:
            job.counts["kicks"] += 1
            self._make_ready(job)
        return f"KICKED {len(jobs[:most])}"

    def _in(self, tube: str, state: str) -> list[_Job]:
        """Return the buried or delayed jobs of a tube, in order."""
        jobs = [job for job in self.jobs.values() if (job.tube, job.state) == (tube, state)]
        return sorted(jobs, key=lambda job: (job.delay if state == "delayed" else 0, job.since))

    def _pause_tube(self, _client: _Client, tube: str, seconds: int) -> str:
        self.tubes[tube].pause = seconds
        return "PAUSED"

    def _peek(self, _client: _Client, name: str) -> str:
        return f"FOUND {name}" if name in self.jobs else _NOT_FOUND

    def _peek_ready(self, client: _Client) -> str:
        return _found(self._best([client.used], paused=True))

    def _peek_delayed(self, client: _Client) -> str:
        return _found(next(iter(self._in(client.used, "delayed")), None))

    def _peek_buried(self, client: _Client) -> str:
        return _found(next(iter(self._in(client.used, "buried")), None))

    def _stats_job(self, _client: _Client, name: str) -> str:
        job = self.jobs.get(name)
        if job is None:
            return _NOT_FOUND
        figures = {"tube": job.tube, "state": job.state, "pri": job.priority, "delay": job.delay}
        return " ".join(f"{key}={value}" for key, value in (figures | job.counts).items())


def _found(job: _Job | None) -> str:
    return f"FOUND {job.name}" if job else _NOT_FOUND
