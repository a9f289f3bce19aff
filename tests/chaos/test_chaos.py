"""Short chaos runs, and the ledger, the causes and the report that judge a run."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.chaos import hang_ups, plan, report
from tests.chaos.backends import ClusterBackend, SentinelBackend, SingleBackend
from tests.chaos.beanstalk import BeanstalkError, Job, JobReader
from tests.chaos.causes import Incident, cause, seconds_before_cut
from tests.chaos.evidence import follow
from tests.chaos.ledger import NamedLedger, Refusal
from tests.chaos.messages import flags_of, make_name, message, name_of
from tests.chaos.plan import Fault, Kind, Timeouts
from tests.chaos.run import Outcome, Settings, run
from tests.support.ledger import Doubled, Event, Strange
from tests.support.nodes import Engine
from tests.support.replies import Item, MemcachedError, MemcachedReader
from tests.support.waiters import packed

# Short, but so long that no proxy is taken for dead if only connections break.
TIMEOUTS = Timeouts(proxy=3.0, backend=0.5, grace=0.5)
SEED = 4

FIRST, SECOND, THIRD = (make_name(1, number) for number in range(3))
SENT = Event("producer", "q", "a", 1.0)
RECEIPT = Event("consumer", "q", "a", 2.0)
SECOND_RECEIPT = Event("other consumer", "q", "b", 9.0)


def settings(folder: Path, faults: Sequence[Fault], *, messages: int, proxies: int = 2) -> Settings:
    return Settings(messages, faults, proxies, TIMEOUTS, folder / "chaos", SEED)


def outcome_of(wanted: Settings) -> Outcome:
    """Run, print the report, and return the outcome."""
    outcome = asyncio.run(run(wanted, print))
    print("\n".join(report.lines(outcome)))
    return outcome


def fault(kind: Kind, seconds: float, *, seed: int = SEED) -> Fault:
    return Fault(kind, place=0, pause=0.1, seconds=seconds, overlaps=False, seed=seed)


# The parts of the test.


def test_a_changed_message_is_recognised() -> None:
    names = [make_name(3, number) for number in range(1000)]
    messages = [message(name) for name in names]
    assert [name_of(data) for data in messages] == names
    assert max(map(len, messages)) > 1000
    for wrong in (b"", b"3.1", messages[0] + b"x", messages[0][:-1]):
        with pytest.raises(ValueError, match="not a message"):
            name_of(wrong)


def test_an_unknown_or_changed_message_is_strange() -> None:
    ledger = NamedLedger()
    ledger.send([FIRST], SENT)
    for data in (message(SECOND), message(FIRST) + b"x", message(FIRST)):
        ledger.read(data, RECEIPT)
    assert ledger.strange == [Strange(message(SECOND), RECEIPT), Strange(message(FIRST) + b"x", RECEIPT)]
    assert ledger.received == 1


def test_a_message_with_other_flags_is_strange() -> None:
    ledger = NamedLedger()
    flagged = make_name(1, 3, 7)
    assert [flags_of(name) for name in (FIRST, flagged)] == [0, 7]
    ledger.put([FIRST, flagged], SENT)
    ledger.read(message(FIRST), RECEIPT, 0)
    ledger.read(message(flagged), RECEIPT)
    ledger.see(message(flagged), RECEIPT, 7)
    assert not ledger.strange
    ledger.see(message(FIRST), RECEIPT, 7)
    ledger.read(message(flagged), SECOND_RECEIPT, 0)
    assert ledger.strange == [
        Strange(message(FIRST), RECEIPT, 7),
        Strange(message(flagged), SECOND_RECEIPT, 0),
    ]
    assert ledger.doubled() == [Doubled(flagged, [RECEIPT, SECOND_RECEIPT])]
    assert not ledger.lost()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_memcached_replies_are_parsed_in_pieces_of_any_size(size: int) -> None:
    sent = (
        b"STORED\r\nVALUE a 7 4\r\n\r\nab\r\nVALUE b 0 0\r\n\r\nEND\r\nSERVER_ERROR FULL\r\nEND\r\nVALUE c 0"
    )
    reader, found = MemcachedReader(), []
    for first in range(0, len(sent), size):
        reader.feed(sent[first : first + size])
        while (reply := reader.gets()) is not False:
            found.append(reply)
    assert found[:2] == [b"STORED", [Item("a", 7, b"\r\nab"), Item("b", 0, b"")]]
    assert isinstance(found[2], MemcachedError)
    assert found[3:] == [[]]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_beanstalk_replies_are_parsed_in_pieces_of_any_size(size: int) -> None:
    sent = (
        b"INSERTED 12\r\nRESERVED 3 6\r\n\r\nab\r\n\r\nFOUND 7 0\r\n\r\n"
        b"INTERNAL_ERROR\r\nDELETED\r\nRESERVED 1"
    )
    reader, found = JobReader(), []
    for first in range(0, len(sent), size):
        reader.feed(sent[first : first + size])
        while (reply := reader.gets()) is not False:
            found.append(reply)
    assert found[:3] == [b"INSERTED 12", Job(3, b"\r\nab\r\n"), Job(7, b"")]
    assert isinstance(found[3], BeanstalkError)
    assert found[4:] == [b"DELETED"]


@pytest.mark.parametrize("reply", [b"BAD_FORMAT\r\n", b"EXPECTED_CRLF\r\n", b"RESERVED 1 1\r\nabc\r\n"])
def test_a_wrong_beanstalk_reply_is_an_error(reply: bytes) -> None:
    reader = JobReader()
    reader.feed(reply)
    with pytest.raises(ValueError, match=r"refused|no line end"):
        reader.gets()


def test_a_job_that_never_ends_is_lost_unless_its_deletion_had_no_reply(tmp_path: Path) -> None:
    outcome = Outcome(settings(tmp_path, [], messages=3))
    ledger = outcome.ledger
    ledger.send([FIRST, SECOND, THIRD], SENT)
    for job, name in enumerate((FIRST, SECOND, THIRD), 1):
        ledger.inserted(name, job)
        ledger.see(message(name), RECEIPT)
    ledger.end(FIRST, RECEIPT)
    ledger.doubt([SECOND])
    assert (ledger.jobs, ledger.received, ledger.doubtful) == (3, 1, 1)
    assert [one.message for one in ledger.lost()] == [THIRD]
    assert report.failures(outcome) == ["1 messages lost"]


def test_nothing_explains_a_job_that_has_ended_twice(tmp_path: Path) -> None:
    outcome = Outcome(settings(tmp_path, [], messages=2))
    outcome.incidents.append(Incident(plan.PROXY_KILLED, "a", 2.1, 3.0))
    ledger = outcome.ledger
    ledger.put([FIRST, SECOND], SENT)
    ledger.end(FIRST, RECEIPT)
    ledger.end(FIRST, SECOND_RECEIPT)
    ledger.receive([SECOND], RECEIPT)
    ledger.end(SECOND, SECOND_RECEIPT)
    assert [incident for _, incident in report.explain(outcome)] == [None, outcome.incidents[0]]
    assert report.failures(outcome) == ["1 duplicates without a cause"]


@pytest.mark.parametrize(
    ("kind", "proxy", "is_detached", "is_explained"),
    [
        (plan.PROXY_KILLED, "a", False, True),
        (plan.PROXY_KILLED, "a", True, False),
        (plan.PROXY_KILLED, "b", False, False),
        (plan.POWER_CUT, "", False, False),
        (plan.PARTITION, "", False, True),
        (plan.PARTITION, "", True, False),
        (plan.CLIENTS_CUT, "a", False, False),
    ],
)
def test_only_its_broken_proxy_or_network_explains_a_reservation_that_ended_early(
    tmp_path: Path, kind: Kind, proxy: str, *, is_detached: bool, is_explained: bool
) -> None:
    outcome = Outcome(settings(tmp_path, [], messages=1))
    outcome.incidents.append(Incident(kind, proxy, 2.1, 3.0))
    outcome.ledger.put([FIRST], SENT)
    outcome.ledger.end(FIRST, RECEIPT)
    refused = RECEIPT._replace(when=2.5)
    outcome.ledger.refusals.append(Refusal(FIRST, "touch", RECEIPT, refused, is_detached))
    expected = [] if is_explained else ["1 reservations that ended early without a cause"]
    assert report.failures(outcome) == expected


def test_only_changes_of_the_last_seconds_before_a_power_cut_may_be_lost(tmp_path: Path) -> None:
    outcome = Outcome(replace(settings(tmp_path, [], messages=3), may_lose=2.0))
    times = ((1.0, 2.0), (1.0, 5.5), (5.1, 5.2), (9.0, 9.1))
    assert [seconds_before_cut(*time, [5.0, 8.2]) for time in times] == pytest.approx(
        [3.0, 0.0, 3.0, math.inf]
    )
    now = time.monotonic()
    outcome.ledger.put([FIRST, SECOND, THIRD], SENT._replace(when=now))
    for cut, may_be_lost in ((now - 5, 0), (now + 1, 3), (now + 3, 0)):
        outcome.cuts = [cut]
        assert report.failures(outcome) == ([] if may_be_lost else ["3 messages lost"])
        assert len(report.lost_messages(outcome)[1]) == may_be_lost
    outcome.settings, outcome.cuts = replace(outcome.settings, may_lose=0.0), [now + 1]
    assert report.failures(outcome) == ["3 messages lost"]


def test_a_job_with_two_ids_and_an_id_with_two_jobs_are_wrong() -> None:
    ledger = NamedLedger()
    ledger.identify(FIRST, 1, is_kept=True)
    ledger.identify(SECOND, 2, is_kept=False)
    ledger.identify(SECOND, 3, is_kept=False)
    assert not ledger.wrong_ids
    ledger.identify(FIRST, 4, is_kept=True)
    ledger.identify(THIRD, 2, is_kept=True)
    assert ledger.wrong_ids == ["1.0 has the ids 1 and 4", "2 is the id of 1.1 and of 1.2"]


PROXY_KILLED_LATER = Incident(plan.PROXY_KILLED, "a", 5.0, 6.0)


@pytest.mark.parametrize(
    ("incidents", "is_explained"),
    [
        ([Incident(plan.PROXY_KILLED, "a", 2.1, 3.0)], True),
        ([Incident(plan.PROXY_ZOMBIE, "b", 1.0, 8.9)], True),
        ([Incident(plan.POWER_CUT, "", 2.1, 3.0)], True),
        # Proxy a could not acknowledge the delivery before it was killed.
        ([PROXY_KILLED_LATER, Incident(plan.BACKEND_SILENT, "a", 1.9, 4.5)], True),
        ([PROXY_KILLED_LATER, Incident(plan.BACKEND_SILENT, "b", 1.9, 4.5)], False),
        ([Incident(plan.BACKEND_CUT, "a", 2.1, 2.1)], False),
        ([Incident(plan.CLIENTS_CUT, "a", 2.1, 2.1)], False),
        ([Incident(plan.PROXY_KILLED, "c", 2.1, 3.0)], False),
        ([Incident(plan.PROXY_KILLED, "a", 4.1, 4.2)], False),
        ([Incident(plan.PROXY_KILLED, "a", 9.1, 9.2)], False),
    ],
)
def test_only_a_broken_process_explains_a_duplicate(incidents: list[Incident], is_explained: bool) -> None:
    duplicate = Doubled(FIRST, [RECEIPT, SECOND_RECEIPT])
    assert cause(duplicate, incidents, TIMEOUTS.proxy) == (incidents[0] if is_explained else None)


def test_the_append_only_file_shows_the_steps_of_a_message(tmp_path: Path) -> None:
    file = tmp_path / "appendonly.aof"
    step: list[tuple[str | bytes | int, ...]] = [
        ("LPUSH", "q", message(FIRST), message(SECOND)),
        ("MULTI",),
        ("RPOP", "q", 1),
        ("SET", "q:consumer", "somebody"),
        ("EXEC",),
    ]
    file.write_bytes(b"#TS:1\r\n" + b"".join(packed(*words) for words in step) + b"*2\r\n$4\r\nLPU")
    found = follow([FIRST, SECOND, THIRD], [file])
    assert [line.partition(" ")[0] for line in found[FIRST]] == ["LPUSH", "RPOP"]
    assert "SET q:consumer somebody" in found[FIRST][1]
    assert (len(found[SECOND]), found[THIRD]) == (1, [])


def test_the_append_only_file_shows_the_steps_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "appendonly.aof"
    steps: list[tuple[str | bytes | int, ...]] = [
        (
            "HSET",
            "q:ext:jobs",
            "000000000000a",
            b"1700000000000 5 0 1000 0 0 " + message(FIRST),
            "000000000000b",
            b"1 2 3 " + message(SECOND),
        ),
        ("MULTI",),
        ("ZADD", "q:ext:reserved", 9, "000000000000a"),
        ("HSET", "q:ext:jobs", "000000000000a:", "packed"),
        ("EXEC",),
        ("ZADD", "other:ext:ready", 9, "000000000000a"),
        ("HDEL", "q:ext:jobs", "000000000000a"),
    ]
    file.write_bytes(b"".join(packed(*words) for words in steps))
    found = follow([FIRST, SECOND], [file])
    assert [line.partition(" (with")[0] for line in found[FIRST][1:]] == [
        "ZADD q:ext:reserved 000000000000a; HSET q:ext:jobs 000000000000a:",
        "HDEL q:ext:jobs 000000000000a",
    ]
    assert [len(lines) for lines in found.values()] == [3, 1]


def test_a_seed_decides_the_plan() -> None:
    def made(seed: int) -> list[Fault]:
        return plan.make(plan.KINDS, 100, 2, TIMEOUTS, seed)

    assert made(1) == made(1) != made(2)
    assert {fault.kind for fault in made(1)[: len(plan.KINDS)]} == set(plan.KINDS)


def test_a_run_with_too_few_messages_or_faults_fails(tmp_path: Path) -> None:
    faults = plan.make(plan.KINDS, 2, 2, TIMEOUTS, SEED)
    outcome = Outcome(settings(tmp_path, faults, messages=3))
    assert report.failures(outcome) == ["3 messages fewer than asked for", "2 faults fewer than asked for"]


# Runs.


@pytest.mark.slow
def test_a_run_reports_lost_doubled_and_forged_messages(tmp_path: Path) -> None:
    faults = [fault(kind, seconds=0.0) for kind in plan.SABOTAGE]
    outcome = outcome_of(settings(tmp_path, faults, messages=2000, proxies=1))
    ledger = outcome.ledger
    assert (len(ledger.lost()), len(ledger.doubled())) == (1, 1)
    # A worker that gives it back has seen it, too.
    assert {one.data for one in ledger.strange} == {b"0.0:forged"}
    failures = report.failures(outcome)
    assert {"1 messages lost", "1 duplicates without a cause"} <= {*failures}
    assert any("strange messages" in text for text in failures)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_no_message_is_lost_whatever_breaks(tmp_path: Path) -> None:
    faults = plan.make(plan.KINDS, len(plan.KINDS), 2, TIMEOUTS, SEED)
    outcome = outcome_of(settings(tmp_path, faults, messages=3000))
    assert report.failures(outcome) == []


# A busy machine would make replicas take over unasked.
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_no_message_is_lost_whatever_happens_to_a_cluster(tmp_path: Path) -> None:
    kinds = [*dict.fromkeys(plan.KINDS_OF_CLUSTER)]
    faults = plan.make(kinds, len(kinds), 2, TIMEOUTS, SEED)
    timeouts = TIMEOUTS._replace(grace=20.0)
    wanted = settings(tmp_path, faults, messages=2000)
    backend = ClusterBackend
    outcome = outcome_of(replace(wanted, timeouts=timeouts, backend=backend))
    assert report.failures(outcome) == []


@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_no_message_is_lost_when_the_network_or_the_power_of_nodes_with_sentinel_breaks(
    tmp_path: Path,
) -> None:
    kinds = [plan.PARTITION, plan.LOSSY, plan.MASTER_CUT, plan.REPLICA_CUT]
    faults = plan.make(kinds, len(kinds), 2, TIMEOUTS, SEED)
    timeouts = TIMEOUTS._replace(grace=20.0)
    wanted = settings(tmp_path, faults, messages=1000)
    outcome = outcome_of(replace(wanted, timeouts=timeouts, backend=SentinelBackend))
    assert report.failures(outcome) == []


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_power_cut_of_a_backend_that_syncs_each_second_loses_the_last_seconds_at_most(
    tmp_path: Path,
) -> None:
    """Queues are drained all the same: no message stays reserved for a client that had ended it."""
    faults = [fault(plan.POWER_CUT, seconds=0.2, seed=SEED + number) for number in range(3)]
    backend = partial(SingleBackend, engine=Engine.VALKEY, appendfsync="everysec")
    wanted = replace(settings(tmp_path, faults, messages=2000), backend=backend, may_lose=2.0)
    outcome = outcome_of(wanted)
    assert report.failures(outcome) == []
    assert any(ledger.lost() for ledger in outcome.ledgers)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_clients_that_hang_up_in_a_stall_lose_no_message(tmp_path: Path) -> None:
    faults = [fault(plan.CLIENTS_HANG_UP, seconds=0.2, seed=SEED + number) for number in range(4)]
    outcome = outcome_of(settings(tmp_path, faults, messages=1000, proxies=1))
    assert report.failures(outcome) == []
    assert not any(ledger.doubled() for ledger in outcome.ledgers)
    in_stalls = [text for text in outcome.journal.hang_ups if text.startswith("in a stall")]
    assert len(in_stalls) == len(hang_ups.PATHS)


# A server that gets no processor time for six seconds is taken for dead, and its messages come twice.
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_no_message_is_doubled_if_only_connections_break(tmp_path: Path) -> None:
    kinds = [kind for kind in plan.KINDS if plan.ONLY["connections"](kind)]
    faults = plan.make(kinds, len(kinds), 2, TIMEOUTS, SEED)
    outcome = outcome_of(settings(tmp_path, faults, messages=3000))
    assert report.failures(outcome) == []
    assert not any(ledger.doubled() for ledger in outcome.ledgers)
