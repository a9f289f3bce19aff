"""The survey: figures of all kinds of queues, ages, rates, and counts that only grow."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.backend.address import Address
from pressure_server.queues.broker import Broker
from pressure_server.queues.policy import Policy
from pressure_server.queues.survey import COUNTS, Ages, Figures, Survey, Surveyed
from tests.support.programs import Client, Server, Valkey


def _figures(**changes: Any) -> Figures:
    return Figures(**{**dict.fromkeys(Figures._fields, 0), "type": b"fifo", **changes})


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0.1, 100, allow_nan=False)), max_size=80
    )
)
def test_an_age_is_never_too_high_and_stays_in_reach(steps: list[tuple[int, int, float]]) -> None:
    ages, now = Ages(), 0.0
    put_at: list[float] = []  # when each queued message was put, oldest first
    put = taken = 0
    looks: list[float] = []
    for puts, takes, seconds in steps:
        put_at += [now] * puts
        put += puts
        now += seconds
        took = min(takes, len(put_at))
        del put_at[:took]
        taken += took
        age = ages.look(now, put, taken)
        looks.append(now)
        if not put_at:
            assert age == 0
            continue
        assert age <= now - put_at[0] + 1e-6
        # All but one of the looks since the message was put may be forgotten if there are many.
        if len(looks) <= 8:
            first_look = min(look for look in [*looks, now] if look > put_at[0] or look == now)
            assert age >= now - first_look - 1e-6


def test_the_age_of_a_queue_that_nobody_takes_from_grows() -> None:
    ages = Ages()
    for second in range(1000):
        age = ages.look(float(second), 5 + second, 0)
    assert age == 999


def test_rates_are_those_between_two_looks() -> None:
    queue = Surveyed(0, b"q", _figures(put=10, length=10), 100.0)
    queue.update(_figures(put=30, taken=5, length=25), 102.0)
    assert (queue.put_rate, queue.taken_rate) == (10, 2.5)
    assert list(queue.lengths or ()) == [10, 25]


def test_a_queue_that_is_created_again_begins_anew() -> None:
    queue = Surveyed(0, b"q", _figures(put=10, length=10), 100.0)
    queue.update(_figures(put=2, length=2), 200.0)
    assert (queue.put_rate, queue.taken_rate, queue.age) == (0, 0, 0)


def test_a_message_that_goes_back_changes_neither_counts_nor_the_age_of_others() -> None:
    queue = Surveyed(0, b"q", _figures(put=10, taken=5, length=5), 100.0)
    queue.update(_figures(put=10, taken=6, length=4), 110.0)
    assert queue.update(_figures(put=10, taken=5, length=5), 120.0)
    assert (queue.counts[COUNTS.index("taken")], queue.taken_rate, queue.age) == (6, 0, 20)
    assert not queue.update(_figures(made=b"1.2", put=10, taken=5, length=5), 130.0)
    assert (queue.counts[COUNTS.index("taken")], queue.age) == (5, 0)


def _with_survey(backend: Valkey, scenario: Callable[[Survey], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = Broker(Address(backend.url), prefix="__pressure__", policy=Policy())
        await broker.start(to_look=True)
        try:
            await scenario(Survey(broker))
        finally:
            await broker.settle(1)
            await broker.close()

    asyncio.run(run())


def test_figures_are_those_that_pressure_info_shows(server: Server, client: Client, backend: Valkey) -> None:
    for kind in ("fifo", "jobs", "lifo", "random", "log"):
        client.execute_command("PRESSURE.CREATE", kind, "TYPE", kind, "BOUND", "9")
        client.execute_command("SADD", kind, "a", "bb", "ccc")
        client.execute_command("SPOP", kind)
    client.execute_command("PRESSURE.CREATE", "reserving")
    client.execute_command("SADD", "reserving", "a", "b")
    for queue in ("jobs", "lifo", "reserving"):
        client.execute_command("PRESSURE.RESERVE", queue, "TIMEOUT", "1", "DETACHED", "me")
    client.execute_command("PRESSURE.CLOSE", "fifo")

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        assert len(survey.queues) == 6
        for (_, name), queue in survey.queues.items():
            shown = client.execute_command("PRESSURE.INFO", name)
            about = dict(zip(shown[::2], shown[1::2], strict=True)) if isinstance(shown, list) else shown
            figures = queue.figures
            fields = (
                b"type", b"length", b"bound", b"closed", b"produced_messages", b"produced_bytes",
                b"consumed_messages", b"consumed_bytes", b"delayed", b"reserved", b"buried",
            )  # fmt: skip
            expected = [about[field] for field in fields]
            assert [
                figures.type, figures.length, figures.bound, figures.is_closed, figures.put,
                figures.put_bytes, figures.taken, figures.taken_bytes, figures.delayed,
                figures.reserved, figures.buried,
            ] == expected, name  # fmt: skip
        assert survey.totals.closed == 1
        assert survey.totals.reserved == 3
        assert survey.queues[0, b"jobs"].figures.deliveries == 1

    _with_survey(backend, scenario)


def test_counts_only_grow_also_if_queues_are_deleted(client: Client, backend: Valkey) -> None:
    client.sadd("old", "x")

    async def scenario(survey: Survey) -> None:
        before = dict.fromkeys(COUNTS, 0)
        for step in range(6):
            if step % 3 == 2:
                client.delete("q")
            else:
                client.sadd("q", *range(step + 2))
                client.spop("q")
            await survey.run_once()
            now = {count: survey.counts[count] for count in COUNTS}
            assert all(now[count] >= before[count] for count in COUNTS)
            before = now
        # What was there in the first round is not counted, and SADD puts only messages that are not queued.
        assert survey.counts["put"] == 2 + 5 + 2
        assert (0, b"q") not in survey.queues
        assert survey.totals.length == 1

    _with_survey(backend, scenario)


def test_counts_only_grow_also_if_messages_go_back(client: Client, backend: Valkey) -> None:
    client.execute_command("PRESSURE.CREATE", "q")
    client.sadd("q", *range(10))

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        for _ in range(2):
            reserved = client.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "me")
            await survey.run_once()
            assert survey.counts["taken"] == 1
            assert client.execute_command("PRESSURE.RELEASE", "q", reserved[1], "TOKEN", "me") == 1
            await survey.run_once()
            assert survey.counts["taken"] == 1
        # The next queue of the same name has more messages than the first one.
        client.delete("q")
        client.sadd("q", *range(20))
        await survey.run_once()
        assert (survey.counts["put"], survey.counts["taken"]) == (20, 1)

    _with_survey(backend, scenario)


def test_a_queue_is_full_if_puts_find_no_room(client: Client, backend: Valkey) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "TYPE", "JOBS", "MAX-BYTES", 4, "OVERFLOW", "ERROR")
    client.sadd("q", "four")

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        assert survey.totals.full == 1
        client.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "me")
        await survey.run_once()
        # Reserved jobs leave room for others.
        assert (survey.totals.full, survey.totals.bytes) == (0, 4)
        assert client.sadd("q", "five") == 1

    _with_survey(backend, scenario)


def test_dead_letters_and_timeouts_are_counted(client: Client, backend: Valkey) -> None:
    client.execute_command("PRESSURE.CREATE", "letters", "TYPE", "JOBS")
    client.execute_command(
        "PRESSURE.CREATE", "q", "TYPE", "JOBS", "MAX-DELIVERIES", "1", "DEAD-LETTER", "letters"
    )
    client.execute_command("SADD", "q", "job")
    reserved = client.execute_command("PRESSURE.RESERVE", "q", "TIMEOUT", "1", "DETACHED", "me")
    assert client.execute_command("PRESSURE.RELEASE", "q", reserved[1], "TOKEN", "me") == 1

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        figures = survey.queues[0, b"q"].figures
        assert (figures.deliveries, figures.dead_letters, figures.length) == (1, 1, 0)
        assert survey.queues[0, b"letters"].figures.length == 1

    _with_survey(backend, scenario)


def test_keys_that_are_damaged_do_not_stop_the_survey(
    client: Client, direct: Client, backend: Valkey
) -> None:
    client.sadd("good", "x")
    client.sadd("bad", "x")
    direct.delete("__pressure__:bad")
    direct.set("__pressure__:bad", "not a list")
    client.sadd("odd", "x")
    direct.set("__pressure__:odd:stats:produced_messages", "abc")

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        assert set(survey.queues) == {(0, b"good"), (0, b"odd")}
        odd = survey.queues[0, b"odd"].figures
        assert (odd.put, odd.length) == (0, 1)

    _with_survey(backend, scenario)


@pytest.mark.parametrize("name", [b"\xff\x00", b"a" * 2000, b"x y\n", b"{a}[b]*?"])
def test_any_name_is_surveyed(client: Client, backend: Valkey, name: bytes) -> None:
    client.sadd(name, "x")

    async def scenario(survey: Survey) -> None:
        await survey.run_once()
        assert list(survey.queues) == [(0, name)]

    _with_survey(backend, scenario)
