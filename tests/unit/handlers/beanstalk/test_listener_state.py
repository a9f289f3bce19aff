"""The counts of a listener's tubes: how many are kept, and which."""

from typing import Any
from unittest.mock import Mock

import pytest

from handlers.beanstalk import listener_state
from handlers.beanstalk.listener_state import ListenerState


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> ListenerState:
    """A listener that counts three tubes, and has no clients."""
    monkeypatch.setattr(listener_state, "_MAX_TUBES", 3)
    context = Mock()
    context.clients.connected = []
    return ListenerState(context, 1)


def report(listener: ListenerState, tube: bytes) -> Any:
    (_, answer), _ = listener._clients.add_report.call_args  # type: ignore[attr-defined] # it is a mock
    return answer(tube)


def test_the_tubes_that_were_changed_last_are_counted(listener: ListenerState) -> None:
    for tube in (b"a", b"b", b"c", b"a", b"new"):
        listener.of_tube(tube)["cmd-delete"] += 1
    listener.of_tube(b"a")["pause"] = 5
    found = {tube: report(listener, tube).counts["cmd-delete"] for tube in (b"a", b"b", b"c", b"new")}
    assert found == {b"a": 2, b"b": 0, b"c": 1, b"new": 1}
    assert report(listener, b"a").pauses == (5,)
    assert report(listener, b"b").pauses == (0,)


def test_a_report_on_a_tube_without_counts_keeps_nothing(listener: ListenerState) -> None:
    for number in range(10):
        report(listener, b"%d" % number)
    listener.of_tube(b"a")["cmd-delete"] += 1
    assert report(listener, b"a").counts["cmd-delete"] == 1
