"""What a worker or a log shipper does while its server restarts, or is without its backend."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.support.installed_applications import Application, Stand
from tests.support.log_shippers import StartShipper
from tests.support.programs import TIMEOUT, wait_for
from tests.support.stores import BeanstalkdStore, ListQueue, Queue, Store, StoreType

# How long a worker may take until it goes on, in seconds: the pauses between Celery's attempts grow.
_PATIENCE = TIMEOUT
_AWAY = 2.0


class Fault(NamedTuple):
    """A store goes away for that many seconds. `job_ends_meanwhile`: if a job is in work, it ends then."""

    seconds: float
    leave: Callable[[Store], None]
    come_back: Callable[[Store], None]
    job_ends_meanwhile: bool = False


RESTARTS = {
    "SIGTERM": Fault(_AWAY, lambda store: store.stop(signal.SIGTERM), lambda store: store.start()),
    "SIGKILL": Fault(_AWAY, lambda store: store.stop(signal.SIGKILL), lambda store: store.start()),
}
# Longer than --backend-grace by default.
OUTAGE = {
    "no-backend": Fault(
        10, lambda store: store.lose_backend(), lambda store: store.restore_backend(), job_ends_meanwhile=True
    )
}


class Row(NamedTuple):
    """An application, its queue, and the server for which it was made, if there is one."""

    application: Application
    queue: Callable[[Store], Queue]
    control: StoreType | None
    # Whether workers wait at the server, rather than ask again and again.
    waits: bool = True
    # How long a server that is stopped stays away, in seconds.
    away: float = _AWAY
    is_memcached: bool = False
    # Words in the error with which the worker ends by its own choice, which is a matter of chance.
    may_end_of: str | None = None

    def port(self, store: Store) -> int:
        if self.is_memcached:
            return store.memcached_port
        return store.beanstalk_port if self.control is BeanstalkdStore else store.port


class Outcome(NamedTuple):
    """What a fault has done: to the worker, and how often each job was done."""

    worker: str
    jobs: tuple[int, ...]
    # The end of the output of a worker that did not go on.
    last_words: str = ""

    def __str__(self) -> str:
        jobs = "jobs done " + ", ".join(map(str, self.jobs))
        return f"{self.worker}, {jobs}" + (f": {self.last_words}" if self.last_words else "")

    @property
    def lost(self) -> int:
        return self.jobs.count(0)

    @property
    def twice(self) -> int:
        return sum(times - 1 for times in self.jobs if times)

    @property
    def summary(self) -> str:
        return f"{self.worker}, {len(self.jobs)} lines, {self.lost} lost, {self.twice} more than once"

    def is_worse_than(self, other: Outcome) -> bool:
        return _WORKERS.index(self.worker) > _WORKERS.index(other.worker) or any(
            not min(1, control) <= times <= max(1, control)
            for times, control in zip(self.jobs, other.jobs, strict=True)
        )


WAITS, WORKS = "waits", "works"
# From the best to the worst.
_GOES_ON, _ENDS, _STANDS_STILL = _WORKERS = ("goes on", "ends", "stands still")
# What a worker may do that reserves jobs, if there is no other server to compare with. Work is done twice if
# it has not been acknowledged when the server goes.
WHOLE = {WAITS: Outcome(_GOES_ON, (1, 1)), WORKS: Outcome(_GOES_ON, (2, 1))}

# The first job, after which the worker is ready.
_WARM_UP = "warm-up"
# How many lines a log shipper gets at once: some batches of rsyslog.
_LINES = 300


class Trial:
    """A worker of an application at a server, which has one fault after another."""

    def __init__(self, row: Row, store: Store, folder: Path) -> None:
        self._row = row
        self._store = store
        self._stand = Stand(row.application, row.port(store), folder)
        self._queue = row.queue(store)

    def run(self, faults: dict[str, Fault]) -> dict[str, Outcome]:
        """Cause each fault while the worker waits, and while it works. Return what it does."""
        causes = {
            f"{name}, {state}": (fault, state == WORKS)
            for name, fault in faults.items()
            for state in (WAITS, WORKS)
        }
        # The application puts all jobs. Each is taken, and put when its time has come.
        jobs = [_WARM_UP, *(job for number, _ in enumerate(causes) for job in _jobs(number))]
        self._stand.put(*jobs)
        self._messages = {job: self._queue.take() for job in jobs}
        with ExitStack() as stack:
            self._stack = stack
            self._start_worker()
            self._put(_WARM_UP)
            assert self._await(_WARM_UP) == _GOES_ON, "the worker does not work"
            return {
                name: self._try(fault, _jobs(number), busy=busy)
                for number, (name, (fault, busy)) in enumerate(causes.items())
            }

    def _put(self, job: str) -> None:
        self._queue.put(self._messages[job])

    def _try(self, fault: Fault, jobs: tuple[str, str], *, busy: bool) -> Outcome:
        first, second = jobs
        if busy:
            self._stand.hold(first)
            self._put(first)
            wait_for(lambda: self._stand.times_begun(first), f"the worker to begin {first}", _PATIENCE)
            wait_for(self._store.is_settled, "no record to be left")
        elif self._row.waits:
            wait_for(self._queue.waiting, "the worker to wait", _PATIENCE)
        fault.leave(self._store)
        if busy and fault.job_ends_meanwhile:
            self._stand.let_end(first)
        time.sleep(self._row.away if fault.seconds == _AWAY else fault.seconds)
        fault.come_back(self._store)
        if busy and not fault.job_ends_meanwhile:
            self._stand.let_end(first)
        if not busy:
            self._put(first)
        state = self._await(first)
        self._put(second)
        if state == _GOES_ON:
            state = self._await(second)
        last_words = ""
        if state != _GOES_ON:
            self._worker.kill()
            last_words = self._worker.output.strip().rpartition("\n")[2]
            if self._row.may_end_of and self._row.may_end_of in last_words:
                state = _GOES_ON
            self._start_worker()
            assert self._await(second) == _GOES_ON, "a new worker does not work"
        wait_for(lambda: not self._queue.unfinished(), "all jobs to be done", _PATIENCE)
        return Outcome(state, tuple(self._stand.times_finished(job) for job in jobs), last_words)

    def _start_worker(self) -> None:
        self._worker = self._stack.enter_context(self._stand.start_worker())

    def _await(self, job: str) -> str:
        """Wait until the job is done, or until the worker has ended. Return what the worker does."""

        def state() -> str | None:
            if self._stand.times_finished(job):
                return _GOES_ON
            return None if self._worker.process.poll() is None else _ENDS

        try:
            return str(wait_for(state, f"{job} to be done", _PATIENCE))
        except AssertionError:
            return _STANDS_STILL


def _jobs(number: int) -> tuple[str, str]:
    return f"job-{number}-a", f"job-{number}-b"


class ShipperTrial:
    """A log shipper at a server, which has one fault after another. A job is a number of lines."""

    def __init__(self, start: StartShipper, store: Store, folder: Path) -> None:
        self._start = start
        self._store = store
        self._folder = folder
        self._queue = ListQueue(store, "logs", puts_left=True)

    def run(self, faults: dict[str, Fault]) -> dict[str, Outcome]:
        """Cause each fault while the shipper is idle, and while it ships. Return what it does."""
        with self._start(self._folder, self._store.port) as shipper:
            self._shipper = shipper
            self._ship(_WARM_UP)
            return {
                f"{name}, {'ships' if busy else 'idle'}": self._try(fault, f"{name}-{busy}", busy=busy)
                for name, fault in faults.items()
                for busy in (False, True)
            }

    def _try(self, fault: Fault, job: str, *, busy: bool) -> Outcome:
        lines = [f"{job}-{number}." for number in range(2 * _LINES)]
        if busy:
            self._shipper.send(lines[:_LINES])
            wait_for(lambda: all(self._queue.times(lines[0])), "the first line")
        fault.leave(self._store)
        if busy:
            self._shipper.send(lines[_LINES:])
        time.sleep(fault.seconds)
        fault.come_back(self._store)
        if not busy:
            self._shipper.send(lines)
        # Lines of one batch may be out of order, so lines of the next one say when all have come.
        self._ship(f"{job}-end.")
        self._ship(f"{job}-very-end.")
        state = _GOES_ON if self._shipper.process.poll() is None else _ENDS
        return Outcome(state, tuple(self._queue.times(*lines)))

    def _ship(self, line: str) -> None:
        self._shipper.send([line])
        wait_for(lambda: all(self._queue.times(line)), f"the line {line}", _PATIENCE)


def run_beside(
    trial: Callable[[Store, Path], Trial | ShipperTrial],
    stores: Sequence[StoreType],
    folder: Path,
    faults: dict[str, Fault],
) -> list[dict[str, Outcome]]:
    """Run a trial at each store, at the same time. Return what happens at each."""

    def run(number: int) -> dict[str, Outcome]:
        home = folder / str(number)
        for name in ("store", "application"):
            (home / name).mkdir(parents=True)
        store = stores[number](home / "store")
        try:
            return trial(store, home / "application").run(faults)
        finally:
            store.stop(signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(run, range(len(stores))))
