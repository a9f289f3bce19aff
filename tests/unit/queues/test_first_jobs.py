"""The first jobs of many queues in memory: changes come before, at and after the reply to a look."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, cast

import pytest

from pressure_server.backend.link import Link
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError
from pressure_server.queues import first_jobs
from pressure_server.queues.first_jobs import NO_RANK, FirstJobs, Watcher
from tests.unit.conftest import InLoop

NAMES = [b"q%d" % number for number in range(20)]
EMPTY: tuple[object, ...] = (NO_RANK, None, [], set())


class Queues:
    """A link and a watch; both read what the test has set."""

    number = 0
    is_up = True

    def __init__(self) -> None:
        self.seen: dict[bytes, Any] = {}
        self.reads: list[tuple[str, int]] = []
        self.armed: set[bytes] = set()
        self.disarmed: list[bytes] = []
        self.before_reply: Callable[[], None] = lambda: None
        self.first_jobs = FirstJobs(cast(Link, self), cast(Watch, self), b"p")

    def _read(self, keys: Sequence[bytes]) -> list[Any]:
        return [self.seen.get(key[2:], 0) for key in keys]

    async def look(self, names: Sequence[bytes]) -> tuple[Any, ...]:
        """Return what a look shows, but for the queues that are kept."""
        return (await self.first_jobs.look(names))[:-1]

    def put(self, name: bytes, seen: Any) -> None:
        """Change what a look shows of a queue, and tell the server if it watches the queue."""
        self.seen[name] = seen
        if name in self.armed:
            self.armed.remove(name)
            self.first_jobs.forget(name)

    def arm(self, _number: int, keys: Sequence[bytes], _armed: object) -> None:
        """See Watch."""
        self.armed.update(key[2:] for key in keys if b":ext:" not in key)

    def disarm(self, _number: int, keys: Iterable[bytes]) -> None:
        """See Watch."""
        self.disarmed += keys

    async def ask(self, _number: int, command: bytes, *arguments: bytes) -> Any:
        """See Watch."""
        if not self.is_up:
            raise BackendError("lost")
        reply = self._read(arguments[2:]) if command == b"EVALSHA" else b"PONG"
        self.reads.append(("watch", len(arguments[2:])))
        before, self.before_reply = self.before_reply, lambda: None
        before()
        return reply

    async def call(self, _script: object, keys: Sequence[bytes], _: object, *, once: bool) -> Any:
        """See Link."""
        assert not once
        self.reads.append(("link", len(keys)))
        return self._read(keys)


@pytest.fixture
def queues(in_loop: InLoop) -> Queues:
    made: Queues = in_loop(Queues)
    return made


async def test_only_changed_queues_are_read_again(queues: Queues) -> None:
    assert await queues.look(NAMES) == EMPTY
    queues.put(b"q7", [0, -1, 5, 100])
    queues.put(b"q9", [0, -1, 5, 99])
    for _ in range(2):
        assert await queues.look(NAMES) == ((5, 99), b"q9", [], set())
    assert queues.reads == [("watch", 20), ("watch", 2), ("watch", 0)]


async def test_of_equal_ranks_the_first_queue_is_the_best(queues: Queues) -> None:
    for name, best in ((b"q12", b"q12"), (b"q4", b"q4"), (b"q8", b"q4")):
        queues.put(name, [0, -1, 1024, 0])
        assert (await queues.first_jobs.look(NAMES)).best == best


@pytest.mark.parametrize("at_first", [0, [0, -1, 1, 100]])
@pytest.mark.parametrize("is_kept", [False, True], ids=["a look that reads all", "a look that reads nothing"])
async def test_a_change_that_is_told_before_the_reply_to_a_look_is_not_missed(
    queues: Queues, at_first: Any, *, is_kept: bool
) -> None:
    queues.seen[b"q3"] = at_first
    if is_kept:
        await queues.first_jobs.look(NAMES)
    queues.before_reply = lambda: queues.put(b"q3", [0, -1, 0, 50])
    # The reply is older than the change; what the look returns may be older, too.
    await queues.first_jobs.look(NAMES)
    assert await queues.look(NAMES) == ((0, 50), b"q3", [], set())


async def test_a_queue_is_read_again_when_a_delay_ends(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.seen[b"q3"] = [0, 1000]
    assert await queues.look(NAMES) == EMPTY
    queues.seen[b"q3"] = [0, 0]
    assert await queues.look(NAMES) == EMPTY
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now + 1.1)
    for _ in range(2):  # what is overdue is not kept
        assert await queues.look(NAMES) == (NO_RANK, None, [b"q3"], set())
    monkeypatch.undo()


async def test_queues_of_groups_and_those_with_a_line_are_read_each_time(queues: Queues) -> None:
    queues.seen |= {b"q3": [1, -1, 7, 8], b"q4": [2, -1]}
    for _ in range(2):
        view = await queues.first_jobs.look(NAMES)
        assert view[:-1] == ((7, 8), b"q3", [], {b"q3"})
        assert set(NAMES) - set(view.kept) == {b"q3", b"q4"}
    assert queues.reads == [("watch", 20), ("watch", 2)]


async def test_few_queues_and_those_of_a_lost_watch_are_not_kept(queues: Queues) -> None:
    await queues.first_jobs.look(NAMES)
    queues.is_up = False
    queues.seen[b"q3"] = [0, -1, 7, 8]
    assert (await queues.first_jobs.look(NAMES)).best == b"q3"
    queues.is_up = True
    queues.seen[b"q3"] = [0, -1, 6, 8]
    assert (await queues.first_jobs.look(NAMES[:5])).rank == (6, 8)
    queues.first_jobs.forget_all()
    assert (await queues.first_jobs.look(NAMES)).rank == (6, 8)
    assert queues.reads == [("watch", 20), ("link", 20), ("link", 5), ("watch", 20)]


async def test_the_oldest_are_forgotten_and_released(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_jobs, "_MOST_KEPT", 18)
    await queues.first_jobs.look(NAMES)
    assert {b"p:q0", b"p:q1"} < set(queues.disarmed)
    assert b"p:q2" not in queues.disarmed


async def test_times_of_forgotten_queues_do_not_pile_up(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_jobs, "_MOST_KEPT", 20)
    for number in range(100):
        queues.put(b"q3", [0, 100_000 + number])
        await queues.first_jobs.look(NAMES)
    assert len(queues.first_jobs._due) <= 41
    assert queues.first_jobs._kept[b"q3"].due_at < inf


async def test_a_watcher_is_told_of_the_next_change_of_its_queues(queues: Queues) -> None:
    queues.seen[b"q4"] = [0, 5000]
    kept = (await queues.first_jobs.look(NAMES)).kept
    watcher = Watcher(kept, lambda: None)
    due_at = queues.first_jobs.add_watcher(watcher)
    assert kept == NAMES
    assert due_at == pytest.approx(asyncio.get_running_loop().time() + 5, abs=1)
    queues.put(b"q3", [0, -1, 7, 8])
    assert watcher.news == {b"q3"}
    # A watcher that comes after the change, and knows only the look before it, must look again.
    queues.first_jobs.watchers.remove(watcher)
    assert queues.first_jobs.add_watcher(Watcher(kept, lambda: None)) is None
    assert not queues.first_jobs.watchers.have(b"q4")


async def test_queues_that_a_watcher_waits_for_are_not_forgotten_for_others(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_jobs, "_MOST_KEPT", 20)
    watcher = Watcher((await queues.first_jobs.look(NAMES)).kept, lambda: None)
    queues.first_jobs.add_watcher(watcher)
    others = [b"r%d" % number for number in range(20)]
    assert (await queues.first_jobs.look(others)).kept == []
    assert not watcher.news
    queues.first_jobs.watchers.remove(watcher)
    assert (await queues.first_jobs.look(others)).kept == others
