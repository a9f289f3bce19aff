"""Statistics of commands: calls, errors by code and latencies, of one process and of several."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.net import command_statistics
from pressure_server.net.command_statistics import (
    BUCKETS,
    OTHER_CODES,
    CommandStatistics,
    all_statistics,
    reset_statistics,
    statistics_of,
    upper_limit,
)


@pytest.fixture
def statistics() -> Iterator[None]:
    """No statistics of other tests."""
    before = command_statistics._ALL.copy()
    command_statistics._ALL.clear()
    yield
    command_statistics._ALL.clear()
    command_statistics._ALL.update(before)


def counts(one: CommandStatistics) -> tuple[int, int, int, Counter[str]]:
    return one.calls, one.rejected, one.failed, one.errors


def test_failed_and_rejected_calls_are_counted_with_their_codes() -> None:
    one = CommandStatistics("resp", "get")
    assert (one.protocol, one.name, counts(one)) == ("resp", "get", (0, 0, 0, {}))
    one.calls += 5
    one.fail("FULL")
    one.fail("CLOSED", 2)
    one.reject("NOPERM")
    one.reject("CLOSED", 3)
    assert counts(one) == (5, 4, 3, {"FULL": 1, "CLOSED": 5, "NOPERM": 1})


def test_of_many_codes_the_later_ones_are_counted_together() -> None:
    one = CommandStatistics("resp", "get")
    for number in range(70):
        one.fail(f"E{number}")
    one.fail("E0")
    assert (one.errors["E0"], one.errors["E63"], one.errors["E64"]) == (2, 1, 0)
    assert one.errors[OTHER_CODES] == 6
    assert one.errors.total() == one.failed == 71


@given(st.floats(0, 100))
def test_a_latency_is_below_the_limit_of_its_bucket_and_not_of_the_one_before(seconds: float) -> None:
    one = CommandStatistics("resp", "get")
    one.measure(seconds)
    assert (sum(one.latencies), len(one.latencies), one.seconds) == (1, BUCKETS, seconds)
    bucket = one.latencies.index(1)
    microsecond = 1e-6
    assert bucket == BUCKETS - 1 or seconds < upper_limit(bucket)
    assert bucket == 0 or seconds >= upper_limit(bucket - 1) - microsecond
    assert one.percentile(0.5) == one.percentile(1) == upper_limit(bucket)


def test_percentiles_are_limits_of_buckets() -> None:
    one = CommandStatistics("resp", "get")
    assert one.percentile(0.5) == upper_limit(0) == 1e-6
    for milliseconds in (1, 1, 1, 100):
        one.measure(milliseconds / 1000)
    assert one.seconds == pytest.approx(0.103)
    assert one.percentile(0.5) == one.percentile(0.75) == 1024e-6
    assert one.percentile(0.76) == one.percentile(1) == 131072e-6


@pytest.mark.usefixtures("statistics")
def test_statistics_of_the_commands_in_use_are_sorted_and_can_be_reset() -> None:
    put, get, idle = (statistics_of("resp", name) for name in ("put", "get", "idle"))
    other = statistics_of("beanstalk", "put")
    assert statistics_of("resp", "put") is put
    put.calls += 1
    get.reject("NOPERM")
    other.calls += 1
    assert all_statistics() == [other, get, put]
    put.measure(0.5)
    put.fail("FULL")
    reset_statistics()
    assert all_statistics() == []
    assert counts(put) == counts(get) == counts(idle) == (0, 0, 0, {})
    assert (put.seconds, sum(put.latencies), len(put.latencies)) == (0.0, 0, BUCKETS)
