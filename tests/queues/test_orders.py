"""Queues that give the newest message, or any: lifo and random, for all clients.

Their messages become jobs when something needs that: nobody may notice by the order, or lose one.
"""

from collections import Counter
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model_settings import model_settings
from tests.support.native import NativeClient, native_puts
from tests.support.programs import Client, Server, Valkey, wait_for
from tests.support.reference.queue import Queue
from tests.support.series import Series, run_series, words
from tests.support.waiters import Waiter, about, create, wait_for_blocked

JOBS = "__pressure__:q:ext:jobs"

LIFO: Series = [
    ("PRESSURE.CREATE q TYPE LIFO BOUND 6 OVERFLOW ERROR", b"OK"),
    ("LPUSH q a b c", 3),
    ("SADD q c d", 1),
    ("LRANGE q 0 -1", [b"d", b"c", b"b", b"a"]),
    ("LINDEX q 0", b"d"),
    ("SPOP q", b"d"),
    ("PRESSURE.PUT q urgent PRIORITY 1", 4),
    ("LPUSH q e f", 6),
    ("LPUSH q g", "FULL "),
    ("SPOP q 3", [b"urgent", b"f", b"e"]),
    ("PRESSURE.PEEK q READY", [3, b"c"]),
    ("PRESSURE.RESERVE q", [b"q", 3, b"c", 1]),
    ("LPUSH q h", 3),
    ("PRESSURE.RELEASE q 3", 1),
    ("BLPOP q 1", [b"q", b"h"]),
    ("LMOVE q other LEFT LEFT", b"c"),
    ("SREM q a", 1),
    ("SPOP q 9", [b"b"]),
    ("PRESSURE.GROUP CREATE q g", "TYPE "),
    ("PRESSURE.PUT q m OFFSET", "TYPE "),
]
MESSAGES = [b"%d" % number for number in range(40)]


def drain(client: Client) -> list[bytes]:
    """Take all messages, some at a time."""
    taken: list[bytes] = []
    while some := client.spop("q", 300):
        taken += some
    return taken


def test_the_newest_message_of_a_lifo_queue_comes_first(worker: Waiter) -> None:
    run_series(worker, LIFO)


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_native_clients_put_into_other_orders_and_see_nothing(
    client: Client, server: Server, direct: Client, order: str
) -> None:
    create(client, "q", "TYPE", order)
    native = NativeClient(direct, "q")
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "q", 0)
        wait_for_blocked(client, 1)
        native.put(b"a")
        assert waiter.reply() == [b"q", b"a"]
    native.put(b"b")
    native.put(b"c")
    wait_for(lambda: client.scard("q") == 2, "both messages to become jobs")
    assert native.get_non_blocking() is None
    taken = client.spop("q", 2)
    assert taken == [b"c", b"b"] if order == "LIFO" else sorted(taken) == [b"b", b"c"]


SET_AND_LIST: Series = [
    ("SADD q a b c d e", 5),
    ("SADD q a x", 1),
    ("SREM q x x nothing", 1),
    ("SISMEMBER q x", 0),
    ("SMISMEMBER q a x", [1, 0]),
    ("LREM q 1 b", 1),
    ("LREM q 0 b", 0),
    ("SRANDMEMBER q 9", {b"a", b"c", b"d", b"e"}),
    ("SSCAN q 0", {b"a", b"c", b"d", b"e"}),
    ("LRANGE q 0 -1", {b"a", b"c", b"d", b"e"}),
    ("LRANGE q 4 9", []),
    ("LPOS q a", "TYPE "),
    ("LTRIM q 0 2", b"OK"),
    ("SCARD q", 3),
    ("LTRIM q 5 9", b"OK"),
    ("LLEN q", 0),
    ("SPOP q", None),
]


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_commands_on_sets_and_lists_need_no_jobs(
    client: Client, direct: Client, worker: Waiter, order: str
) -> None:
    create(client, "q", "TYPE", order)
    for line, expected in SET_AND_LIST:
        reply = worker(*words(line))
        if isinstance(expected, set):
            found = reply[1] if line.startswith("SSCAN") else reply
            assert sorted(found) == sorted(expected), line
        elif isinstance(expected, str):
            assert str(reply).startswith(expected), line
        else:
            assert reply == expected, line
    assert not direct.exists(JOBS)
    info = about(client, "q")
    assert (info[b"produced_messages"], info[b"consumed_messages"]) == (6, 6)
    assert info[b"produced_bytes"] == info[b"consumed_bytes"]


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_some_messages_of_a_queue_that_gives_any_may_be_picked_several_times(
    client: Client, order: str
) -> None:
    create(client, "q", "TYPE", order)
    client.sadd("q", *MESSAGES)
    picked = client.srandmember("q", -500)
    assert len(picked) == 500
    assert set(picked) <= set(MESSAGES)
    assert len(set(client.srandmember("q", 30))) == 30
    assert client.scard("q") == len(MESSAGES)


# What makes jobs of the messages, and what it puts.
NEEDS_JOBS = {
    "PRESSURE.PUT q urgent PRIORITY 1": [b"urgent"],
    "PRESSURE.PUT q later DELAY 60": [b"later"],
    "PRESSURE.RESERVE q": [],
    "PRESSURE.PEEK q READY": [],
    "PRESSURE.PAUSE q 1": [],
    "PRESSURE.ALTER q MAX-DELIVERIES 3": [],
    "LPUSH q 7": [b"7"],
    "RPUSH q new new": [b"new", b"new"],
}


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
@pytest.mark.parametrize("command", NEEDS_JOBS)
def test_messages_become_jobs_when_something_needs_that(
    client: Client, direct: Client, worker: Waiter, order: str, command: str
) -> None:
    create(client, "q", "TYPE", order)
    client.sadd("q", *MESSAGES)
    assert not direct.exists(JOBS)
    reply = worker(*words(command))
    assert not isinstance(reply, Exception), reply
    assert direct.hlen(JOBS)
    if command.startswith("PRESSURE.RESERVE"):
        assert worker("PRESSURE.RELEASE", "q", reply[1]) == 1
    worker("PRESSURE.PAUSE", "q", 0)
    worker("PRESSURE.KICK", "q", 9)
    assert Counter(client.lrange("q", 0, -1)) == Counter([*MESSAGES, *NEEDS_JOBS[command]])
    taken = client.spop("q", 100)
    assert Counter(taken) == Counter([*MESSAGES, *NEEDS_JOBS[command]])
    if order == "LIFO":
        own = [message for message in taken if message not in (b"urgent", b"later", b"new")]
        assert own[-len(MESSAGES) :] == MESSAGES[::-1]
    assert about(client, "q")[b"type"] == order.lower().encode()


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_many_messages_become_jobs_step_by_step(client: Client, direct: Client, order: str) -> None:
    create(client, "q", "TYPE", order)
    many = [b"%05d" % number for number in range(4500)]
    client.sadd("q", *many)
    assert client.execute_command("PRESSURE.ALTER", "q", "MAX-DELIVERIES", 3) == b"OK"
    assert direct.zcard("__pressure__:q:ext:unadopted") == 3500
    client.lpush("q", many[0])
    assert not direct.exists("__pressure__:q:ext:unadopted")
    assert Counter(drain(client)) == Counter([*many, many[0]])
    assert direct.keys("__pressure__:q:ext:ready") == []


@pytest.mark.parametrize("is_equal", [False, True])
@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_messages_of_native_clients_are_all_taken(
    client: Client, direct: Client, order: str, is_equal: bool
) -> None:
    create(client, "q", "TYPE", order)
    client.sadd("q", "first")
    many = [b"first" if is_equal and number == 1050 else b"%04d" % number for number in range(1100)]
    native_puts(direct, "__pressure__:q", many)
    assert client.scard("q") == 1101
    assert set(client.sscan_iter("q")) == {b"first", *many}
    taken = drain(client)
    assert Counter(taken) == Counter([b"first", *many])
    assert direct.exists(JOBS) == 0
    if order == "LIFO":
        assert taken == [*many[::-1], b"first"]


def test_a_queue_of_a_kind_that_only_newer_servers_know_is_left_alone(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "LIFO")
    direct.set("__pressure__:q:ext:made", "1.2 newest")
    for line in ("SADD q a", "SPOP q", "SCARD q", "PRESSURE.RESERVE q", "LMOVE other q LEFT LEFT"):
        client.rpush("other", "m")
        with pytest.raises(redis.ResponseError, match=r"TYPE .*of the kind 'newest', which only newer"):
            client.execute_command(*words(line))
    assert client.llen("other") == 5
    assert direct.keys("__pressure__:q") == []


def test_a_ring_of_any_order_drops_the_oldest(client: Client, direct: Client) -> None:
    for order in ("LIFO", "RANDOM"):
        name = order.lower()
        create(client, name, "TYPE", order, "BOUND", 3, "OVERFLOW", "OVERWRITE")
        for number in range(5):
            client.sadd(name, number)
        assert sorted(client.spop(name, 9)) == [b"2", b"3", b"4"]
        assert about(client, name)[b"dropped_messages"] == 2


def test_a_ring_does_not_count_delayed_jobs_as_dropped(client: Client) -> None:
    create(client, "q", "TYPE", "JOBS", "BOUND", 1, "OVERFLOW", "OVERWRITE")
    for _ in range(3):
        client.execute_command("PRESSURE.PUT", "q", "m", "DELAY", 1000)
    client.rpush("q", "ready")
    found = about(client, "q")
    assert (found[b"length"], found[b"dropped_messages"], found[b"consumed_messages"]) == (3, 1, 1)


MESSAGE = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b""])
SOME = st.lists(MESSAGE, min_size=1, max_size=4)
STEP = st.one_of(
    st.tuples(st.sampled_from(["SADD", "SADD", "SADD", "LPUSH", "SREM", "native"]), SOME),
    st.tuples(st.sampled_from(["SPOP", "LTRIM", "RESERVE", "move"]), st.integers(1, 3)),
)


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
@model_settings("PRESSURE_MODEL_EXAMPLES", 60)
@given(steps=st.lists(STEP, max_size=25))
def test_a_queue_of_any_order_is_what_the_model_says(
    shared_server: Server, shared_backend: Valkey, order: str, steps: list[tuple[str, Any]]
) -> None:
    shared_backend.flush()
    model = Queue()
    with shared_server.client() as client, shared_backend.client() as direct:
        create(client, "q", "TYPE", order)
        native = NativeClient(direct, "q")
        for step, value in steps:
            match step:
                case "SADD":
                    assert client.sadd("q", *value) == model.put(value, unique=True)
                case "LPUSH":
                    assert client.lpush("q", *value) == model.put(value)
                case "SREM":
                    assert client.srem("q", *value) == sum(model.remove(dict.fromkeys(value)))
                case "native":
                    for message in value:
                        native.put(message)
                    model.put(value)
                case "SPOP":
                    _expect(model, client.spop("q", value), value, order)
                case "LTRIM":
                    gone = client.lrange("q", 0, value - 1)
                    assert client.ltrim("q", value, -1)
                    _expect(model, gone, value, order)
                case "RESERVE":
                    found = client.execute_command("PRESSURE.RESERVE", "q")
                    if found is not None:
                        assert client.execute_command("PRESSURE.ACK", "q", found[1]) == 1
                    _expect(model, [found[2]] if found else [], 1, order)
                case "move":
                    found = client.lmove("q", "other", "LEFT", "LEFT")
                    _expect(model, [found] if found is not None else [], 1, order)
            messages = client.lrange("q", 0, -1)
            assert Counter(messages) == Counter(model.messages), step
            assert order == "RANDOM" or messages == model.messages[::-1], step
            assert client.scard("q") == model.length
            assert set(client.sscan_iter("q")) == set(model.messages)


def _expect(model: Queue, taken: list[bytes], wanted: int, order: str) -> None:
    """Take from the model what a client has taken. Raise AssertionError if that is not what it may get."""
    assert len(taken) == min(wanted, model.length)
    assert order == "RANDOM" or taken == model.messages[::-1][: len(taken)]
    for message in taken:
        # Equal messages are alike, but the newest one has gone.
        del model.messages[model.length - 1 - model.messages[::-1].index(message)]
