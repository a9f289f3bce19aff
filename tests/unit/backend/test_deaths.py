"""Deaths of the backend: when a call is not sent again, and how long the backend is left alone."""

from __future__ import annotations

import pytest

from pressure_server.backend.deaths import Deaths
from pressure_server.backend.requests import AwaitedRequest, BackendRequest


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
