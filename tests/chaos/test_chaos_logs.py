"""The chaos test finds what is lost or doubled in logs, and among puts with transaction ids."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import once, plan, report
from tests.chaos.causes import Incident
from tests.chaos.journal import Journal
from tests.chaos.ledger import Refusal
from tests.chaos.log_ledger import LogLedger
from tests.chaos.messages import make_name, message
from tests.chaos.once import Put
from tests.chaos.plan import Fault, Timeouts
from tests.chaos.producers import Pace
from tests.chaos.run import Outcome, Settings, run
from tests.support.ledger import Event
from tests.support.waiters import Words

LOG = "log-wide"
FIRST, SECOND, THIRD = NAMES = [make_name(1, number) for number in range(3)]
SENT = Event("producer", LOG, "a", 1.0)
RECEIPT = Event("consumer", f"{LOG}+alone", "a", 2.0)
AGAIN = Event("other consumer", f"{LOG}+alone", "b", 9.0)


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    """The outcome of a run that asked for no messages. A proxy and the backend were broken."""
    outcome = Outcome(Settings(0, [], 2, Timeouts(3.0, 0.5, 0.5), tmp_path, 1))
    outcome.incidents += [
        Incident(plan.PROXY_KILLED, "a", 2.1, 3.0),
        Incident(plan.POWER_CUT, "", 2.1, 3.0),
    ]
    return outcome


@pytest.fixture
def log(outcome: Outcome) -> LogLedger:
    """A log with three messages sent, of which two are acknowledged, and received by all groups."""
    log = outcome.logs[LOG]
    log.send(NAMES, SENT)
    log.acknowledge([FIRST, SECOND])
    for group in log.groups.values():
        for name in (FIRST, SECOND):
            group.end(name, RECEIPT)
    assert report.failures(outcome) == []
    return log


def test_a_message_that_one_group_does_not_get_is_lost(outcome: Outcome, log: LogLedger) -> None:
    log.acknowledge([THIRD])
    log.groups["alone"].end(THIRD, RECEIPT)
    log.groups["tube"].doubt([THIRD])
    assert report.failures(outcome) == ["1 messages lost"]
    (lost,) = log.groups["shared"].lost()
    assert (lost.message, lost.sent) == (THIRD, SENT._replace(queue=f"{LOG}+shared"))
    assert "lost            1" in report.lines(outcome)
    assert outcome.acknowledged == outcome.in_logs == log.acknowledged == 3


def test_nothing_explains_a_message_that_a_group_has_finished_twice(outcome: Outcome, log: LogLedger) -> None:
    log.groups["alone"].end(FIRST, AGAIN)
    assert report.failures(outcome) == ["1 duplicates without a cause"]


def test_a_broken_process_explains_a_plain_get_from_a_group_done_twice(
    outcome: Outcome, log: LogLedger
) -> None:
    log.groups["tube"].receive([THIRD], RECEIPT)
    log.groups["tube"].receive([THIRD], AGAIN)
    assert report.failures(outcome) == []
    assert [incident and incident.kind for _, incident in report.explain(outcome)] == [plan.PROXY_KILLED]


def test_nothing_explains_a_reservation_by_read_that_ends_early(outcome: Outcome, log: LogLedger) -> None:
    refused = RECEIPT._replace(when=2.5)
    log.groups["alone"].refusals.append(Refusal(FIRST, "delete", RECEIPT, refused, is_detached=True))
    assert report.failures(outcome) == ["1 reservations that ended early without a cause"]


def test_a_message_that_is_twice_in_a_log_has_two_offsets(outcome: Outcome, log: LogLedger) -> None:
    log.locate_all([FIRST, SECOND], 7, "put")
    log.deliver("alone", FIRST, 7, 1, "ann")
    log.find(message(SECOND), 8, "bob")
    assert log.wrong_offsets == []
    log.deliver("alone", FIRST, 9, 1, "bob")
    log.find(message(SECOND) + b"x", 8, "bob")
    log.locate(THIRD, 7, "put")
    log.miss(8, "bob")
    assert log.wrong_offsets == [
        "1.0 has the offsets 7 and 9 (bob)",
        f"8 has {message(SECOND) + b'x'!r}, which nobody sent (bob)",
        "7 is the offset of 1.0 and of 1.2 (put)",
        "8 of 1.1 is yet to come (bob)",
    ]
    assert "4 wrong offsets" in report.failures(outcome)


def test_a_delivery_that_two_consumers_get_is_a_failure(outcome: Outcome, log: LogLedger) -> None:
    log.deliver("shared", FIRST, 0, 1, "ann")
    log.deliver("shared", FIRST, 0, 2, "bob")
    log.deliver("alone", FIRST, 0, 1, "cid")
    assert (log.first_deliveries, log.later_deliveries) == (2, 1)
    assert report.failures(outcome) == []
    log.deliver("shared", FIRST, 0, 2, "ann")
    assert log.repeated_deliveries == [f"{LOG}+shared: delivery 2 of 1.0 (offset 0) to bob and to ann"]
    assert report.failures(outcome) == ["1 deliveries with the number of another"]


def test_first_deliveries_to_the_only_consumer_of_a_group_are_in_order(
    outcome: Outcome, log: LogLedger
) -> None:
    log.deliver("alone", SECOND, 1, 1, "ann", is_alone=True)
    log.deliver("alone", FIRST, 0, 2, "ann", is_alone=True)
    log.deliver("shared", THIRD, 2, 1, "ann")
    log.deliver("shared", FIRST, 0, 1, "ann")
    assert report.failures(outcome) == []
    log.deliver("alone", FIRST, 0, 1, "bob", is_alone=True)
    assert log.disordered == [f"{LOG}+alone: delivery 1 of 1.0 (offset 0) to bob after that of offset 1"]
    assert report.failures(outcome) == ["1 first deliveries out of order"]


def test_an_offset_is_chosen_among_the_newest() -> None:
    log, chance = LogLedger("log", ["g"]), random.Random(1)
    assert log.some_offset(chance) is None
    log.locate(FIRST, 5, "put")
    assert {log.some_offset(chance) for _ in range(100)} == {5, None}


def test_nothing_explains_a_message_with_an_id_that_ends_twice(outcome: Outcome) -> None:
    outcome.once.put([FIRST], SENT)
    outcome.once.end(FIRST, RECEIPT)
    outcome.once.end(FIRST, AGAIN)
    assert report.failures(outcome) == ["1 duplicates without a cause"]


def test_an_id_that_queues_of_two_ledgers_have_given_is_wrong(outcome: Outcome, log: LogLedger) -> None:
    outcome.once.put([FIRST], SENT)
    outcome.once.end(FIRST, RECEIPT)
    outcome.once.identify(FIRST, 7, is_kept=True)
    log.groups["alone"].identify(FIRST, 8, is_kept=True)
    assert report.failures(outcome) == []
    log.groups["tube"].identify(FIRST, 7, is_kept=True)
    assert report.failures(outcome) == ["1 wrong ids of jobs"]


class Server:
    """A caller of a server with one log. `script` says for each write how many commands it answers.

    A write of NO_REPLY is done, and not answered. If the server `ignores_ids`, it does every put again.
    """

    name, proxy = "caller", "a"

    def __init__(self, *script: int, ignores_ids: bool = False) -> None:
        self.messages: list[bytes] = []
        self.writes: list[list[Words]] = []
        self._script = [*script]
        self._offsets: dict[Any, int] = {}
        self._ignores_ids = ignores_ids

    async def ask(self, *commands: Words, waits: float = 0.0) -> list[Any]:
        if commands[0][0] == "PRESSURE.OUTCOME":
            offset = self._offsets.get(commands[0][2])
            return [[b"done" if offset is not None else b"unknown", offset]]
        self.writes.append([*commands])
        answered = self._script.pop(0) if self._script else len(commands)
        replies = [self._put(words) for words in (commands if answered == NO_REPLY else commands[:answered])]
        return replies[: max(0, answered)]

    def _put(self, words: Words) -> int:
        _, _, data, _, transaction, _ = words
        assert isinstance(data, bytes)
        if self._ignores_ids or transaction not in self._offsets:
            self._offsets[transaction] = len(self.messages)
            self.messages.append(data)
        return self._offsets[transaction]

    def close(self) -> None:
        pass


NO_REPLY = -1


def settle(
    server: Server, monkeypatch: pytest.MonkeyPatch, *, again: bool = False
) -> tuple[LogLedger, Journal]:
    """Let a producer settle three puts, and return what it has noted."""
    monkeypatch.setattr(once, "_HANG_UPS", 0.0)
    monkeypatch.setattr(once, "_AGAIN", float(again))
    monkeypatch.setattr(once, "_ASKED", 1.0)
    monkeypatch.setattr(once, "_ASKED_BEFORE", 1.0)
    log, journal, chance = LogLedger("log-q", ["g"]), Journal(), random.Random(1)
    log.send(NAMES, SENT)
    puts = [
        Put(f"t{n}", "log-q", [name], [("PRESSURE.PUT", "log-q", message(name), "TXN", f"t{n}", "OFFSET")])
        for n, name in enumerate(NAMES)
    ]
    callers: Any = [server]

    async def work() -> None:
        pace = Pace(lambda: 0, 0, lambda: 0.0)
        await once.OnceLogProducer(callers, 1, "log-q", log, journal, pace, chance, log).settle(puts)

    asyncio.run(work())
    return log, journal


def test_a_put_without_a_reply_is_sent_again_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(1, NO_REPLY, 0)
    log, journal = settle(server, monkeypatch)
    assert [len(write) for write in server.writes] == [3, 2, 2, 2]
    assert server.writes[0][1:] == server.writes[1] == server.writes[2] == server.writes[3]
    assert (log.acknowledged, server.messages) == (3, [message(name) for name in NAMES])
    assert journal.resends == {
        "connection broken, not done yet": 2,
        "connection broken, done already": 4,
    }
    assert not log.wrong_offsets
    assert not journal.complaints + journal.contradictions


def test_a_server_that_does_a_put_twice_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(NO_REPLY, ignores_ids=True)
    log, journal = settle(server, monkeypatch, again=True)
    assert len(server.messages) == 9
    assert len(journal.contradictions) == 3
    assert journal.contradictions[0] == "caller: PRESSURE.PUT with id t0 returned 3, and then 6"
    log.find(server.messages[0], 0, "reader")
    assert log.wrong_offsets == ["1.0 has the offsets 3 and 0 (reader)"]


@pytest.mark.parametrize(
    ("commands", "replies", "reply"),
    [
        ([("PRESSURE.PUT",)], [1], 1),
        ([("PRESSURE.PUT",)], [], None),
        ([("PRESSURE.TXN",), ("SADD",)], [b"OK", 3], 3),
        ([("PRESSURE.TXN",), ("SADD",)], [b"OK"], None),
        ([("MULTI",), ("PRESSURE.TXN",), ("SADD",), ("EXEC",)], [b"OK", b"QUEUED", b"QUEUED", [b"OK", 3]], 3),
        ([("MULTI",), ("PRESSURE.TXN",), ("SADD",), ("EXEC",)], [b"OK", b"QUEUED", b"QUEUED", None], None),
    ],
)
def test_the_reply_to_a_put_is_found(commands: list[Words], replies: list[Any], reply: Any) -> None:
    put = Put("t", "q", NAMES, commands)
    assert put.reply_in(replies) == reply
    assert put.verb == ("PRESSURE.PUT" if len(commands) == 1 else "SADD")


# Runs.


@pytest.mark.slow
def test_a_run_reports_what_is_lost_or_doubled_in_logs(tmp_path: Path) -> None:
    faults = [
        Fault(kind, place=0, pause=0.1, seconds=0.0, overlaps=False, seed=number)
        for number in range(2)
        for kind in plan.SABOTAGE_OF_LOGS
    ]
    wanted = Settings(1500, faults, 1, Timeouts(3.0, 0.5, 0.5), tmp_path / "chaos", 4)
    outcome = asyncio.run(run(wanted, print))
    print("\n".join(report.lines(outcome)))
    assert not outcome.ledger.doubled()
    assert not outcome.ledger.lost()
    # A stolen message is not lost if a consumer has read it before, and given it back.
    stolen = sum(len(group.lost()) for log in outcome.logs.values() for group in log.groups.values())
    assert 1 <= stolen <= 2
    complaints = " ".join(outcome.journal.complaints + outcome.journal.contradictions)
    assert "once-" in complaints
    assert "were acknowledged; its statistics count" in complaints or "is empty; its statistics" in complaints
    reasons = {text.partition(" ")[2] for text in report.failures(outcome)}
    assert {"messages lost", "duplicates without a cause", "wrong offsets"} <= reasons
