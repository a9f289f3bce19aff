"""What operations on jobs, queues and groups say to the library, and what its replies say."""

from hypothesis import example, given
from hypothesis import strategies as st

from pressure_server.queues.operations.jobs import (
    attached,
    detached,
    id_of,
    ids_of,
    job_to_put,
    owned,
    owned_between,
    released,
    word_of,
)
from pressure_server.queues.operations.options import OnFull, Options, requiring_destination, requiring_queue
from pressure_server.queues.operations.queue_options import OVERWRITE, Alteration, Creation


def test_an_argument_for_the_library_has_what_is_given() -> None:
    assert job_to_put(b"m", key=b"k 1") == b"3 k 11024 0 60000 0 0 m"
    assert released(1, b"=7") == b"0000000000001 =7  0"
    assert released(1, b"=7", 0, 0.25) == b"0000000000001 =7 0 250"
    assert Creation().arguments(b"p") == [b"0", b"", b""]
    # A setting that changes may change to none.
    assert Alteration().arguments(b"p") == []
    assert Alteration(0, OVERWRITE, 7, 0, 0, b"").arguments(b"p") == [
        b"bound", b"0", b"overflow", OVERWRITE, b"max_bytes", b"7", b"ttl", b"", b"max_deliveries", b"",
        b"dead_letter", b"",
    ]  # fmt: skip


@given(st.integers(1, 2**48))
@example(15)
def test_the_word_of_a_job_is_read_and_sorts_by_its_id(job: int) -> None:
    assert id_of(word_of(job)) == job
    assert word_of(job) < word_of(job + 1)


@given(st.integers(1, 1 << 32), st.integers(0, 1000), st.sampled_from([attached(7), detached(b"1-2")]))
@example(1, 0, detached(b"-"))
def test_the_ids_of_an_event_are_those_that_its_argument_names(first: int, more: int, owner: bytes) -> None:
    assert list(ids_of(owned(first, owner))) == [first]
    named = ids_of(owned_between(first, first + more, owner))
    assert (named[0], named[-1], len(named)) == (first, first + more, more + 1)
    assert owned_between(first, first + more, owner).endswith(b" " + owner)


def test_an_option_is_added_to_others() -> None:
    options = Options(unique=True, on_full=OnFull.WAIT)
    assert requiring_queue(options) == Options(must_exist=True, unique=True, on_full=OnFull.WAIT)
    assert requiring_destination(options) == Options(
        destination_must_exist=True, unique=True, on_full=OnFull.WAIT
    )
