"""What several processes answer is put together: counts, statistics, clients in an order, slow commands."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.resp.session import RespSession
from pressure_server.errors import BackendError, PressureError, UnblockedError
from pressure_server.net import workers
from pressure_server.net.client_facts import SelectedClients, Selection
from pressure_server.net.command_statistics import BUCKETS, CommandStatistics, total_statistics
from pressure_server.net.slow_log import SlowLog
from pressure_server.net.workers import Totals, Workers
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.operations.operation import Line
from tests.unit.net.fake_server import Server


def sent(answers: Any) -> Any:
    """Return what arrives of answers at another process."""
    return pickle.loads(pickle.dumps(answers))


def asked(answers: Sequence[Any]) -> Workers:
    """Return workers that answer any question so."""

    async def ask_all(_question: str, *_arguments: Any) -> list[Any]:
        return list(map(sent, answers))

    return Workers(ask_all)


async def test_totals_are_the_sums_of_all_processes() -> None:
    each = [
        Totals(protocols=Counter(resp=2, memcached=1), blocked=1, user_seconds=0.5, max_clients=10),
        Totals(protocols=Counter(resp=3), accepted=7, user_seconds=1.0, max_clients=10),
    ]
    total = await asked(each).totals()
    assert total == Totals(
        protocols=Counter(resp=5, memcached=1), blocked=1, accepted=7, user_seconds=1.5, max_clients=20
    )
    assert total.connected == 6
    assert await asked([]).totals() == Totals()


@given(st.lists(st.tuples(st.sampled_from(["put", "get"]), st.floats(0, 10), st.booleans(), st.booleans())))
def test_statistics_of_several_processes_are_those_of_one_that_did_all(
    calls: list[tuple[str, float, bool, bool]],
) -> None:
    alone: dict[str, CommandStatistics] = {}
    several: list[CommandStatistics] = []
    for name, seconds, fails, is_rejected in calls:
        several.append(CommandStatistics("resp", name))
        for one in (alone.setdefault(name, CommandStatistics("resp", name)), several[-1]):
            one.calls += 1
            one.measure(seconds)
            if fails:
                one.fail("ERR")
            if is_rejected:
                one.reject("NOPERM", 2)
    totals = {one.name: one for one in total_statistics(map(sent, several))}
    assert list(totals) == sorted(alone)
    for name, one in alone.items():
        total = totals[name]
        assert (total.protocol, total.calls, total.failed) == ("resp", one.calls, one.failed)
        assert (total.rejected, total.errors) == (one.rejected, one.errors)
        assert (total.latencies, len(total.latencies)) == (one.latencies, BUCKETS)
        assert total.seconds == pytest.approx(one.seconds)


@given(st.lists(st.lists(st.integers(0, 20))), st.booleans(), st.integers(1, 10))
def test_the_first_clients_of_all_are_among_the_first_of_each(
    values: list[list[int]], descending: bool, most: int
) -> None:
    selection = Selection("id", descending, "", most)

    def selected(own: list[int]) -> SelectedClients:
        first = sorted(own, reverse=descending)[:most]
        return SelectedClients(len(own), [(value, value) for value in first])  # type: ignore[misc] # no facts needed

    merged = SelectedClients.merged(list(map(selected, values)), selection)
    everyone = [value for own in values for value in own]
    assert merged.matching == len(everyone)
    assert [value for value, _ in merged.first] == sorted(everyone, reverse=descending)[:most]


async def test_slow_commands_come_latest_first() -> None:
    logs = [SlowLog(0, 5), SlowLog(0, 5)]
    for number in range(6):
        logs[number % 2].add(1.0, [b"%d" % number], "", "")
    slowest = await asked([log.latest(5) for log in logs]).slow_commands(4)
    assert [one.words for one in slowest] == [[b"5"], [b"4"], [b"3"], [b"2"]]


async def test_waiting_operations_are_added_and_others_are_none() -> None:
    producers, consumers = Line
    workers = asked([{b"q": {producers: 1, consumers: 0}}, {b"q": {producers: 2, consumers: 3}}, {}])
    waiting = await workers.waiting(0)
    assert waiting[b"q"] == {producers: 3, consumers: 3}
    assert waiting[b"other"] == {producers: 0, consumers: 0}


async def test_calls_are_added_by_database() -> None:
    workers = asked([{0: CallStatistics(calls=1, lost=2)}, {0: CallStatistics(calls=4), 3: CallStatistics()}])
    assert await workers.calls() == {0: CallStatistics(calls=5, lost=2), 3: CallStatistics()}
    assert await workers.databases() == [0, 3]


async def test_a_server_of_one_process_asks_itself(server: Server) -> None:
    connection, _ = server.connect()
    workers = server.context.workers
    assert (await workers.totals()).protocols == Counter(resp=1)
    assert await workers.selected_clients(Selection("id", False, "nobody", 0)) == SelectedClients(0, [])
    assert (await workers.selected_clients(Selection("id", False, "", 0))).matching == 1
    assert await workers.disconnect([connection.id + 1], "a test") == 0


async def test_a_client_is_unblocked_by_the_process_that_has_it() -> None:
    for answers, expected in (([False, True], True), ([False, False], False), ([], False)):
        assert await asked(answers).unblock(1, with_error=False) is expected
    with pytest.raises(BackendError, match="away"):
        await asked([False, BackendError("away")]).unblock(1, with_error=False)


async def test_a_client_whose_operation_stays_in_flight_is_not_known_to_be_unblocked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _ = server.connect()
    asked_for = list[PressureError | None]()

    async def unblock(error: PressureError | None) -> bool:
        asked_for.append(error)
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(RespSession, "unblock", lambda _session, error: unblock(error))
    monkeypatch.setattr(workers, "_UNBLOCK_TIMEOUT", 0.0)
    ours = server.context.workers
    assert not await ours.unblock(connection.id + 1, with_error=True)
    with pytest.raises(BackendError, match="has not answered in time"):
        await ours.unblock(connection.id, with_error=False)
    with pytest.raises(BackendError):
        await ours.unblock(connection.id, with_error=True)
    assert asked_for[0] is None
    assert isinstance(asked_for[1], UnblockedError)
