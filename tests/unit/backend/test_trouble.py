"""Trouble: which outages the log has, when a call is not sent again, how long the backend is left alone."""

import logging
from collections import Counter

import pytest

from pressure_server.backend.requests import AwaitedRequest, BackendRequest
from pressure_server.backend.trouble import Deaths, Outage
from pressure_server.errors import BackendError


def _logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def both(caplog: pytest.LogCaptureFixture) -> tuple[Outage, Outage]:
    caplog.set_level(logging.DEBUG)
    outages = Counter[str]()
    return Outage("one", outages), Outage("another", outages)


def test_a_reason_and_its_end_are_logged_once_for_all_links(
    both: tuple[Outage, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    one, another = both
    for _ in range(2):
        one.report(BackendError("away"), ": waiting")
    another.report(BackendError("away"))
    assert _logged(caplog) == [("WARNING", "one: away: waiting"), ("DEBUG", "another: away")]
    one.end(1.26)
    one.report(BackendError("away"))  # the other link still has it
    another.end(2.0)
    for _ in range(2):
        one.end()
    assert _logged(caplog) == [
        ("INFO", "one is back after 1.3 seconds"),
        ("DEBUG", "one: away"),
        ("DEBUG", "another is back after 2.0 seconds"),
    ]
    # It is logged again when no link has it any longer, and if it changes.
    for reason in ("away", "loading"):
        one.report(BackendError(reason))
    assert _logged(caplog) == [("WARNING", "one: away"), ("WARNING", "one: loading")]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def in_flight() -> BackendRequest:
    request = AwaitedRequest(lambda _channel, _answered: None, lambda _reply: None, changes=False)
    request.may_be_done = True
    return request


def test_a_call_in_flight_at_three_deaths_is_not_sent_again(clock: list[float]) -> None:
    deaths, call, other = Deaths("backend"), in_flight(), in_flight()
    other.may_be_done = False
    for number in (1, 2, 3):
        assert deaths.count([call, other]) == 3
        assert (call.deaths, other.deaths) == (number, 0)
        assert (deaths.pause > 0) == (number == 3)


def test_the_backend_is_left_alone_for_longer_at_each_further_death(clock: list[float]) -> None:
    deaths, call = Deaths("backend"), in_flight()
    for _ in range(3):
        deaths.count([call])
    pauses = [deaths.pause]
    for _ in range(8):
        assert deaths.count([in_flight()]) == 1
        pauses.append(deaths.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    clock[0] += 91
    assert deaths.pause == 0
    assert deaths.count([in_flight()]) == 3
