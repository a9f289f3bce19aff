"""The clauses of pressure 0.15 that no other file tests; docs/reference/protocol.md names tests that exist.

Keys are looked at on the backend itself: what native clients of other makes rely on is what is written there.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import threading
from pathlib import Path
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
from tests.support.programs import Client, Server, StartServer, Valkey, join, keys_left, wait_for
from tests.support.waiters import Waiter, about, create, is_refused, wait_for_waiting

ROOT = Path(__file__).parent.parent
BASE = "__pressure__:q"
STATISTICS = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
FREE: dict[str, Any] = {":producer_free": 1, ":consumer_free": 1, ":not_full": 1}


# ---------------------------------------------------------------- the document

NAMED_TEST = re.compile(r"`(tests/test_\w+\.py)::(test_\w+)`")


def clauses() -> list[list[str]]:
    """The rows of the document's tables: the clause, what we do, the tests."""
    text = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "clause"]


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.slow
def test_every_test_that_the_document_names_exists() -> None:
    named = NAMED_TEST.findall((ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8"))
    assert named
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_every_clause_is_a_must_or_a_may_and_names_a_test() -> None:
    for row in clauses():
        assert len(row) == 3, row
        clause, _, shown = row
        assert re.search(r"\*\*(must|must not|may)\*\*", clause), clause
        assert NAMED_TEST.search(shown), clause
        # Nothing else but the names stands there, so that no name is overlooked for how it is written.
        assert not NAMED_TEST.sub("", shown).strip(" ,"), shown


# ---------------------------------------------------------------- what stands in the backend


def written(direct: Client, prefix: str = "__pressure__") -> dict[str, Any]:
    """The queue's keys by their suffixes, without ours: strings, messages newest first, lengths of tokens."""
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
    """Without who acted last as a producer: who is refused has acted, too (Put says so)."""
    return {suffix: value for suffix, value in found.items() if suffix != ":producer"}


def statistics(*numbers: int) -> dict[str, bytes]:
    """The four keys, without those that stand at nothing yet."""
    named = zip(STATISTICS, numbers, strict=True)
    return {f":stats:{name}": b"%d" % number for name, number in named if number}


def hold(direct: Client, role: str, steps: Steps[Any]) -> None:
    """Let a native client go on until it holds the role and has said who it is."""
    step_until(steps, lambda: direct.llen(f"{BASE}:{role}_free") == 0)
    next(steps)


def test_a_server_has_one_name_that_no_other_has(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    """On every connection, queue and database, in both roles; with what finds the process."""
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


@pytest.mark.parametrize("by_flag", [True, False], ids=["flag", "environment"])
def test_the_prefix_is_what_all_keys_begin_with(
    backend: Valkey, direct: Client, start_server: StartServer, by_flag: bool
) -> None:
    arguments = ["--backend", backend.url, *(["--prefix", "mine"] if by_flag else [])]
    server = start_server(*arguments, environment={} if by_flag else {"PRESSURE_PREFIX": "mine"})
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


@pytest.mark.parametrize("bound", [0, 5])
def test_create_writes_what_the_specification_lists(client: Client, direct: Client, bound: int) -> None:
    create(client, "q", *(("BOUND", bound) if bound else ()))
    assert written(direct) == {":bound": b"%d" % bound, **FREE}
    with pytest.raises(QueueAlreadyExistsError):
        NativeClient(direct, "q").create()


def test_what_exists_already_is_not_created_and_stays_as_it_is(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    NativeClient(direct, "q").create(3)
    NativeClient(direct, "q").put(b"m")
    before = written(direct)
    assert is_refused(waiter("PRESSURE.CREATE", "q", "BOUND", 7), "EXISTS")
    assert written(direct) == before


def test_a_queue_exists_from_its_bound_on_and_a_put_waits_for_its_roles(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    """A native client is stopped in the middle of Create, and goes on."""
    steps = NativeSteps(direct, "q", "native").create(2)
    next(steps)
    assert written(direct) == {":bound": b"2"}
    assert waiter("PRESSURE.EXISTS", "q") == 1
    assert waiter("PRESSURE.LENGTH", "q") == 0
    assert is_refused(waiter("PRESSURE.CREATE", "q"), "EXISTS")
    waiter.send("PRESSURE.PUT", "q", "m")
    wait_for_waiting(client, "q", producers=1)
    run(steps)
    assert waiter.reply() == 1
    assert direct.lrange(BASE, 0, -1) == [b"m"]


def test_a_put_before_the_end_of_a_native_create_leaves_no_second_token(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    """The token is still to come, and not lost: with two of them native clients would exceed the bound."""
    steps = NativeSteps(direct, "q", "native").create(2)
    step_until(steps, lambda: direct.llen(f"{BASE}:consumer_free") == 1)
    waiter.send("PRESSURE.PUT", "q", "1")
    wait_for(lambda: waiter.has_reply() or about(client, "q")[b"waiting_producers"], "the put to be tried")
    run(steps)
    assert waiter.reply() == 1
    NativeClient(direct, "q").put_non_blocking(b"2")
    with pytest.raises(QueueFullError):
        NativeClient(direct, "q").put_non_blocking(b"3")


def test_questions_take_no_role_and_need_none(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 5)
    NativeClient(direct, "q").put(b"m")
    NativeClient(direct, "q").put(b"n")
    put, get = NativeSteps(direct, "q", "native").put(b"o"), NativeSteps(direct, "q", "native").get()
    step_until(put, lambda: direct.llen(f"{BASE}:producer_free") == 0)
    step_until(get, lambda: direct.llen(f"{BASE}:consumer_free") == 0)
    before = written(direct)
    assert (before[":producer"], ":consumer" in before) == (b"native", False)
    questions: list[tuple[tuple[str, ...], Any]] = [
        (("PRESSURE.EXISTS", "q"), 1),
        (("PRESSURE.LENGTH", "q"), 2),
        (("PRESSURE.CLOSED", "q"), 0),
        (("SCARD", "q"), 2),
        (("SISMEMBER", "q", "n"), 1),
        (("LRANGE", "q", "0", "-1"), [b"m", b"n"]),
        (("PRESSURE.LIST",), [b"q"]),
    ]
    for words, answer in questions:
        assert waiter(*words) == answer, words
    found = about(client, "q")
    assert (found[b"producer_role"], found[b"consumer_role"]) == (b"held", b"held")
    assert written(direct) == before
    run(put)
    assert run(get) == b"m"


@pytest.mark.parametrize("tokens", [1, 2], ids=["0.15", "0.1"])
def test_a_put_leaves_one_token_exactly_when_there_is_room(
    client: Client, direct: Client, waiter: Waiter, tokens: int
) -> None:
    """A client of 0.1 leaves up to two, of which we make one."""
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
        NativeClient(direct, "q").put_non_blocking(b"five")


def test_a_get_pushes_the_token_only_where_there_is_room_again(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    """Also below a bound that was overfilled."""
    create(client, "q", "BOUND", 2)
    for number in range(4):
        assert waiter("PRESSURE.PUT", "q", number, "OVERFILL") == 1
    assert direct.llen(BASE) == 4
    tokens: list[int] = []
    for number in range(4):
        assert waiter("PRESSURE.GET", "q") == b"%d" % number
        tokens.append(direct.llen(f"{BASE}:not_full"))
    assert tokens == [0, 0, 1, 1]
    assert {suffix: value for suffix, value in written(direct).items() if "stats" in suffix} == statistics(
        4, 4, 4, 4
    )


def test_a_get_of_several_counts_each_and_signs_once(client: Client, direct: Client) -> None:
    NativeClient(direct, "q").create(5)
    for message in (b"1", b"22", b"333", b"4444"):
        NativeClient(direct, "q").put(message)
    assert client.spop("q", 3) == [b"1", b"22", b"333"]
    found = written(direct)
    assert found.pop(":consumer").startswith(b"pressure-server:")
    expected = {**FREE, ":bound": b"5", ":producer": b"native", "": [b"4444"], **statistics(4, 10, 3, 6)}
    assert found == expected


def test_messages_go_in_at_the_left_and_out_at_the_right(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    waiter("PRESSURE.PUT", "q", "ours 1")
    NativeClient(direct, "q").put(b"native 2")
    client.sadd("q", "ours 3")
    NativeClient(direct, "q").put(b"native 4")
    assert direct.lrange(BASE, 0, -1) == [b"native 4", b"ours 3", b"native 2", b"ours 1"]
    taken = [client.spop("q"), NativeClient(direct, "q").get(), waiter("PRESSURE.GET", "q")]
    assert [*taken, NativeClient(direct, "q").get_non_blocking()] == [
        b"ours 1", b"native 2", b"ours 3", b"native 4"
    ]  # fmt: skip


def test_who_waits_holds_no_role(client: Client, direct: Client, server: Server) -> None:
    """So it need not be given back when it gives up, and native clients act all the while."""
    create(client, "q", "BOUND", 1)
    with Waiter(server.port) as getting, Waiter(server.port) as putting:
        getting.send("PRESSURE.GET", "q", "TIMEOUT", "0.3")
        wait_for_waiting(client, "q", consumers=1)
        assert unsigned(written(direct)) == {":bound": b"1", **FREE}
        assert getting.reply() is None
        assert unsigned(written(direct)) == {":bound": b"1", **FREE}
        NativeClient(direct, "q").put(b"native")
        full = unsigned(written(direct))
        putting.send("PRESSURE.PUT", "q", "ours", "TIMEOUT", "0.3")
        wait_for_waiting(client, "q", producers=1)
        assert unsigned(written(direct)) == full
        assert is_refused(putting.reply(), "FULL")
        assert unsigned(written(direct)) == full
        putting.send("PRESSURE.PUT", "q", "ours")
        wait_for_waiting(client, "q", producers=1)
        assert NativeClient(direct, "q").get() == b"native"
        assert putting.reply() == 1
    assert direct.lrange(BASE, 0, -1) == [b"ours"]


def test_a_put_that_is_refused_changes_nothing_but_who_came_last(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    NativeClient(direct, "q").create(1)
    NativeClient(direct, "q").put(b"m")
    full = unsigned(written(direct))
    for option in (["NOWAIT"], ["TIMEOUT", "0.02"], ["NX", "NOWAIT"]):
        assert is_refused(waiter("PRESSURE.PUT", "q", "n", *option), "FULL")
        assert unsigned(written(direct)) == full
    NativeClient(direct, "q").close()
    closed = unsigned(written(direct))
    for option in ([], ["NOWAIT"], ["OVERFILL"]):
        assert is_refused(waiter("PRESSURE.PUT", "q", "n", *option), "CLOSED")
        assert unsigned(written(direct)) == closed


def test_close_pushes_two_elements_once(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q")
    assert waiter("PRESSURE.CLOSE", "q") == b"OK"
    found = written(direct)
    assert found.pop(":producer").startswith(b"pressure-server:")
    assert found == {":bound": b"0", **FREE, ":closed": 2}
    assert is_refused(waiter("PRESSURE.CLOSE", "q"), "CLOSED")
    assert direct.llen(f"{BASE}:closed") == 2
    for close in (NativeClient(direct, "q").close, NativeClient(direct, "q").get):
        with pytest.raises(QueueClosedError):
            close()


def test_close_waits_for_the_producer_role_and_needs_no_other(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    put, get = NativeSteps(direct, "q", "native").put(b"m"), NativeSteps(direct, "q", "native").get()
    hold(direct, "consumer", get)
    hold(direct, "producer", put)
    waiter.send("PRESSURE.CLOSE", "q")
    wait_for_waiting(client, "q", producers=1)
    assert direct.exists(f"{BASE}:closed") == 0
    run(put)
    assert waiter.reply() == b"OK"
    assert direct.llen(f"{BASE}:consumer_free") == 0
    assert run(get) == b"m"


def test_delete_where_a_role_is_held_goes_in_the_order_of_the_specification(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 1)
    NativeClient(direct, "q").put(b"m")
    put = NativeSteps(direct, "q", "native").put(b"n")
    get = NativeSteps(direct, "q", "native").get()
    hold(direct, "consumer", get)
    hold(direct, "producer", put)
    before = written(direct)
    waiter.send("PRESSURE.DELETE", "q")
    # It exists no longer, who waits for room or a message is woken, and what the holders need is still there.
    wait_for(lambda: not direct.exists(f"{BASE}:bound"), "the first step")
    del before[":bound"]
    assert written(direct) == {**before, ":not_full": 1, ":closed": 2}
    for role, steps in (("producer", put), ("consumer", get)):
        assert not waiter.has_reply()
        assert direct.llen(f"{BASE}:{role}_free") == 0
        try:
            run(steps)
        except QueueClosedError:
            assert role == "producer"
    assert waiter.reply() == b"OK"
    wait_for(lambda: keys_left(direct) == [], f"no key to be left, not {keys_left(direct)}")


def test_delete_where_no_role_is_held_is_one_step(backend: Valkey, client: Client) -> None:
    """Nobody, native or ours, sees a queue that is half deleted."""
    # A name of its own: the server may still stand in line for a role of another test's queue.
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
        wait_for(create_use_and_delete, "the queue to be seen, and to be seen to be gone")
        for _ in range(200):
            create_use_and_delete()
    finally:
        is_over.set()
        join(thread)
    assert seen <= {absent, created, used}


def test_a_name_may_be_anything_that_a_key_may_be(client: Client, direct: Client) -> None:
    chance = os.urandom(200).replace(b":ext:", b"")
    for name in (bytes(range(256)), b"", b" ", b"*", b"a:b", b"{a}", "ü".encode(), b"x" * 100_000, chance):
        assert client.sadd(name, "m") == 1
        assert direct.lrange(b"__pressure__:" + name, 0, -1) == [b"m"]
        assert client.spop(name) == b"m"
        assert client.delete(name) == 1
    assert keys_left(direct) == []
