"""What operations on jobs, queues and groups say to the library, and what its replies say."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pressure_server.queues.operations import groups, outcomes
from pressure_server.queues.operations.flagged import flags_of
from pressure_server.queues.operations.jobs import (
    NO_DEADLINE,
    JobInfo,
    Pending,
    ReservedJob,
    attached,
    claim,
    detached,
    given_up,
    id_of,
    ids_of,
    job_to_put,
    owned,
    owned_between,
    released,
    word_of,
)
from pressure_server.queues.operations.options import OnFull, Options, requiring_destination, requiring_queue
from pressure_server.queues.operations.queue_options import JOBS, OVERWRITE, Alteration, Creation
from pressure_server.queues.policy import Policy


def test_a_job_is_put_with_its_numbers_and_perhaps_a_key() -> None:
    assert job_to_put(b"a b", 5, 1.5, 60) == b"5 1500 60000 0 0 a b"
    assert job_to_put(b"m", key=b"k 1") == b"3 k 11024 0 60000 0 0 m"
    assert job_to_put(b"m", ttr=NO_DEADLINE) == b"1024 0 0 0 0 m"


@given(st.integers(1, 2**48))
@example(15)
def test_the_word_of_a_job_is_read_and_sorts_by_its_id(job: int) -> None:
    assert id_of(word_of(job)) == job
    assert word_of(job) < word_of(job + 1)


def test_owners_and_claims() -> None:
    assert (attached(7), detached(b"t")) == (b"=7", b"@t")
    assert (claim(b"=7"), claim(b"=7", 1.5)) == (b"=7", b"=7 1500")
    assert owned(255, b"@t") == b"00000000000ff @t"
    assert released(1, b"=7") == b"0000000000001 =7  0"
    assert released(1, b"=7", 0, 0.25) == b"0000000000001 =7 0 250"


@given(st.integers(1, 1 << 32), st.integers(0, 1000), st.sampled_from([attached(7), detached(b"1-2")]))
@example(1, 0, detached(b"-"))
def test_the_ids_of_an_event_are_those_that_its_argument_names(first: int, more: int, owner: bytes) -> None:
    assert list(ids_of(owned(first, owner))) == [first]
    named = ids_of(owned_between(first, first + more, owner))
    assert (named[0], named[-1], len(named)) == (first, first + more, more + 1)
    assert owned_between(first, first + more, owner).endswith(b" " + owner)


def test_a_reservation_that_is_given_up_is_named_by_its_number() -> None:
    assert given_up(255, 3, b"=7") == b"00000000000ff =7 3"


@pytest.mark.parametrize(
    ("entry", "pending"),
    [
        ([b"0a", b"0f", b"7", b"t", 1500, 2], Pending(10, 15, 7, b"t", 1500, 2)),
        ([b"0a", b"0a", b"0", b"t", -1, 1], Pending(10, 10, 0, b"t", -1, 1)),
        ([b"0a", b"0a", b"", b"", 0, 1], Pending(10, 10, None, None, 0, 1)),
    ],
)
def test_an_entry_of_pending_jobs_is_read(entry: list[object], pending: Pending) -> None:
    assert Pending.of(entry) == pending


@pytest.mark.parametrize(
    ("result", "job"),
    [
        (b"000000000000a 1500 0 2 a message", ReservedJob(10, 1.5, 2, b"a message")),
        (b"000000000000a@7 0 0 1 ", ReservedJob(10, 0.0, 1, b"", 7)),
        (b"000000000000a 0 9 1 m", ReservedJob(10, 0.0, 1, b"m")),
    ],
)
def test_a_reserved_job_is_read(result: bytes, job: ReservedJob) -> None:
    assert ReservedJob.of(result) == job
    assert flags_of(ReservedJob.of(result).message) == (b"9" if b" 9 " in result else b"0")


def test_a_job_that_is_not_there_has_no_information() -> None:
    assert JobInfo.of([]) is None
    found = JobInfo.of([b"ready", *range(11)])
    assert found is not None
    assert (found.state, found.priority, found.kicks) == (b"ready", 0, 10)


def test_settings_of_a_new_queue_are_left_out_if_they_are_not_given() -> None:
    assert Creation().arguments(b"p") == [b"0", b"", b""]
    everything = Creation(5, OVERWRITE, 0, 1.5, 3, b"dead", type=JOBS, unique=b"queued")
    assert everything.arguments(b"p") == [
        b"5", OVERWRITE, b"", b"type", b"jobs", b"unique", b"queued", b"max_bytes", b"", b"ttl", b"1.500",
        b"max_deliveries", b"3", b"dead_letter", b"p:dead",
    ]  # fmt: skip


def test_settings_that_change_may_change_to_none() -> None:
    assert Alteration().arguments(b"p") == []
    assert Alteration(0, OVERWRITE, 7, 0, 0, b"").arguments(b"p") == [
        b"bound", b"0", b"overflow", OVERWRITE, b"max_bytes", b"7", b"ttl", b"", b"max_deliveries", b"",
        b"dead_letter", b"",
    ]  # fmt: skip


def test_a_group_is_a_queue_of_its_log() -> None:
    assert groups.arguments(b"p", groups.CREATE, b"log", b"g") == [b"create", b"p:log+g", b"head"]
    found = groups.Group.of(b"p", b"log", [b"p:log+g+h", 5, 4, 3, 2, 1])
    assert found == groups.Group(b"g+h", 5, 4, 3, 2, 1)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ([b"done", b""], outcomes.Outcome(b"done")),
        ([b"done", b"7"], outcomes.Outcome(b"done", 7)),
        ([b"unknown"], outcomes.Outcome(b"unknown")),
        ([b"forgotten", 1500], outcomes.Outcome(b"forgotten", None, 1.5)),
    ],
)
def test_the_outcome_of_a_put_is_read(reply: list[object], outcome: outcomes.Outcome) -> None:
    assert outcomes.Outcome.of(reply) == outcome


def test_a_put_that_is_done_once_says_how_long_its_outcome_is_kept() -> None:
    policy = Policy(outcome_ttl=60, max_outcomes=1000)
    assert outcomes.first_word(policy, b"id") == b"60 1000 id"


def test_an_option_is_added_to_others() -> None:
    options = Options(unique=True, on_full=OnFull.WAIT)
    assert requiring_queue(options) == Options(must_exist=True, unique=True, on_full=OnFull.WAIT)
    assert requiring_destination(options) == Options(
        destination_must_exist=True, unique=True, on_full=OnFull.WAIT
    )
