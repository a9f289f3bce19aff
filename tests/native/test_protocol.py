"""The clauses of pressure 0.15 that no other file tests, and the tests that docs/reference/protocol.md names.

The tests read the keys in the backend, because native clients rely on them.
"""

import re
import socket
import threading
from typing import Any

import pytest

from tests.support.native import (
    NativeClient,
    NativeSteps,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueFullError,
    Steps,
    run,
    step_until,
)
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, StartServer, Valkey, join, keys_left, wait_for
from tests.support.waiters import Waiter, about, create, is_refused, wait_for_waiting

BASE = "__pressure__:q"
STATISTICS = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
# The lengths of the lists with a token while both roles are free and there is room.
FREE: dict[str, Any] = {":producer_free": 1, ":consumer_free": 1, ":not_full": 1}


def test_every_clause_is_a_must_or_a_may_and_names_a_test() -> None:
    named_test = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
    document = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    for line in document.splitlines():
        if line.startswith("| ") and not line.startswith("| clause |"):
            clause, _behaviour, shown = line.strip("| ").split(" | ")
            assert re.search(r"\*\*(must|must not|may)\*\*", clause), clause
            assert named_test.search(shown), clause
            # The column has nothing but names; otherwise a misspelt name would be overlooked.
            assert not named_test.sub("", shown).strip(" ,"), shown


@pytest.fixture
def native(direct: Client) -> NativeClient:
    return NativeClient(direct, "q")


@pytest.fixture
def steps(direct: Client) -> NativeSteps:
    """A native client's operations, which a test stops between two commands."""
    return NativeSteps(direct, "q", "native")


def written(direct: Client, prefix: str = "__pressure__") -> dict[str, Any]:
    """Return the queue's values by their keys' suffixes, without the server's own keys.

    Values are messages, newest first, the lengths of lists with tokens, and strings.
    """
    found: dict[str, Any] = {}
    base = f"{prefix}:q"
    for key in map(bytes.decode, direct.keys(f"{base}*")):
        suffix = key.removeprefix(base)
        if suffix == "":
            found[suffix] = direct.lrange(key, 0, -1)
        elif not suffix.startswith(":ext:"):
            found[suffix] = direct.llen(key) if direct.type(key) == b"list" else direct.get(key)
    return found


def unsigned(found: dict[str, Any]) -> dict[str, Any]:
    """Remove the last producer's name, which a refused put sets, too, as the specification says."""
    return {suffix: value for suffix, value in found.items() if suffix != ":producer"}


def statistics(*numbers: int) -> dict[str, bytes]:
    """Return the four keys, without those that are still zero."""
    named = zip(STATISTICS, numbers, strict=True)
    return {f":stats:{name}": b"%d" % number for name, number in named if number}


def hold(direct: Client, role: str, steps: Steps[Any]) -> None:
    """Let a native client proceed until it holds the role and has written its name."""
    step_until(steps, lambda: direct.llen(f"{BASE}:{role}_free") == 0)
    next(steps)


def test_a_server_has_one_unique_name_in_all_roles_queues_and_databases(
    backend: Valkey, start_server: StartServer
) -> None:
    names: list[bytes] = []
    for _ in range(2):
        server = start_server("--backend", backend.url)
        signed: set[bytes] = set()
        for number in (0, 1):
            with server.client(db=number) as client, backend.client(db=number) as database:
                for queue in ("a", "b"):
                    client.sadd(queue, "m")
                    client.spop(queue)
                    base = f"__pressure__:{queue}"
                    signed.update(database.mget(f"{base}:producer", f"{base}:consumer"))
        assert len(signed) == 1
        names += signed
        assert f"{socket.gethostname()}:{server.process.pid}" in names[-1].decode()
    assert len(set(names)) == 2


def test_all_keys_begin_with_the_prefix(backend: Valkey, direct: Client, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, environment={"PRESSURE_PREFIX": "mine"})
    native = NativeClient(direct, "q", prefix="mine")
    native.create()
    with server.client() as client:
        native.put(b"1")
        assert client.spop("q") == b"1"
        client.sadd("q", "2")
        assert client.sismember("q", "2") == 1
        assert native.get() == b"2"
    assert all(key.startswith(b"mine") for key in keys_left(direct))
    assert set(written(direct, "mine")) >= {":bound", ":stats:consumed_messages"}


def test_sadd_writes_the_keys_of_the_specification(client: Client, direct: Client) -> None:
    assert client.sadd("q", "hello") == 1
    found = written(direct)
    assert found.pop(":producer").startswith(b"pressure-server:")
    assert found == {"": [b"hello"], ":bound": b"0", **FREE, **statistics(1, 5, 0, 0)}


@pytest.mark.parametrize("bound", [0, 5])
def test_create_writes_the_keys_of_the_specification(
    client: Client, direct: Client, native: NativeClient, bound: int
) -> None:
    create(client, "q", *(("BOUND", bound) if bound else ()))
    assert written(direct) == {":bound": b"%d" % bound, **FREE}
    with pytest.raises(QueueAlreadyExistsError):
        native.create()


def test_create_refuses_an_existing_queue_and_changes_nothing(
    direct: Client, waiter: Waiter, native: NativeClient
) -> None:
    native.create(3)
    native.put(b"m")
    before = written(direct)
    assert is_refused(waiter("PRESSURE.CREATE", "q", "BOUND", 7), "EXISTS")
    assert written(direct) == before


def test_a_half_created_queue_exists_and_a_put_waits_for_its_role(
    client: Client, direct: Client, waiter: Waiter, steps: NativeSteps
) -> None:
    creating = steps.create(2)
    next(creating)
    assert written(direct) == {":bound": b"2"}
    assert waiter("PRESSURE.EXISTS", "q") == 1
    assert waiter("PRESSURE.LENGTH", "q") == 0
    assert is_refused(waiter("PRESSURE.CREATE", "q"), "EXISTS")
    waiter.send("PRESSURE.PUT", "q", "m")
    wait_for_waiting(client, "q", producers=1)
    run(creating)
    assert waiter.reply() == 1
    assert direct.lrange(BASE, 0, -1) == [b"m"]


def test_a_put_during_a_native_create_leaves_no_second_token(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient, steps: NativeSteps
) -> None:
    """Two tokens would let native clients exceed the bound."""
    creating = steps.create(2)
    step_until(creating, lambda: direct.llen(f"{BASE}:consumer_free") == 1)
    waiter.send("PRESSURE.PUT", "q", "1")
    wait_for(lambda: waiter.has_reply() or about(client, "q")[b"waiting_producers"], "the put to be tried")
    run(creating)
    assert waiter.reply() == 1
    native.put_non_blocking(b"2")
    with pytest.raises(QueueFullError):
        native.put_non_blocking(b"3")


def test_queries_take_no_role_and_need_none(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient, steps: NativeSteps
) -> None:
    create(client, "q", "BOUND", 5)
    native.put(b"m")
    native.put(b"n")
    put, get = steps.put(b"o"), steps.get()
    step_until(put, lambda: direct.llen(f"{BASE}:producer_free") == 0)
    step_until(get, lambda: direct.llen(f"{BASE}:consumer_free") == 0)
    before = written(direct)
    assert (before[":producer"], ":consumer" in before) == (b"native", False)
    queries = {
        "PRESSURE.EXISTS q": 1,
        "PRESSURE.LENGTH q": 2,
        "PRESSURE.CLOSED q": 0,
        "SCARD q": 2,
        "SISMEMBER q n": 1,
        "LRANGE q 0 -1": [b"m", b"n"],
        "PRESSURE.LIST": [b"q"],
    }
    assert {query: waiter(*query.split()) for query in queries} == queries
    found = about(client, "q")
    assert (found[b"producer_role"], found[b"consumer_role"]) == (b"held", b"held")
    assert written(direct) == before
    run(put)
    assert run(get) == b"m"


@pytest.mark.parametrize("tokens", [1, 2], ids=["0.15", "0.1"])
def test_a_put_leaves_one_token_exactly_when_there_is_room(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient, tokens: int
) -> None:
    """A client of version 0.1 leaves up to two tokens."""
    create(client, "q", "BOUND", 3)
    for number, token in ((1, {":not_full": 1}), (2, {":not_full": 1}), (3, {})):
        if tokens == 2:
            direct.lpush(f"{BASE}:not_full", 1)
        assert waiter("PRESSURE.PUT", "q", "four") == 1
        assert unsigned(written(direct)) == {
            ":bound": b"3",
            "": [b"four"] * number,
            ":producer_free": 1,
            ":consumer_free": 1,
            **token,
            **statistics(number, 4 * number, 0, 0),
        }
    with pytest.raises(QueueFullError):
        native.put_non_blocking(b"five")


def test_a_get_from_an_overfilled_queue_pushes_a_token_below_the_bound(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 2)
    for number in range(4):
        assert waiter("PRESSURE.PUT", "q", number, "OVERFILL") == 1
    assert direct.llen(BASE) == 4
    tokens: list[int] = []
    for number in range(4):
        assert waiter("PRESSURE.GET", "q") == b"%d" % number
        tokens.append(direct.llen(f"{BASE}:not_full"))
    assert tokens == [0, 0, 1, 1]
    assert written(direct).items() >= statistics(4, 4, 4, 4).items()


def test_a_get_of_several_messages_counts_each_and_names_the_consumer(
    client: Client, direct: Client, native: NativeClient
) -> None:
    native.create(5)
    for message in (b"1", b"22", b"333", b"4444"):
        native.put(message)
    assert client.spop("q", 3) == [b"1", b"22", b"333"]
    found = written(direct)
    assert found.pop(":consumer").startswith(b"pressure-server:")
    expected = {**FREE, ":bound": b"5", ":producer": b"native", "": [b"4444"], **statistics(4, 10, 3, 6)}
    assert found == expected


def test_messages_are_pushed_at_the_left_and_popped_at_the_right(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient
) -> None:
    create(client, "q")
    waiter("PRESSURE.PUT", "q", "1")
    native.put(b"2")
    client.sadd("q", "3")
    native.put(b"4")
    assert direct.lrange(BASE, 0, -1) == [b"4", b"3", b"2", b"1"]
    taken = [client.spop("q"), native.get(), waiter("PRESSURE.GET", "q"), native.get_non_blocking()]
    assert taken == [b"1", b"2", b"3", b"4"]


def test_waiting_clients_hold_no_role(
    client: Client, direct: Client, server: Server, native: NativeClient
) -> None:
    create(client, "q", "BOUND", 1)
    with Waiter(server.port) as getting, Waiter(server.port) as putting:
        getting.send("PRESSURE.GET", "q", "TIMEOUT", "0.3")
        wait_for_waiting(client, "q", consumers=1)
        assert unsigned(written(direct)) == {":bound": b"1", **FREE}
        assert getting.reply() is None
        assert unsigned(written(direct)) == {":bound": b"1", **FREE}
        native.put(b"native")
        full = unsigned(written(direct))
        putting.send("PRESSURE.PUT", "q", "put", "TIMEOUT", "0.3")
        wait_for_waiting(client, "q", producers=1)
        assert unsigned(written(direct)) == full
        assert is_refused(putting.reply(), "FULL")
        assert unsigned(written(direct)) == full
        putting.send("PRESSURE.PUT", "q", "put")
        wait_for_waiting(client, "q", producers=1)
        assert native.get() == b"native"
        assert putting.reply() == 1
    assert direct.lrange(BASE, 0, -1) == [b"put"]


def test_a_refused_put_changes_only_the_producer_s_name(
    direct: Client, waiter: Waiter, native: NativeClient
) -> None:
    native.create(1)
    native.put(b"m")
    full = unsigned(written(direct))
    for option in (["NOWAIT"], ["TIMEOUT", "0.02"], ["NX", "NOWAIT"]):
        assert is_refused(waiter("PRESSURE.PUT", "q", "n", *option), "FULL")
        assert unsigned(written(direct)) == full
    native.close()
    closed = unsigned(written(direct))
    for option in ([], ["NOWAIT"], ["OVERFILL"]):
        assert is_refused(waiter("PRESSURE.PUT", "q", "n", *option), "CLOSED")
        assert unsigned(written(direct)) == closed


def test_close_pushes_two_elements_once(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient
) -> None:
    create(client, "q")
    assert waiter("PRESSURE.CLOSE", "q") == b"OK"
    found = written(direct)
    assert found.pop(":producer").startswith(b"pressure-server:")
    assert found == {":bound": b"0", **FREE, ":closed": 2}
    assert is_refused(waiter("PRESSURE.CLOSE", "q"), "CLOSED")
    assert direct.llen(f"{BASE}:closed") == 2
    for operation in (native.close, native.get):
        with pytest.raises(QueueClosedError):
            operation()


def test_close_waits_for_the_producer_role_only(
    client: Client, direct: Client, waiter: Waiter, steps: NativeSteps
) -> None:
    create(client, "q")
    put, get = steps.put(b"m"), steps.get()
    hold(direct, "consumer", get)
    hold(direct, "producer", put)
    waiter.send("PRESSURE.CLOSE", "q")
    wait_for_waiting(client, "q", producers=1)
    assert direct.exists(f"{BASE}:closed") == 0
    run(put)
    assert waiter.reply() == b"OK"
    assert direct.llen(f"{BASE}:consumer_free") == 0
    assert run(get) == b"m"


def test_delete_follows_the_specification_s_order_if_a_role_is_held(
    client: Client, direct: Client, waiter: Waiter, native: NativeClient, steps: NativeSteps
) -> None:
    create(client, "q", "BOUND", 1)
    native.put(b"m")
    put, get = steps.put(b"n"), steps.get()
    hold(direct, "consumer", get)
    hold(direct, "producer", put)
    before = written(direct)
    waiter.send("PRESSURE.DELETE", "q")
    # The queue no longer exists, waiting clients are woken up, and the holders' keys still exist.
    wait_for(lambda: not direct.exists(f"{BASE}:bound"), "the first step")
    del before[":bound"]
    assert written(direct) == {**before, ":not_full": 1, ":closed": 2}
    for role, operation in (("producer", put), ("consumer", get)):
        assert not waiter.has_reply()
        assert direct.llen(f"{BASE}:{role}_free") == 0
        try:
            run(operation)
        except QueueClosedError:
            assert role == "producer"
    assert waiter.reply() == b"OK"
    wait_for(lambda: keys_left(direct) == [], f"no key to be left, not {keys_left(direct)}")


def test_delete_is_atomic_if_no_role_is_held(backend: Valkey, client: Client) -> None:
    # Not "q": the server may still wait for a role of another test's queue.
    queue = "one_step"
    suffixes = ("", ":bound", ":producer", ":producer_free", ":consumer_free", ":not_full", ":closed")
    absent, created, used = (0,) * 7, (0, 1, 0, 1, 1, 1, 0), (1, 1, 1, 1, 1, 1, 0)
    seen: set[tuple[int, ...]] = set()
    is_over = threading.Event()

    def look() -> None:
        with backend.client() as looking:
            while not is_over.is_set():
                pipeline = looking.pipeline(transaction=True)
                for suffix in suffixes:
                    pipeline.exists(f"__pressure__:{queue}{suffix}")
                seen.add(tuple(pipeline.execute()))

    def create_use_and_delete() -> bool:
        create(client, queue)
        client.sadd(queue, "m")
        client.execute_command("PRESSURE.DELETE", queue)
        return {absent, used} <= seen

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        wait_for(create_use_and_delete, "an existing and a deleted queue to be observed")
        for _ in range(200):
            create_use_and_delete()
    finally:
        is_over.set()
        join(thread)
    assert seen <= {absent, created, used}
