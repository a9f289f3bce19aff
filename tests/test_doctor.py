"""The doctor: what native clients leave that die, and that it breaks no role of one that waits."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pressure_server.broker import operation as kinds
from pressure_server.broker import trouble as troubles
from pressure_server.broker.doctor import Case
from pressure_server.broker.snapshot import Snapshot
from tests.deaths import OPERATIONS, STATES, VersionedSteps, copy_queue
from tests.native import NativeClient, NativeError, NativeSteps, Steps, run
from tests.programs import Client, Server, Valkey, wait_for
from tests.repair_table import MARKER, about, table
from tests.ward import Keys, Told, Ward

QUEUE = "q"
BASE = f"__pressure__:{QUEUE}"
DOCUMENT = Path(__file__).parent.parent / "docs" / "repair.md"
SCRIPTS = Path(__file__).parent.parent / "pressure_server" / "broker" / "scripts"
MANY = 20
# Seconds within which a thread that is woken goes on.
A_MOMENT = 0.4


@pytest.fixture
def ward(backend: Valkey) -> Iterator[Ward]:
    made = Ward(backend)
    yield made
    made.close()


def abandon(steps: Steps[Any], count: int) -> bool:
    """Do so many steps and no more; False where there were fewer, or it began to wait."""
    try:
        for _ in range(count):
            if next(steps) is not None:
                return False
    except (StopIteration, NativeError):
        return False
    finally:
        steps.close()
    return True


def step_until(steps: Steps[Any], reached: Callable[[], bool]) -> None:
    """Go on with the operation until that is so."""
    while not reached():
        assert next(steps) is None


def make(direct: Client, bound: int, *messages: bytes, queue: str = QUEUE) -> None:
    native = NativeSteps(direct, queue, "earlier")
    run(native.create(bound))
    for message in messages:
        run(native.put(message))


def victim(direct: Client) -> NativeSteps:
    return NativeSteps(direct, QUEUE, "victim")


def read(ward: Ward) -> Keys:
    return Keys.read(ward.direct, QUEUE)


# Every state


def test_every_death_is_mended_and_the_table_of_them_is_current(backend: Valkey) -> None:
    """Fails where an outcome has changed, for the better too."""
    made = table(backend)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert made.count("\n|") > 70
    assert text.partition(MARKER)[2] == made, "make it anew: python -m tests.repair_table docs/repair.md"


def pairs_that_died(direct: Client) -> dict[str, Keys]:
    """Queues in which a client of 0.15 died as the producer and one of 0.1 as the consumer, each its own way."""
    alike: dict[Keys, str] = {}
    for state in STATES:
        if state.name not in ("bound 3, 1 message", "one below its bound of 2", "full, of 2", "new"):
            continue
        state.make(direct, "before")
        for producer_first, puts, gets in itertools.product((True, False), range(1, 12), range(1, 10)):
            copy_queue(direct, "before", QUEUE)
            put = OPERATIONS["put"](VersionedSteps(direct, QUEUE, "dead producer"))
            get = OPERATIONS["get"](VersionedSteps(direct, QUEUE, "dead consumer", "0.1"))
            pair = [(put, puts), (get, gets)]
            died = [abandon(*one) for one in (pair if producer_first else reversed(pair))]
            keys = read_keys(direct)
            if all(died) and keys not in alike:
                order = "put first" if producer_first else "get first"
                alike[keys] = copy_queue(direct, QUEUE, f"{state.name}, {order}, steps {puts:02} and {gets}")
            drop_queue(direct, QUEUE)
        drop_queue(direct, "before")
    return {queue: keys for keys, queue in alike.items()}


def test_two_that_died(ward: Ward) -> None:
    """One in each role, after any number of their steps. Who may be waiting is brought what it waits for."""
    died = pairs_that_died(ward.direct)
    assert len(died) > 100
    messages = {queue: list(keys.messages) for queue, keys in died.items()}
    for _ in range(3):
        assert not [told.left for told in ward.repair().values() if told.left]
        for queue, expected in messages.items():
            keys = Keys.read(ward.direct, queue)
            other = NativeSteps(ward.direct, queue, "other")
            with about(queue):
                assert list(keys.messages) == expected
                if keys.producer_may_wait:
                    assert run(other.get()) == expected.pop(0)
                elif keys.consumer_may_wait:
                    run(other.put(b"more"))
                    expected.append(b"more")
    assert_all_work(ward, messages)


def test_queues_where_nobody_died_are_well(ward: Ward) -> None:
    before = {queue: Keys.read(ward.direct, queue) for queue in made_states(ward.direct)}
    assert not ward.repair()
    assert {queue: Keys.read(ward.direct, queue) for queue in before} == before


def made_states(direct: Client) -> list[str]:
    return [state.make(direct, state.name) for state in STATES]


def test_what_our_server_leaves_is_well(ward: Ward) -> None:
    for state in STATES:
        ward.ours(state.name, kinds.CREATE, b"%d" % (state.bound or 0))
        messages = [b"%d" % number for number in range(min(state.put, state.bound or 9))]
        if messages:
            ward.ours(state.name, kinds.ADD, *messages, size=len(messages))
        ward.ours(state.name, kinds.CONTAINS, b"1")
        if state.taken:
            ward.ours(state.name, kinds.GET)
        if state.closed:
            ward.ours(state.name, kinds.CLOSE)
    assert not ward.repair()


# Those who live


def start(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do it in another thread; what is returned waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(20)
        (value,) = results
        return value

    return result


def wait_for_blocked(direct: Client, count: int = 1) -> None:
    wait_for(lambda: direct.info("clients")["blocked_clients"] == count, f"{count} to be blocked")


@pytest.fixture
def waiting(backend: Valkey) -> Iterator[NativeClient]:
    """A native client that really blocks, on a connection of its own."""
    with backend.client() as theirs:
        yield NativeClient(theirs, QUEUE, "waiting")


def test_a_consumer_that_waits_for_a_message_is_never_broken(ward: Ward, waiting: NativeClient) -> None:
    make(ward.direct, 0)
    result = start(waiting.get)
    wait_for_blocked(ward.direct)
    for _ in range(MANY):
        assert not ward.repair()
    assert read(ward).consumer_free == 0
    ward.ours(QUEUE, kinds.ADD, b"message")
    assert result() == b"message"
    ward.assert_works(QUEUE)


def test_a_producer_that_waits_for_room_is_never_broken(ward: Ward, waiting: NativeClient) -> None:
    make(ward.direct, 2, b"first", b"second")
    result = start(lambda: waiting.put(b"last"))
    wait_for_blocked(ward.direct)
    for _ in range(MANY):
        assert not ward.repair()
    assert read(ward).producer_free == 0
    run(NativeSteps(ward.direct, QUEUE, "other").get())
    result()
    assert read(ward).messages == (b"second", b"last")
    ward.assert_works(QUEUE)


def test_a_producer_waits_for_a_token_that_a_dead_consumer_never_pushed(
    ward: Ward, waiting: NativeClient
) -> None:
    make(ward.direct, 1, b"first")
    result = start(lambda: waiting.put(b"last"))
    wait_for_blocked(ward.direct)
    step_until(victim(ward.direct).get(), lambda: ward.direct.llen(BASE) == 0)
    ward.doctor.wait = A_MOMENT
    told = ward.repair_only(QUEUE)
    result()
    assert troubles.NO_NOT_FULL in {finding.trouble for finding in told.found[0]}
    assert "gave the producer role back" not in told.done
    assert not told.left
    assert read(ward).messages == (b"last",)
    ward.doctor.wait = 0
    # With the message there, the consumer shows that it is dead.
    assert not ward.repair_only(QUEUE).left
    ward.assert_works(QUEUE)


def test_who_waits_in_line_behind_a_dead_producer_goes_on(ward: Ward, waiting: NativeClient) -> None:
    make(ward.direct, 0)
    step_until(victim(ward.direct).put(b"x"), lambda: not read(ward).producer_free)
    result = start(lambda: waiting.put(b"y"))
    wait_for_blocked(ward.direct)
    ward.doctor.wait = A_MOMENT
    assert ward.repair_only(QUEUE).done == ["gave the producer role back"]
    result()
    assert read(ward).messages == (b"y",)
    ward.assert_works(QUEUE)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_delete_that_waits_for_a_dead_client_finishes(
    ward: Ward, waiting: NativeClient, role: str
) -> None:
    make(ward.direct, 0, b"first")
    steps = victim(ward.direct).put(b"x") if role == "producer" else victim(ward.direct).get()
    step_until(steps, lambda: ward.direct.get(f"{BASE}:{role}") == b"victim")
    result = start(waiting.delete)
    wait_for_blocked(ward.direct)
    ward.doctor.wait = A_MOMENT
    assert not ward.repair_only(QUEUE).left
    result()
    assert ward.direct.keys("*") == []


def test_a_client_that_was_called_dead_and_comes_back(ward: Ward) -> None:
    make(ward.direct, 2, b"first")
    put = victim(ward.direct).put(b"late")
    step_until(put, lambda: not read(ward).not_full)
    assert not ward.repair_only(QUEUE).left
    run(put)
    assert read(ward).producer_free == 2
    told = ward.repair_only(QUEUE)
    assert {finding.trouble for finding in told.found[0]} == {
        troubles.TOO_MANY_IN_A_ROLE,
        troubles.NOT_FULL_ON_FULL,
    }
    assert not told.left
    assert read(ward).messages == (b"first", b"late")
    ward.assert_works(QUEUE)


# Servers of ours, which park a token while it is their turn


def wait_in_line(direct: Client, start_server: Callable[..., Server], backend: Valkey) -> Steps[None]:
    """A server is stopped while it waits for the producer role; the native client that has it."""
    return iter(())  # type: ignore[return-value]
