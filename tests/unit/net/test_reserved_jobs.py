"""The jobs that a client has reserved: their deadlines, and who gives them up."""

from __future__ import annotations

from math import inf
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pressure_server.net.reserved_jobs import ReservedJobs
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import Popped
from pressure_server.queues.operations.jobs import word_of
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.shard import Shard
from tests.unit.queues.operations_of import Recorder


class FakeDatabase(Shard):
    """A database, its shard, and the reservations there: notes which jobs are given up."""

    def __init__(self) -> None:
        self.reservations = cast(Any, self)
        self.given_up: list[tuple[bytes, list[tuple[int, int]], bytes]] = []
        self.restored = 0

    def shard_of(self, _name: bytes) -> FakeDatabase:
        return self

    def give_up(self, name: bytes, jobs: list[tuple[int, int]], owner: bytes) -> None:
        self.given_up.append((name, jobs, owner))

    def restore(self) -> None:
        self.restored += 1


def database() -> Database:
    return cast(Database, FakeDatabase())


def noted_by(made: Database) -> FakeDatabase:
    return cast(FakeDatabase, made)


def reserved(*jobs: tuple[int, float], name: bytes = b"q") -> Operation:
    """Return an operation that has reserved jobs: their ids and times to run in seconds; 0 is no limit."""
    operation = Operation(verbs.RESERVE, name, [b"=1"], 1, Recorder())
    operation.results = [b"%b %d 0 1 m" % (word_of(job), ttr * 1000) for job, ttr in jobs]
    return operation


def test_all_jobs_are_told_with_their_databases_and_queues() -> None:
    jobs, one, other = ReservedJobs(), database(), database()
    jobs.add(reserved((1, 5), (2, 0)), one, 100.0)
    jobs.add(reserved((1, 5), name=b"r"), other, 100.0)
    jobs.discard(2)
    assert [*jobs.all()] == [(other, b"r", 1, 1), (one, b"q", 1, 1)]


def test_jobs_are_given_up_by_queue_and_only_once() -> None:
    jobs, one, other = ReservedJobs(), database(), database()
    jobs.add(reserved((1, 5), (2, 5)), one, 100.0)
    jobs.add(reserved((3, 5), name=b"r"), one, 100.0)
    # Ids are those of a database: the same one may be reserved in another.
    jobs.add(reserved((1, 5)), other, 100.0)
    assert len(jobs) == 4
    jobs.discard(2)
    jobs.give_up_all(b"=1")
    assert sorted(noted_by(one).given_up) == [(b"q", [(1, 1)], b"=1"), (b"r", [(3, 1)], b"=1")]
    assert noted_by(other).given_up == [(b"q", [(1, 1)], b"=1")]
    assert noted_by(one).restored == 0
    assert (len(jobs), jobs.size) == (0, 0)
    jobs.give_up_all(b"=1", at_once=True)
    assert len(noted_by(one).given_up) == 2


def test_jobs_that_go_at_once_are_sent_at_once() -> None:
    jobs, one = ReservedJobs(), database()
    jobs.add(reserved((1, 5)), one, 100.0)
    jobs.give_up_all(b"=1", at_once=True)
    assert noted_by(one).restored == 1


def test_a_job_is_forgotten_where_it_was_reserved() -> None:
    jobs, one, other = ReservedJobs(), database(), database()
    jobs.add(reserved((1, 5)), one, 100.0)
    jobs.discard_from(other, b"q", 1)
    jobs.discard_from(one, b"r", 1)
    assert len(jobs) == 1
    jobs.add(reserved((1, 5)), other, 100.0)
    jobs.discard_from(one, b"q", 1)
    assert len(jobs) == 1
    jobs.discard_from(other, b"q", 1)
    assert len(jobs) == 0


def test_a_reservation_that_the_client_ends_has_no_deadline() -> None:
    jobs = ReservedJobs()
    jobs.add(reserved((1, 5), (2, 9)), database(), 100.0)
    jobs.end(1)
    jobs.end(7)
    assert jobs.first_deadline(100.0) == 109.0
    assert jobs.find(1) is not None


def test_a_reservation_without_a_limit_has_no_deadline() -> None:
    jobs = ReservedJobs()
    jobs.add(reserved((1, 0)), database(), 100.0)
    assert jobs.first_deadline(1e9) == inf
    assert len(jobs) == 1


_STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 9)),
    st.tuples(st.just("touch"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("discard"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 4), st.just(0)),
)


@given(st.lists(_STEPS, max_size=60))
def test_the_first_deadline_is_that_of_a_job_that_is_still_reserved(
    steps: list[tuple[str, int, int]],
) -> None:
    jobs, one, now = ReservedJobs(), database(), 100.0
    expected: dict[int, tuple[float, float]] = {}
    for step, number, ttr in steps:
        if step == "add":
            jobs.add(reserved((number, ttr)), one, now)
            expected[number] = (ttr, now + ttr)
        elif step == "touch":
            jobs.touch(number, now)
            if number in expected:
                expected[number] = (expected[number][0], now + expected[number][0])
        elif step == "discard":
            jobs.discard(number)
            expected.pop(number, None)
        else:
            now += number
        expected = {job: times for job, times in expected.items() if times[1] > now}
        assert jobs.first_deadline(now) == min((deadline for _, deadline in expected.values()), default=inf)
        assert {job for job in range(1, 6) if jobs.find(job)} == set(expected)
        assert jobs.any_at(now) == bool(expected)


def test_a_job_of_another_database_is_reserved_as_well() -> None:
    jobs = ReservedJobs()
    jobs.add(reserved((1, 50)), database(), 100.0)
    jobs.add(reserved((1, 5)), database(), 100.0)
    assert jobs.any_at(106.0)
    assert not jobs.any_at(150.0)


def popped(*jobs: int, ttr: float = 0, name: bytes = b"q") -> Operation:
    """Return a pop that has brought messages; their ids."""
    operation = Operation(verbs.POP, name, [b"=1"], 1, Recorder())
    operation.results = [Popped.of(b"%b %d 0 1 m" % (word_of(job), ttr * 1000)) for job in jobs]
    return operation


def test_pops_are_finished_when_the_client_has_sent_something_after_their_replies() -> None:
    jobs, one = ReservedJobs(), database()
    jobs.add_pop(popped(1, 2), one, 100.0)
    assert jobs.take_finished() == []
    jobs.finished_pops = len(jobs.pops)
    jobs.add_pop(popped(3), one, 100.0)
    assert [pop.jobs for pop in jobs.take_finished()] == [[(1, 1), (2, 1)]]
    assert jobs.take_finished() == []
    assert len(jobs) == 1


def test_pops_of_one_queue_can_be_taken_out() -> None:
    jobs, one, other = ReservedJobs(), database(), database()
    for database_, name, job in ((one, b"q", 1), (one, b"r", 2), (other, b"q", 3), (one, b"q", 4)):
        jobs.add_pop(popped(job, name=name), database_, 100.0)
    jobs.finished_pops = 2
    assert [job for job, _ in jobs.popped_from(one, b"q")] == [1, 4]
    jobs.forget_pops(one, b"q", {1, 4})
    assert [pop.jobs for pop in jobs.pops] == [[(2, 1)], [(3, 1)]]
    assert [pop.jobs for pop in jobs.take_finished()] == [[(2, 1)]]


def test_pops_are_given_up_with_the_other_jobs() -> None:
    jobs, one = ReservedJobs(), database()
    jobs.add(reserved((1, 5)), one, 100.0)
    jobs.add_pop(popped(2, 3), one, 100.0)
    jobs.add_pop(popped(4, name=b"r"), one, 100.0)
    jobs.give_up_all(b"=1")
    assert noted_by(one).given_up == [(b"q", [(1, 1), (2, 1), (3, 1)], b"=1"), (b"r", [(4, 1)], b"=1")]
    assert (len(jobs), jobs.take_finished()) == (0, [])


def test_pops_keep_an_idle_client_until_they_end() -> None:
    jobs, one = ReservedJobs(), database()
    jobs.add_pop(popped(1, ttr=5), one, 100.0)
    assert jobs.any_at(104.0)
    assert not jobs.any_at(106.0)
    jobs.add_pop(popped(2), one, 100.0)
    assert jobs.any_at(1e9)
