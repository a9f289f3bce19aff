"""200 times a worker or the server is killed while workers of several clients share a queue with ACK NEXT.

No message is lost, and only those come again that were in work when their worker or the server was killed.
"""

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.support.pop_workers import LIBRARIES, WAIT, PopWorker
from tests.support.programs import TIMEOUT, wait_for
from tests.support.stores import EmbeddedStore

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SEED = 1
KILLS = 200
# One kill in so many is of the server; the others are of workers.
SERVER_EVERY = 20
WORKERS = (
    "phpredis",
    "Predis",
    "redis-rb",
    "redis-py",
    "ioredis",
    "php-memcached",
    "pymemcache",
    "phpredis",
)


class Delivery(NamedTuple):
    """A message that a worker has got: when it began the pop, and when it knew that its next one is done."""

    message: str
    begin: float
    end: float
    was_killed: bool


class Trial:
    """The workers, and what they have got."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = EmbeddedStore(folder, "--proxy-timeout", "1")
        self._random = random.Random(SEED)
        self._names = map(str, count())
        self._is_over = threading.Event()
        self._workers: dict[int, PopWorker] = {}
        # The places of the workers that have got a message and are not killed yet.
        self._ready: set[int] = set()
        self._sent: list[str] = []
        self.popped = 0
        self.deliveries: list[Delivery] = []
        self.done: set[str] = set()
        # From before each kill of the server until its end.
        self.outages: list[tuple[float, float]] = []

    def run(self) -> None:
        self._ask("PRESSURE.CREATE", "mails", "ACK", "NEXT")
        with ThreadPoolExecutor(len(WORKERS)) as threads:
            running = [threads.submit(self._work, place) for place in range(len(WORKERS))]
            try:
                for number in range(1, KILLS + 1):
                    self._kill(number)
                wait_for(lambda: self.done.issuperset(self._sent), "all messages to be done")
            finally:
                self._is_over.set()
                wait_for(lambda: self._kill_all(running), "the workers to end")
            for thread in running:
                thread.result()
        self._store.stop(signal.SIGTERM)

    @property
    def lost(self) -> list[str]:
        return [message for message in self._sent if message not in self.done]

    @property
    def sent(self) -> int:
        return len(self._sent)

    @property
    def again(self) -> int:
        """How many deliveries are not the first ones of their messages."""
        return len(self.deliveries) - len({delivery.message for delivery in self.deliveries})

    @property
    def unexplained(self) -> list[str]:
        """The messages that have come again more often than they were in work at a kill."""
        excused = Counter(
            delivery.message
            for delivery in self.deliveries
            if delivery.was_killed or any(a <= delivery.end and delivery.begin <= b for a, b in self.outages)
        )
        times = Counter(delivery.message for delivery in self.deliveries)
        return [message for message, number in times.items() if number > 1 + excused[message]]

    def _ask(self, *words: str | int) -> None:
        with redis.Redis(port=self._store.port, socket_timeout=TIMEOUT) as client:
            client.execute_command(*words)

    def _kill(self, number: int) -> None:
        """Put messages, let workers get some of them, and kill one of the workers, or the server."""
        messages = [next(self._names) for _ in range(self._random.randrange(5, 15))]
        target = self.popped + self._random.randrange(5)
        self._sent += messages
        self._ask("RPUSH", "mails", *messages)
        wait_for(lambda: self.popped >= target and self._ready, "workers to get messages")
        if number % SERVER_EVERY:
            place = self._random.choice(sorted(self._ready))
            self._ready.remove(place)
            self._workers[place].signal_kill()
        else:
            begin = time.monotonic()
            self._store.stop(signal.SIGKILL)
            self.outages.append((begin, time.monotonic()))
            self._store.start()

    def _kill_all(self, running: list[Future[None]]) -> bool:
        """Kill the workers. Return whether their threads have ended."""
        for worker in list(self._workers.values()):
            worker.signal_kill()
        return all(thread.done() for thread in running)

    def _work(self, place: int) -> None:
        """Run a worker, and another one when it is killed."""
        for number in count():
            if self._is_over.is_set():
                return
            library = WORKERS[place]
            port = self._store.memcached_port if LIBRARIES[library].is_memcached else self._store.port
            log = self._folder / f"worker-{place}-{number}.log"
            with PopWorker(library, port, "mails", WAIT, log, timeout=None) as worker:
                self._workers[place] = worker
                self._drive(place, worker)

    def _drive(self, place: int, worker: PopWorker) -> None:
        """Let a worker pop and work until it is killed."""
        message, begin = None, 0.0
        is_new, answer = True, "start"
        while answer:
            next_begin = time.monotonic()
            answer = worker.step("pop")
            if message is not None:
                self.deliveries.append(Delivery(message, begin, time.monotonic(), not answer))
                message = None
            if answer.startswith("got "):
                message, begin = answer.removeprefix("got "), next_begin
                self.popped += 1
                if worker.step("work") == "work":
                    self.done.add(message)
                if is_new:
                    self._ready.add(place)
                    is_new = False
            elif answer:
                time.sleep(0.05)  # the server is away: a pause, as workers should have


@pytest.mark.timeout(400)
def test_no_message_is_lost(tmp_path: Path) -> None:
    for library in WORKERS:
        LIBRARIES[library].need()
    begin = time.monotonic()
    trial = Trial(tmp_path)
    trial.run()
    of_server = len(trial.outages)
    print(
        f"{KILLS - of_server} kills of workers, {of_server} of the server, {trial.sent} messages:"
        f" {len(trial.lost)} lost, {trial.again} came again, {len(trial.unexplained)} of them without a kill;"
        f" {time.monotonic() - begin:.0f} s"
    )
    assert not trial.lost
    assert not trial.unexplained
    # Each kill of a worker ends one message's work at most, each kill of the server one of each worker.
    assert trial.again <= KILLS - of_server + of_server * len(WORKERS)
