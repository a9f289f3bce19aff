"""Refusals: errors of the library as the errors that clients get, and as conditions to wait for."""

import pytest

from pressure_server.errors import (
    BackendError,
    GroupDoesNotExistError,
    OffsetAheadError,
    OffsetGoneError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueLimitError,
    QueueTypeError,
    TransactionIdError,
)
from pressure_server.queues.operations.refusals import condition_for, exception_for
from pressure_server.queues.operations.wait import WaitCondition


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOQUEUE", QueueDoesNotExistError),
        ("EXISTS", QueueAlreadyExistsError),
        ("FULL", QueueFullError),
        ("CLOSED", QueueClosedError),
        ("CREATING", QueueInUseError),
        ("DELETING", QueueInUseError),
        ("NOGROUP", GroupDoesNotExistError),
        ("TXN", TransactionIdError),
        ("INUSE producer native-1", QueueInUseError),
        ("QUEUES 5", QueueLimitError),
        ("TYPE is-log", QueueTypeError),
        ("AHEAD 7", OffsetAheadError),
        ("GONE 7", OffsetGoneError),
        ("TOOLARGE", PressureError),
        ("TOOLONG", PressureError),
        ("ERR user_script:1: a bug", BackendError),
        ("NOQUEUES", BackendError),
    ],
)
def test_each_error_of_the_library_has_its_exception(text: str, kind: type[PressureError]) -> None:
    found = exception_for(b"the queue", text)
    assert type(found) is kind
    assert "'the queue'" in str(found) or kind is QueueLimitError


@pytest.mark.parametrize(
    ("holder", "shown"),
    [("producer native-1", "by its producer 'native-1'"), ("consumer", "by a consumer without a name")],
)
def test_a_held_role_names_its_holder(holder: str, shown: str) -> None:
    assert shown in str(exception_for(b"q", f"INUSE {holder}"))


def test_a_name_and_an_unknown_error_are_shown_escaped() -> None:
    assert "'a\\r\\nb'" in str(exception_for(b"a\r\nb", "NOQUEUE"))
    assert str(exception_for(b"q", "WRONGTYPE no list")).endswith("WRONGTYPE no list")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("INUSE producer native", WaitCondition.PRODUCER_ROLE),
        ("INUSE consumer", WaitCondition.CONSUMER_ROLE),
        ("OTHER INUSE producer native", WaitCondition.PRODUCER_ROLE),
        ("CREATING", WaitCondition.CREATED),
        ("OTHER CREATING", WaitCondition.CREATED),
        ("DELETING", WaitCondition.REMOVED),
        ("CLOSED", None),
        ("FULL", None),
        ("NOQUEUE", None),
    ],
)
def test_only_what_others_can_end_is_waited_for(text: str, condition: WaitCondition | None) -> None:
    assert condition_for(text) is condition
