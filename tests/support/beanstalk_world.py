"""The rules of beanstalkd 1.12 for several clients, in memory: which client receives which reply.

A World follows beanstalkd exactly, also in what is left open by its protocol; what happens to a job is in
tests/support/reference. `Rules` are the two points in which the server differs on purpose
(docs/reference/beanstalk.md). Time passes only in the step `elapse`: all
short times of a World (of one second) end there, and a program has at most one of these, or several waits.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any, NamedTuple

from tests.support.reference.jobs import BURIED, DELAYED, READY, RESERVED, Job, JobQueue
from tests.support.reference.queues import Queues

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


def _has_short_time(job: Job) -> bool:
    return (job.state == DELAYED and job.delay == SHORT) or (job.state == RESERVED and job.ttr == SHORT)


@dataclass
class _Client:
    number: int
    used: str
    watched: list[str]
    waits: bool = False
    has_timeout: bool = False
    since: int = 0
    quits: bool = False
    is_gone: bool = False

    @property
    def owner(self) -> str:
        """The name under which it reserves jobs."""
        return str(self.number)


@dataclass(eq=False, kw_only=True)
class _Tube(JobQueue):
    """A tube, and the clients that wait for its jobs: in an array, as beanstalkd has them."""

    name: str
    pause_time: int = 0
    waiting: list[int] = field(default_factory=list)
    last: int = 0

    def stop_waiting(self, client: int) -> None:
        if client in self.waiting:
            self._cut(self.waiting.index(client))

    def next_client(self) -> int:
        self.last %= len(self.waiting)
        client = self._cut(self.last)
        self.last += 1
        return client

    def _cut(self, at: int) -> int:
        client = self.waiting[at]
        self.waiting[at] = self.waiting[-1]
        self.waiting.pop()
        return client


class World:
    """Tubes, jobs and clients. Client 0 watches all tubes and never reserves."""

    def __init__(self, rules: Rules, tubes: Iterable[str]) -> None:
        self.rules = rules
        home = Queues()
        self.tubes = {name: _Tube(home=home, has_jobs=True, name=name) for name in tubes}
        self.clients = [_Client(0, next(iter(self.tubes)), list(self.tubes))]
        self._now = 0
        self._replies: dict[int, list[str]] = {}
        self._leaving: list[_Client] = []
        # The tubes in which the step has made jobs ready.
        self._made_ready: set[str] = set()
        # Whether the step's replies depend on what the server does first.
        self.is_open = False

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs by name, in the order in which they were put."""
        jobs = {number: job for tube in self.tubes.values() for number, job in tube.jobs.items()}
        return {f"j{number}": job for number, job in sorted(jobs.items())}

    def held(self, client: int) -> list[str]:
        """Return the jobs that a client has reserved, in that order."""
        jobs = [(job.place, name) for name, job in self.jobs.items() if job.owner == str(client)]
        return [name for _, name in sorted(jobs)]

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

    def is_there(self, client: int) -> bool:
        """Return whether the client is connected, and does not quit."""
        return client in [each.number for each in self.clients if not (each.quits or each.is_gone)]

    def can_act(self, client: int) -> bool:
        """Return whether the client is there and does not wait."""
        return self.is_there(client) and not self.clients[client].waits

    def watchers(self, tube: str) -> int:
        """Return how many clients watch the tube."""
        return sum(tube in client.watched for client in self.clients if not client.is_gone)

    def times(self) -> list[str]:
        """Return the short times that run: `job`, `pause` or `wait`."""
        found = ["pause" for tube in self.tubes.values() if tube.pause_time == SHORT]
        found += ["wait" for client in self.clients if client.waits and client.has_timeout]
        return found + ["job"] * len(self.jobs_with_short_times())

    def jobs_with_short_times(self) -> list[str]:
        """Return the jobs whose delay or time to run ends in `elapse`."""
        return [name for name, job in self.jobs.items() if _has_short_time(job)]

    def has_short_job(self) -> bool:
        """Return whether a job has a short time to run, reserved or not."""
        return any(job.ttr == SHORT for job in self.jobs.values())

    def holders_of_short_jobs(self) -> list[int]:
        """Return the clients whose reservations end in `elapse`."""
        return [int(job.owner) for job in self.jobs.values() if job.owner and job.ttr == SHORT]

    # -- serving waiting clients

    def _best(self, names: Iterable[str]) -> tuple[_Tube, Job] | None:
        tubes = [tube for name, tube in self.tubes.items() if name in names and tube.takeable]
        best = min(tubes, key=lambda tube: tube.takeable[0].rank, default=None)
        return (best, best.takeable[0]) if best else None

    def _serve(self) -> None:
        if self.rules.in_order:
            for client in sorted((each for each in self.clients if each.waits), key=lambda each: each.since):
                best = self._best(client.watched)
                if best is not None:
                    # Jobs of several tubes come back one by one, and those of a client that quits at once.
                    self.is_open |= len(self._made_ready.intersection(client.watched)) > 1 or bool(
                        self._leaving
                    )
                    self._serve_with(client, *best)
        else:
            while best := self._best([name for name, tube in self.tubes.items() if tube.waiting]):
                self._serve_with(self.clients[best[0].next_client()], *best)

    def _serve_with(self, client: _Client, tube: _Tube, job: Job) -> None:
        tube.hold(job, client.owner)
        self._end_wait(client, f"RESERVED j{job.id}")

    def _end_wait(self, client: _Client, reply: str) -> None:
        self._stop_waiting(client)
        self._replies.setdefault(client.number, []).append(reply)
        if client.quits:
            self._leaving.append(client)

    def _stop_waiting(self, client: _Client) -> None:
        client.waits = False
        for tube in self.tubes.values():
            tube.stop_waiting(client.number)

    def _note_ready(self, tube: _Tube) -> None:
        """Serve waiting clients, after a job has become ready."""
        self._made_ready.add(tube.name)
        if not self.rules.best_of_several:
            self._serve()

    def _find(self, name: str) -> tuple[_Tube, int]:
        """Return the tube and the id of a job. If there is none, any tube."""
        number = int(name[1:])
        tubes = [tube for tube in self.tubes.values() if number in tube.jobs]
        return (tubes or [*self.tubes.values()])[0], number

    def _leave(self, client: _Client) -> None:
        client.is_gone = True
        self._stop_waiting(client)
        self._replies.setdefault(client.number, []).append(CLOSED)
        for name in self.held(client.number):
            tube, number = self._find(name)
            tube.give_back([tube.jobs[number]])
            self._note_ready(tube)

    # -- steps

    def _connect(self, tube: str) -> None:
        self.clients.append(_Client(len(self.clients), tube, [tube]))

    def _elapse(self) -> None:
        for tube in self.tubes.values():
            if tube.pause_time == SHORT:
                self._pause_tube(self.clients[0], tube.name, 0)
                self._serve()
        for name, job in self.jobs.items():
            if not _has_short_time(job):
                continue
            tube, _ = self._find(name)
            job.is_due = True
            tube.begin()
            self._note_ready(tube)
        for client in sorted(self.clients, key=lambda each: each.since):
            if client.waits and client.has_timeout:
                self._end_wait(client, "TIMED_OUT")

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
        tube = self.tubes[client.used]
        tube.store(b"", int(name[1:]), priority=priority, delay=delay, ttr=ttr)
        if not delay:
            self._note_ready(tube)
        return f"INSERTED {name}"

    def _reserve(self, client: _Client) -> None:
        client.waits, client.since, client.has_timeout = True, self._now, False
        for tube in client.watched:
            self.tubes[tube].waiting.append(client.number)
        self._serve()
        if client.waits and client.number in self.holders_of_short_jobs():
            self._end_wait(client, "DEADLINE_SOON")

    def _reserve_with_timeout(self, client: _Client, seconds: int) -> None:
        self._reserve(client)
        if client.waits and not seconds:
            self._end_wait(client, "TIMED_OUT")
        client.has_timeout = seconds == SHORT

    def _release(self, client: _Client, name: str, priority: int, delay: int) -> str:
        tube, number = self._find(name)
        if not tube.release(number, client.owner, priority, delay):
            return _NOT_FOUND
        if not delay:
            self._note_ready(tube)
        return "RELEASED"

    def _change(
        self, client: _Client, name: str, *arguments: Any, how: Callable[..., object], done: str
    ) -> str:
        tube, number = self._find(name)
        return done.format(name) if how(tube, number, client.owner, *arguments) else _NOT_FOUND

    _bury = partialmethod(_change, how=_Tube.bury, done="BURIED")
    _touch = partialmethod(_change, how=_Tube.owned, done="TOUCHED")
    _reserve_job = partialmethod(_change, how=_Tube.reserve_job, done="RESERVED {}")
    _delete = partialmethod(
        _change, how=lambda tube, number, owner: tube.acknowledge([number], owner), done="DELETED"
    )

    def _kick_job(self, client: _Client, name: str) -> str:
        tube, number = self._find(name)
        if not tube.kick_job(number):
            return _NOT_FOUND
        self._note_ready(tube)
        return "KICKED"

    def _kick(self, client: _Client, most: int) -> str:
        tube = self.tubes[client.used]
        jobs = tube.to_kick(most)
        for job in jobs:
            tube.kick_job(job.id)
            self._note_ready(tube)
        return f"KICKED {len(jobs)}"

    def _pause_tube(self, _client: _Client, name: str, seconds: int) -> str:
        tube = self.tubes[name]
        tube.pause_time = seconds
        tube.pause(is_paused=seconds > 0)
        return "PAUSED"

    def _peek(self, _client: _Client, name: str) -> str:
        return f"FOUND {name}" if name in self.jobs else _NOT_FOUND

    def _next(self, client: _Client, state: str) -> str:
        job = self.tubes[client.used].peek_job(state)
        return f"FOUND j{job[0]}" if job else _NOT_FOUND

    _peek_ready = partialmethod(_next, state=READY)
    _peek_delayed = partialmethod(_next, state=DELAYED)
    _peek_buried = partialmethod(_next, state=BURIED)

    def _stats_job(self, _client: _Client, name: str) -> str:
        tube, number = self._find(name)
        job = tube.jobs.get(number)
        if job is None:
            return _NOT_FOUND
        figures = {"tube": tube.name, "state": job.state, "pri": job.priority, "delay": job.delay}
        return " ".join(f"{key}={value}" for key, value in (figures | job.counts).items())
