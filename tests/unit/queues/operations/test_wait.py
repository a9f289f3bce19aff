"""Waits: which keys show that one may be over, deadlines, the limit of waiting operations, and tickets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.queues.names import BOUND, CLOSED, NOT_FULL, PRODUCER_FREE, READY
from pressure_server.queues.operations.wait import (
    Ticket,
    Wait,
    WaitCondition,
    WaiterCount,
    may_proceed,
    shows_existence,
    watched_keys,
    watched_suffixes,
)

CONDITIONS = st.lists(st.sampled_from(WaitCondition), min_size=1, max_size=4, unique=True)


def mask_of(watched: list[bytes], present: set[bytes]) -> int:
    """Return what the backend counts."""
    existing = {b"p:q" + suffix for suffix in present}
    return sum(key in existing for key in watched_keys(b"p:q", watched))


def test_each_key_is_watched_once_and_that_of_existence_last() -> None:
    watched = watched_suffixes([WaitCondition.MESSAGE, WaitCondition.ROOM])
    assert watched == [b"", CLOSED, READY, NOT_FULL, BOUND]


@given(CONDITIONS, st.data())
def test_the_count_of_existing_keys_tells_which_exist(
    conditions: list[WaitCondition], data: st.DataObject
) -> None:
    watched = watched_suffixes(conditions)
    present = data.draw(st.sets(st.sampled_from(watched)))
    mask = mask_of(watched, present)
    assert {suffix for place, suffix in enumerate(watched) if mask >> place & 1} == present
    assert shows_existence(watched, mask) is (BOUND in present)


@pytest.mark.parametrize(
    ("condition", "present", "proceeds"),
    [
        (WaitCondition.MESSAGE, set(), False),
        (WaitCondition.MESSAGE, {b""}, True),
        (WaitCondition.MESSAGE, {CLOSED}, True),
        (WaitCondition.MESSAGE, {READY}, True),
        (WaitCondition.ROOM, set(), False),
        (WaitCondition.ROOM, {NOT_FULL}, True),
        (WaitCondition.ROOM, {CLOSED}, True),
        (WaitCondition.PRODUCER_ROLE, set(), False),
        (WaitCondition.PRODUCER_ROLE, {PRODUCER_FREE}, True),
        (WaitCondition.CREATED, set(), False),
        (WaitCondition.CREATED, {NOT_FULL}, True),
        (WaitCondition.MESSAGE_GONE, {b""}, True),
        (WaitCondition.MESSAGE_GONE, set(), True),
        (WaitCondition.REMOVED, {CLOSED}, False),
        (WaitCondition.REMOVED, set(), False),
    ],
)
def test_a_key_that_a_condition_needs_lets_an_operation_proceed(
    condition: WaitCondition, present: set[bytes], proceeds: bool
) -> None:
    watched = watched_suffixes([condition])
    mask = mask_of(watched, present | {BOUND})
    assert may_proceed([condition], watched, mask, existed=True) is proceeds


@given(CONDITIONS, st.data())
def test_a_queue_that_was_created_or_deleted_lets_operations_proceed(
    conditions: list[WaitCondition], data: st.DataObject
) -> None:
    watched = watched_suffixes(conditions)
    present = data.draw(st.sets(st.sampled_from(watched)))
    mask = mask_of(watched, present)
    assert may_proceed(conditions, watched, mask, existed=BOUND not in present)


def test_the_end_of_a_deletion_is_seen_when_no_key_is_left() -> None:
    watched = watched_suffixes([WaitCondition.REMOVED])
    assert may_proceed([WaitCondition.REMOVED], watched, 0, existed=False)
    assert not may_proceed([WaitCondition.REMOVED], watched, mask_of(watched, {NOT_FULL}), existed=False)


@pytest.mark.parametrize(
    ("wait", "condition", "timeout", "deadline"),
    [
        (Wait(), WaitCondition.MESSAGE, None, None),
        (Wait(), WaitCondition.ROOM, 5.0, 105.0),
        (Wait(), WaitCondition.ROOM, 0.0, 100.0),
        (Wait(), WaitCondition.PRODUCER_ROLE, None, 102.0),
        (Wait(), WaitCondition.PRODUCER_ROLE, 5.0, 102.0),
        (Wait(), WaitCondition.PRODUCER_ROLE, 1.0, 101.0),
        (Wait(for_role=False), WaitCondition.PRODUCER_ROLE, 5.0, 100.0),
        (Wait(waits_forever_for_role=True), WaitCondition.PRODUCER_ROLE, 5.0, None),
        (Wait(for_role=False), WaitCondition.MESSAGE, 5.0, 105.0),
    ],
)
def test_a_wait_ends_after_its_timeout_or_that_for_roles(
    wait: Wait, condition: WaitCondition, timeout: float | None, deadline: float | None
) -> None:
    wait.condition = condition
    assert wait.deadline(100.0, timeout, role_timeout=2.0) == deadline


def test_a_deadline_does_not_move_when_the_operation_is_tried_again() -> None:
    wait = Wait()
    wait.condition = WaitCondition.CONSUMER_ROLE
    assert wait.deadline(100.0, 5.0, 2.0) == 102.0
    assert wait.deadline(101.0, 5.0, 2.0) == 102.0
    wait.condition = WaitCondition.MESSAGE
    assert wait.deadline(103.0, 5.0, 2.0) == 105.0
    # Each wait for a role has its own time.
    wait.condition = WaitCondition.CONSUMER_ROLE
    assert wait.deadline(102.5, 5.0, 2.0) == 104.5
    assert wait.deadline(104.0, 5.0, 2.0) == 104.5


def test_no_more_operations_wait_than_may() -> None:
    waiters, waits = WaiterCount(2), [Wait() for _ in range(3)]
    assert [waiters.try_add(wait) for wait in waits] == [True, True, False]
    assert len(waiters) == 2
    waiters.remove(waits[2])
    assert len(waiters) == 2
    waiters.remove(waits[0])
    waiters.remove(waits[0])
    assert len(waiters) == 1
    assert waiters.try_add(waits[2])


def test_the_limit_does_not_apply_to_the_server_s_own_waits() -> None:
    waiters = WaiterCount(0)
    assert waiters.try_add(Wait(None, waits_forever_for_role=True))
    assert not waiters.try_add(Wait(None, waits_forever_for_role=True, ticket=Ticket()))


def test_only_one_operation_at_a_time_has_the_ticket() -> None:
    ticket, told = Ticket(), list[str]()
    first, second, third = (Wait(ticket=ticket) for _ in range(3))
    assert ticket.try_acquire(first, lambda: told.append("first"))
    assert ticket.try_acquire(first, lambda: told.append("first"))
    tell_second, tell_third = (lambda: told.append("second")), (lambda: told.append("third"))
    assert not ticket.try_acquire(second, tell_second)
    assert not ticket.try_acquire(third, tell_third)
    assert not ticket.try_acquire(second, tell_second)
    first.end(served=False)
    assert told == ["second", "third"]
    assert ticket.try_acquire(third, tell_third)


def test_a_ticket_that_was_served_is_given_to_nobody() -> None:
    ticket, told = Ticket(), list[str]()
    first, second = Wait(ticket=ticket), Wait(ticket=ticket)
    assert ticket.try_acquire(first, lambda: None)
    assert not ticket.try_acquire(second, lambda: told.append("second"))
    first.end(served=True)
    assert told == ["second"]
    assert not ticket.try_acquire(second, lambda: told.append("again"))
    assert ticket.holder is None
    ticket.release()
    assert told == ["second"]


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_ticket_that_is_closed_lets_only_the_operation_in_flight_end(in_flight: bool) -> None:
    ticket = Ticket()
    first, second = Wait(ticket=ticket), Wait(ticket=ticket)
    if in_flight:
        assert ticket.try_acquire(first, lambda: None)
    assert ticket.close() is in_flight
    assert first.expired is in_flight
    # The operation in flight may have to be sent again.
    assert ticket.try_acquire(first, lambda: None) is in_flight
    assert not ticket.try_acquire(second, lambda: None)


def test_an_operation_that_ends_in_vain_does_not_undo_that_another_was_served() -> None:
    ticket = Ticket()
    Wait(ticket=ticket).end(served=True)
    Wait(ticket=ticket).end(served=False)
    assert ticket.served
