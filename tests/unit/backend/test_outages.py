"""Outages: the log has each reason once for all links, and says when a link is back."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from pressure_server.backend.outages import Outage
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


def test_a_reason_is_logged_once_for_all_links(
    both: tuple[Outage, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    one, another = both
    one.report(BackendError("away"), ": waiting")
    one.report(BackendError("away"), ": waiting")
    another.report(BackendError("away"))
    one.report(BackendError("loading"))
    assert _logged(caplog) == [
        ("WARNING", "one: away: waiting"),
        ("DEBUG", "another: away"),
        ("WARNING", "one: loading"),
    ]


def test_the_end_is_logged_by_the_link_that_logged_the_reason(
    both: tuple[Outage, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    one, another = both
    one.report(BackendError("away"))
    another.report(BackendError("away"))
    caplog.clear()
    one.end(1.26)
    another.end(2.0)
    assert _logged(caplog) == [
        ("INFO", "one is back after 1.3 seconds"),
        ("DEBUG", "another is back after 2.0 seconds"),
    ]
    one.end()
    assert _logged(caplog) == []


def test_a_reason_is_logged_again_when_no_link_has_it_any_longer(
    both: tuple[Outage, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    one, another = both
    one.report(BackendError("away"))
    another.report(BackendError("away"))
    one.end()
    caplog.clear()
    one.report(BackendError("away"))  # the other link still has it
    assert _logged(caplog) == [("DEBUG", "one: away")]
    one.end()
    another.end()
    one.report(BackendError("away"))
    assert _logged(caplog) == [("WARNING", "one: away")]
