"""The tables of a connection's states, walked: which states follow each other, and which never do."""

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import TypeVar

import pytest

from pressure_server.net.connection_state import CLIENT_SIDE, SERVER_SIDE, ClientSide, Event, ServerSide
from tests.support.paths import ROOT

State = TypeVar("State", bound=Enum)

TAKING_COMMANDS = [state for state in ServerSide if state.takes_commands]
HOLDS = (Event.UNREAD, Event.READ, Event.THROTTLE, Event.RESUME)
OTHERS = [state for state in ServerSide if not state.takes_commands]


def reached(table: Mapping[State, Mapping[Event, State]], start: State) -> set[State]:
    """Return the states that can follow, and the state itself."""
    found, fresh = {start}, [start]
    while fresh:
        following = set(table[fresh.pop()].values()) - found
        found |= following
        fresh += following
    return found


def after(events: tuple[Event, ...], state: ServerSide = ServerSide.OPEN) -> ServerSide:
    """Return the server's side after these events."""
    for event in events:
        state = SERVER_SIDE[state].get(event, state)
    return state


def test_every_state_is_in_the_table_and_is_reached() -> None:
    assert reached(SERVER_SIDE, ServerSide.OPEN) == set(SERVER_SIDE) == set(ServerSide)
    assert reached(CLIENT_SIDE, ClientSide.OPEN) == set(CLIENT_SIDE) == set(ClientSide)


def test_every_event_is_of_one_side() -> None:
    of_server = {event for changes in SERVER_SIDE.values() for event in changes}
    of_client = {event for changes in CLIENT_SIDE.values() for event in changes}
    assert of_server | of_client == set(Event)
    assert not of_server & of_client


@pytest.mark.parametrize("state", OTHERS)
def test_a_connection_that_takes_no_commands_never_takes_any_again(state: ServerSide) -> None:
    assert not reached(SERVER_SIDE, state) & set(TAKING_COMMANDS)


@pytest.mark.parametrize("state", ServerSide)
def test_every_connection_can_be_lost_or_evicted_and_then_only_ends(state: ServerSide) -> None:
    assert after((Event.CLOSE,), state) is ServerSide.CLOSED
    following = reached(SERVER_SIDE, after((Event.EVICT,), state))
    assert following <= {ServerSide.EVICTED, ServerSide.BROKEN_OFF, ServerSide.CLOSED}


@pytest.mark.parametrize("events", [*product(HOLDS, repeat=4)])
def test_commands_are_executed_when_nothing_holds_them(events: tuple[Event, ...]) -> None:
    is_unread = is_throttled = False
    for event in events:
        is_unread = (is_unread or event is Event.UNREAD) and event is not Event.READ
        is_throttled = (is_throttled or event is Event.THROTTLE) and event is not Event.RESUME
    state = after(events)
    assert (state is ServerSide.OPEN) is not (is_unread or is_throttled)
    assert (state in (ServerSide.UNREAD, ServerSide.THROTTLED_UNREAD)) is is_unread
    assert (state in (ServerSide.THROTTLED, ServerSide.THROTTLED_UNREAD)) is is_throttled


@pytest.mark.parametrize("state", TAKING_COMMANDS)
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((Event.END,), ServerSide.ENDING),
        ((Event.STOP,), ServerSide.STOPPING_IDLE),
        ((Event.STOP_BUSY,), ServerSide.STOPPING),
        ((Event.END, Event.STOP), ServerSide.STOPPING_IDLE),
        ((Event.END, Event.STOP_BUSY), ServerSide.STOPPING),
        ((Event.STOP, Event.STOP_BUSY), ServerSide.STOPPING_IDLE),
        ((Event.STOP_BUSY, Event.END, Event.STOP), ServerSide.STOPPING),
        ((Event.END, Event.READ, Event.RESUME), ServerSide.ENDING),
        # A side is closed only after the last command.
        ((Event.HANG_UP,), None),
        ((Event.END, Event.HANG_UP), ServerSide.HUNG_UP),
        ((Event.STOP_BUSY, Event.HANG_UP), ServerSide.HUNG_UP),
        ((Event.END, Event.HANG_UP, Event.HANG_UP, Event.STOP), ServerSide.HUNG_UP),
    ],
)
def test_ways_to_end(state: ServerSide, events: tuple[Event, ...], expected: ServerSide | None) -> None:
    assert after(events, state) is (expected or state)


def test_a_client_that_has_closed_a_side_never_opens_it_again() -> None:
    assert reached(CLIENT_SIDE, ClientSide.HALF_CLOSED) == {ClientSide.HALF_CLOSED, ClientSide.READ_TO_END}
    assert reached(CLIENT_SIDE, ClientSide.LEFT) == {ClientSide.LEFT, ClientSide.MUTED}


def test_a_client_is_muted_only_after_it_has_left() -> None:
    before_muted = [state for state in ClientSide if ClientSide.MUTED in CLIENT_SIDE[state].values()]
    assert before_muted == [ClientSide.LEFT]


@pytest.mark.parametrize("side", [ServerSide, ClientSide])
def test_the_handbook_has_every_state(side: type[Enum]) -> None:
    page = (ROOT / "docs/internals/handlers.md").read_text()
    for state in side:
        meaning = state.meaning if isinstance(state, ServerSide) else state.value
        assert f"| `{state.name}` | {meaning} |" in page
