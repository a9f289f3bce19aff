"""The ledger of tests/support finds every message that was lost, doubled, strange or out of order."""

import pytest

from tests.support.ledger import Disordered, Doubled, Event, Ledger, Strange

SENT = Event("producer", "q", "a", 1.0)
RECEIPT = Event("consumer", "q", "a", 2.0)
AGAIN = Event("other consumer", "q", "b", 9.0)


@pytest.fixture
def ledger() -> Ledger:
    """A ledger of three messages sent, of which two are acknowledged."""
    ledger = Ledger()
    ledger.send([b"1", b"2", b"3"], SENT)
    ledger.acknowledge([b"1", b"2"])
    return ledger


def test_an_acknowledged_message_that_is_not_received_is_lost(ledger: Ledger) -> None:
    ledger.receive([b"1"], RECEIPT)
    assert [(lost.message, lost.sent) for lost in ledger.lost()] == [(b"2", SENT)]
    assert (ledger.sent, ledger.acknowledged, ledger.received) == (3, 2, 1)
    with pytest.raises(AssertionError, match=r"^1 lost, such as .*b'2'"):
        ledger.check()
    ledger.check(may_lose=1)
    ledger.receive([b"2"], RECEIPT)
    assert not ledger.lost()
    ledger.check(in_order=True)


def test_an_unsure_message_may_be_received_or_not(ledger: Ledger) -> None:
    ledger.receive([b"1", b"2"])
    assert (ledger.unsure, ledger.unsure_received) == (1, 0)
    ledger.check()
    ledger.receive([b"3"])
    assert (ledger.unsure, ledger.unsure_received) == (1, 1)
    ledger.check()


def test_a_message_received_twice_is_doubled(ledger: Ledger) -> None:
    ledger.receive([b"1", b"2"], RECEIPT)
    ledger.receive([b"2"], AGAIN)
    assert ledger.doubled() == [Doubled(b"2", [RECEIPT, AGAIN])]
    assert ledger.received == 2
    with pytest.raises(AssertionError, match=r"^1 doubled, such as .*b'2'"):
        ledger.check()


def test_a_message_that_nobody_sent_is_strange(ledger: Ledger) -> None:
    ledger.receive([b"1", b"4", b"2"], RECEIPT)
    assert ledger.strange == [Strange(b"4", RECEIPT)]
    assert ledger.received == 2
    with pytest.raises(AssertionError, match=r"^1 strange, such as .*b'4'"):
        ledger.check()


def test_a_client_that_receives_a_later_message_first_is_out_of_order(ledger: Ledger) -> None:
    ledger.put([b"a"], Event("other producer", "q"))
    ledger.put([b"x"], Event("producer", "other queue"))
    ledger.receive([b"x", b"a", b"1"], RECEIPT)
    ledger.receive([b"3"], AGAIN)
    assert not ledger.disordered
    ledger.receive([b"2"], AGAIN)
    assert ledger.disordered == [Disordered(b"2", AGAIN)]
    ledger.check()
    with pytest.raises(AssertionError, match=r"^1 out of order, such as .*b'2'"):
        ledger.check(in_order=True)


def test_a_doubtful_message_may_come_once_more_or_never(ledger: Ledger) -> None:
    ledger.doubt([b"1", b"2"])
    assert (ledger.received, ledger.settled) == (0, 2)
    ledger.receive([b"1"])
    assert (ledger.received, ledger.settled) == (1, 2)
    ledger.check()
    ledger.receive([b"1"])
    with pytest.raises(AssertionError, match=r"^1 doubled"):
        ledger.check()


def test_a_message_is_sent_once_and_before_it_is_acknowledged(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="sent twice: b'1'"):
        ledger.put([b"1"])
    with pytest.raises(AssertionError, match="acknowledged and never sent: b'4'"):
        ledger.acknowledge([b"4"])


def test_the_figures_are_printed(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.receive([b"1", b"2", b"3"])
    ledger.check(in_order=True)
    assert capsys.readouterr().out == (
        "ledger: 3 sent, 2 acknowledged, 3 received, 1 of 1 unsure received, "
        "0 lost, 0 doubled, 0 strange, 0 out of order\n"
    )
