"""Native clients and the server's clients on one queue, when native clients or the server are killed.

`PRESSURE_NEIGHBOUR_MESSAGES=100000 .venv/bin/pytest -s tests/test_neighbours.py -k no_message_is_lost` is the
full run, and prints what has happened. Without the variable the run is much shorter.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.native import NativeClient
from tests.support.native_process import VERSIONS, NativeProcess
from tests.support.neighbours import Neighbourhood, Outcome, Plan, doctor
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    join,
    keys_left,
    wait_for,
)
from tests.support.waiters import (
    AsyncWaiter,
    Waiter,
    Words,
    about,
    create,
    is_refused,
    wait_for_waiting,
    waiters,
)

BASE = "__pressure__:q"
HOLDER = "host-7 4711"
ROLE_TIMEOUT = 0.5

MESSAGES = int(os.environ.get("PRESSURE_NEIGHBOUR_MESSAGES", "900"))
FATES = max(4, MESSAGES // 500)


# Put and taken: once, in order, whoever dies.

PLANS = {
    "native producers, our consumers": Plan(3, 0, 0, 3, MESSAGES, FATES, bound=100),
    "our producers, native consumers": Plan(0, 3, 3, 0, MESSAGES, FATES, bound=0),
    "several of each": Plan(3, 3, 3, 3, MESSAGES, FATES, bound=10, auto_repair=True),
}


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_no_message_is_lost_or_doubled_when_native_clients_are_stopped_and_killed(
    start_valkey: StartValkey, start_server: StartServer, tmp_path: Path, plan: Plan
) -> None:
    backend = start_valkey()
    options = ["--auto-repair-after", "1"] if plan.auto_repair else []
    server = start_server("--backend", backend.url, *options)
    outcome = uvloop.run(Neighbourhood(plan, backend, server, tmp_path).live())
    print(outcome)
    assert outcome.deaths.total() > 0
    assert outcome.stopped > 0
    assert outcome.ledger.acknowledged == plan.messages
    outcome.ledger.check(in_order=True)
    assert "Traceback" not in server.log
    with backend.client() as direct:
        assert_settled(backend, direct)
        NativeClient(direct, "q").delete()
        assert server.stop() == 0
        assert keys_left(direct) == []


def assert_settled(backend: Valkey, direct: Client) -> None:
    """The doctor mends all there is; then the closed, empty queue is as specified."""
    status, said = asyncio.run(doctor(backend))
    assert status == 0, said
    assert asyncio.run(doctor(backend)) == (0, "1 queue checked: no problems\n")
    suffixes = ("", ":producer_free", ":consumer_free", ":not_full")
    assert [direct.llen(BASE + suffix) for suffix in suffixes] == [0, 1, 1, 1]
    # A consumer that was blocked when the queue was closed has popped one of two.
    assert direct.llen(f"{BASE}:closed") in (1, 2)
    produced, consumed = direct.mget(*[f"{BASE}:stats:{v}_messages" for v in ("produced", "consumed")])
    assert produced == consumed


# Fairness.


def clients_in_order(outcome: Outcome, plan: Plan) -> list[str]:
    """Return the taker of each message in queue order; if there are several producers, its producer."""
    taken = outcome.ledger.receipts
    if plan.producers == 1:
        return [taken[b"p0-%d" % number].by for number in range(plan.messages)]
    return [message.decode().partition("-")[0] for message in taken]


@pytest.mark.timeout(600)
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "bound"),
    [((2, 2, 0, 1), 10), ((0, 1, 2, 2), 0)],
    ids=["two and two producers", "two and two consumers"],
)
def test_native_clients_and_the_server_s_all_get_their_turns(
    start_valkey: StartValkey,
    start_server: StartServer,
    tmp_path: Path,
    clients: tuple[int, int, int, int],
    bound: int,
) -> None:
    """While all four of a kind are there each acts every so many messages, and about as often as others."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    plan = Plan(*clients, messages=1600, fates=0, bound=bound, auto_repair=True)
    order = clients_in_order(uvloop.run(Neighbourhood(plan, backend, server, tmp_path).live()), plan)
    places = {who: [place for place, other in enumerate(order) if other == who] for who in set(order)}
    assert len(places) == 4
    together = range(max(p[0] for p in places.values()), min(p[-1] for p in places.values()))
    shares = Counter(order[place] for place in together)
    gaps = {
        who: sorted(after - before for before, after in pairwise(p) if before in together)
        for who, p in places.items()
    }
    longest, long = ([g[int(len(g) * part)] for g in gaps.values()] for part in (0.9999, 0.99))
    print(
        f"shares of {len(together)}: {sorted(shares.values())}; of the gaps, in messages, {long=} {longest=}"
    )
    assert len(together) > 400
    assert min(shares.values()) > len(together) / 8
    # The longest are what a loaded machine does to a process.
    assert max(long) < 50
    assert max(longest) < 500


# A role that is held.


@pytest.fixture(scope="module")
def impatient(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that does not wait long for a role."""
    log = tmp_path_factory.mktemp("impatient") / "log"
    server = Server(log, "--backend", shared_backend.url, "--role-timeout", str(ROLE_TIMEOUT))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="module")
def patient(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for a role for as long as a busy machine may need."""
    log = tmp_path_factory.mktemp("patient") / "log"
    server = Server(log, "--backend", shared_backend.url, "--role-timeout", "60")
    yield server
    server.end_well()


PUTTING: list[Words] = [
    ("SADD", "q", "a"),
    ("LPUSH", "q", "b"),
    ("PRESSURE.PUT", "q", "c", "TIMEOUT", "10"),
    ("SMOVE", "other", "q", "d"),
    ("BLMOVE", "another", "q", "LEFT", "RIGHT", "10"),
    ("PRESSURE.CLOSE", "q"),
]
TAKING: list[Words] = [
    ("SPOP", "q"),
    ("RPOP", "q"),
    ("BLPOP", "q", "10"),
    ("BLMPOP", "10", "2", "empty", "q", "LEFT"),
    ("PRESSURE.GET", "q"),
    ("LMOVE", "q", "other", "LEFT", "RIGHT"),
]
# What a native client does, where it is stopped, and what of ours meets it.
HOLDING = [
    (("put", "theirs"), "SET :producer", PUTTING),
    (("put", "theirs"), "BRPOP :not_full", PUTTING),
    (("put", "theirs"), "LPUSH", PUTTING),
    (("get",), "SET :consumer", TAKING),
    (("get",), "BRPOP", TAKING),
]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("work", "stop_after", "commands"), HOLDING, ids=lambda v: v if v is str else None)
def test_after_the_role_timeout_an_error_names_the_stopped_native_client(
    backend: Valkey,
    impatient: Server,
    work: tuple[str, ...],
    stop_after: str,
    commands: list[Words],
    version: str,
) -> None:
    with impatient.client() as client, waiters(impatient, len(commands)) as waiting:
        client.rpush("q", *range(len(commands) + 1))
        client.rpush("other", "d")
        client.rpush("another", "e")
        with NativeProcess(
            backend.socket, "q", HOLDER, *work, version=version, stop_after=stop_after
        ) as native:
            native.wait_until_stopped()
            began = time.monotonic()
            for waiter, words in zip(waiting, commands, strict=True):
                waiter.send(*words)
            replies = [waiter.reply() for waiter in waiting]
            waited = time.monotonic() - began
            assert all(is_refused(reply, "INUSE") and HOLDER in str(reply) for reply in replies), replies
            assert ROLE_TIMEOUT * 0.9 < waited < ROLE_TIMEOUT + 2
            wait_for_waiting(client, "q")
            native.resume()
            assert native.outcome() == ("done" if work[0] == "put" else "0")
        # Nothing has happened of what was refused, and all of it can.
        queued = [b"%d" % number for number in range(len(commands) + 1)]
        queued = [*queued, b"theirs"] if work[0] == "put" else queued[1:]
        assert client.lrange("q", 0, -1) == queued
        for waiter, words in zip(waiting, commands, strict=True):
            reply = waiter(*words)
            assert reply is not None
            assert not isinstance(reply, Exception), reply
        length = len(queued) + 5 if commands is PUTTING else len(queued) - len(commands)
        assert client.llen("q") == length


@pytest.mark.parametrize(
    ("work", "stop_after", "words"),
    [
        (("put", "theirs"), "BRPOP :producer_free", ("SADD", "q", "x")),
        (("get",), "BRPOP :consumer_free", ("SPOP", "q")),
    ],
)
def test_the_server_is_not_named_as_the_holder_of_a_role_it_never_holds(
    backend: Valkey, impatient: Server, work: tuple[str, ...], stop_after: str, words: Words
) -> None:
    """It has the token, and has not written its name yet: ours is still there, and we never hold a role."""
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        assert client.rpop("q") == b"a"
        with NativeProcess(backend.socket, "q", HOLDER, *work, stop_after=stop_after) as native:
            native.wait_until_stopped()
            reply = waiter(*words)
            assert is_refused(reply, "INUSE")
            assert "pressure-server:" not in str(reply)


@pytest.mark.parametrize(
    ("work", "stop_after", "words"),
    [
        (("put", "theirs"), "SET :producer", ("PRESSURE.PUT", "q", "x", "NOWAIT")),
        (("get",), "SET :consumer", ("PRESSURE.GET", "q", "NOWAIT")),
    ],
)
def test_an_operation_that_must_not_wait_is_refused_at_once(
    backend: Valkey, client: Client, waiter: Waiter, work: tuple[str, ...], stop_after: str, words: Words
) -> None:
    """The server's role timeout is five seconds."""
    client.rpush("q", "a")
    with NativeProcess(backend.socket, "q", HOLDER, *work, stop_after=stop_after) as native:
        native.wait_until_stopped()
        began = time.monotonic()
        assert is_refused(waiter(*words), "INUSE")
        assert time.monotonic() - began < 1


def test_a_native_consumer_that_waits_on_an_empty_queue_is_no_obstacle(
    backend: Valkey, impatient: Server, direct: Client
) -> None:
    with impatient.client() as client, waiters(impatient, 2) as (first, second):
        create(client, "q")
        with NativeProcess(backend.socket, "q", HOLDER, "get") as native:
            wait_for_blocked_natives(direct, 1)
            assert client.spop("q") is None
            assert first("PRESSURE.GET", "q", "NOWAIT") is None
            second.send("BLPOP", "q", 0)
            # For longer than anybody waits for a role.
            assert first("BLPOP", "q", 3 * ROLE_TIMEOUT) is None
            assert about(client, "q")[b"consumer"] == HOLDER.encode()
            assert first("SADD", "q", "one", "two") == 2
            assert native.outcome() == "one"
            assert second.reply() == [b"q", b"two"]


def test_a_stopped_native_consumer_keeps_what_it_was_given(
    backend: Valkey, impatient: Server, direct: Client
) -> None:
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        create(client, "q")
        with NativeProcess(backend.socket, "q", HOLDER, "get") as native:
            wait_for_blocked_natives(direct, 1)
            native.stop()
            native.wait_until_stopped()
            assert waiter("SADD", "q", "one") == 1
            assert client.llen("q") == 0
            assert waiter("SADD", "q", "two") == 1
            reply = waiter("BLPOP", "q", 0)
            assert is_refused(reply, "INUSE")
            assert HOLDER in str(reply)
            native.resume()
            assert native.outcome() == "one"
            assert waiter("BLPOP", "q", 0) == [b"q", b"two"]


@pytest.mark.alone
def test_native_consumers_that_wait_are_served_at_once(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    got: list[float] = []

    def consume() -> None:
        with backend.client() as connected:
            native = NativeClient(connected, "q")
            for _ in range(100):
                native.get()
                got.append(time.perf_counter())

    put: list[float] = []
    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    for number in range(100):
        wait_for(lambda: len(got) == len(put), "the message before")
        wait_for_blocked_natives(direct, 1)
        put.append(time.perf_counter())
        assert waiter("SADD", "q", number) == 1
    join(thread)
    times = [after - before for before, after in zip(put, got, strict=True)]
    print(
        f"SADD to a native consumer that waits: median {statistics.median(times) * 1000:.2f} ms, "
        f"at most {max(times) * 1000:.2f} ms"
    )
    assert statistics.median(times) < 0.05


def wait_for_blocked_natives(direct: Client, count: int) -> None:
    """Return when so many clients of the backend are blocked; ours are not, while they wait for messages."""
    wait_for(lambda: direct.info("clients")["blocked_clients"] == count, f"{count} to be blocked")


@pytest.mark.slow
def test_a_client_that_was_taken_for_dead_and_goes_on_loses_and_doubles_nothing(
    backend: Valkey, client: Client, direct: Client
) -> None:
    """A message may be put in another's turn; that is what the doctor's `--wait` is for."""
    client.sadd("q", "before")
    with ExitStack() as stack:
        stopped = [
            stack.enter_context(
                NativeProcess(backend.socket, "q", f"stopped {step}", "put", f"by {step}", stop_after=step)
            )
            for step in ("BRPOP :producer_free", "LPUSH :producer_free")
        ]
        for native in stopped:
            if native is stopped[0]:
                native.wait_until_stopped()
        status, said = asyncio.run(doctor(backend))
        assert "gave the producer role back" in said
        assert status == 0
        stopped[1].wait_until_stopped()
        assert client.sadd("q", "ours") == 1
        for native in stopped:
            native.resume()
            assert native.outcome() == "done"
    assert sorted(client.lrange("q", 0, -1)) == [
        b"before",
        b"by BRPOP :producer_free",
        b"by LPUSH :producer_free",
        b"ours",
    ]
    assert asyncio.run(doctor(backend))[0] == 0
    assert direct.llen(f"{BASE}:producer_free") == 1
    assert client.sadd("q", "after") == 1


# Close and delete, by a native client, while ours are at work.


async def until_told(port: int, words: Callable[[int], Words], codes: Counter[str]) -> list[Any]:
    """Do a command again and again until it is refused; the replies before that."""
    waiter = await AsyncWaiter.connect(port)
    replies: list[Any] = []
    while not isinstance(reply := await waiter(*words(len(replies))), Exception):
        replies.append(reply)
    codes[str(reply).split()[0]] += 1
    waiter.close()
    return replies


async def end_while_at_work(
    port: int, end: Callable[[], None]
) -> tuple[Counter[str], list[bytes], list[bytes]]:
    """Three clients put, three take; the end comes at any moment of that.

    What they were told then, what was put, and what was taken.
    """
    codes: Counter[str] = Counter()

    def putting(who: int) -> Callable[[int], Words]:
        # The unique ones have the server keep its mirror of the queue.
        return lambda number: ("PRESSURE.PUT", "q", f"{who}-{number}", *["NX"][: who % 2])

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        puts = [group.create_task(until_told(port, putting(who), codes)) for who in range(3)]
        gets = [group.create_task(until_told(port, lambda _: ("PRESSURE.GET", "q"), codes)) for _ in range(3)]
        await asyncio.sleep(random.uniform(0, 0.03))  # at any moment
        await asyncio.to_thread(end)
    put = [
        f"{who}-{number}".encode() for who, done in enumerate(puts) for number in range(len(done.result()))
    ]
    return codes, put, [message for get in gets for message in get.result()]


@pytest.mark.slow
@pytest.mark.parametrize("with_natives", [False, True], ids=["ours alone", "native ones too"])
@pytest.mark.parametrize("bound", [0, 3])
@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_native_close_or_delete_while_clients_put_and_take(
    server: Server, backend: Valkey, client: Client, direct: Client, end: str, bound: int, with_natives: bool
) -> None:
    told: Counter[str] = Counter()
    for _ in range(2 if with_natives else 12):
        create(client, "q", "BOUND", bound)
        ender = NativeClient(direct, "q", "ender")
        with ExitStack() as stack:
            natives = [
                stack.enter_context(NativeProcess(backend.socket, "q", work[0], *work))
                for work in (("produce", "native", "0", "100000"), ("consume",))[: 2 * with_natives]
            ]
            if with_natives:
                wait_for(lambda: direct.get(f"{BASE}:consumer") == b"consume", "the native consumer")
            codes, put, taken = asyncio.run(end_while_at_work(server.port, getattr(ender, end)))
            if end == "close":
                # These end by themselves; after a Delete they may wait for a token for ever.
                assert [native.outcome() for native in natives] in ([], ["QueueClosedError", "done"])
        told += codes
        assert codes.total() == 6
        assert max(Counter(taken).values(), default=1) == 1
        if end == "close":
            if not with_natives:
                assert sorted(taken) == sorted(put)
            ender.delete()
        # Ours go when the server learns of it.
        wait_for(lambda: keys_left(direct) == [], "the keys to go", 5)
    print(told)
    assert told.keys() <= {"CLOSED", *["NOQUEUE"][: end == "delete"]}


@pytest.mark.parametrize("first_in_line", ["ours", "the deleter"])
@pytest.mark.parametrize(
    ("role", "work", "words"),
    [
        ("producer", ("put", "theirs"), ("PRESSURE.PUT", "q", "ours")),
        ("consumer", ("get",), ("PRESSURE.GET", "q")),
    ],
)
def test_a_native_delete_waits_with_clients_for_the_same_role(
    patient: Server,
    backend: Valkey,
    direct: Client,
    role: str,
    work: tuple[str, ...],
    words: Words,
    first_in_line: str,
) -> None:
    with (
        patient.client() as client,
        waiters(patient, 20) as waiting,
        ExitStack() as stack,
    ):
        client.rpush("q", "a", "b")
        native = NativeProcess(backend.socket, "q", HOLDER, *work, stop_after=f"SET :{role}")
        holder = stack.enter_context(native)
        holder.wait_until_stopped()

        def ours() -> None:
            for waiter in waiting:
                waiter.send(*words)
            wait_for_waiting(client, "q", **{f"{role}s": len(waiting)})

        def the_deleter() -> None:
            deleters.append(stack.enter_context(NativeProcess(backend.socket, "q", "deleter", "delete")))

        deleters: list[NativeProcess] = []
        stand_in_line = [ours, the_deleter] if first_in_line == "ours" else [the_deleter, ours]
        stand_in_line[0]()
        wait_for_blocked_natives(direct, 1)
        if first_in_line == "ours":
            the_deleter()
        else:
            for waiter in waiting:
                waiter.send(*words)
        # The queue is gone as soon as the deletion has begun, whoever holds a role.
        replies = [waiter.reply() for waiter in waiting]
        assert all(is_refused(reply, "NOQUEUE") for reply in replies), replies
        # Ours leave the line, and the deleter stays, which has closed the queue before.
        wait_for(lambda: direct.exists("__pressure__:q:closed"), "the deleter to come so far")
        wait_for_blocked_natives(direct, 1)
        holder.resume()
        assert holder.outcome() == ("QueueClosedError" if role == "producer" else "a")
        assert deleters[0].outcome() == "done"
    wait_for(lambda: keys_left(direct) == [], "the keys to go")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["PRESSURE.DELETE", "DEL", "UNLINK"])
@pytest.mark.parametrize(
    ("work", "stop_after"), [(("put", "x"), "SET :producer"), (("get",), "SET :consumer")]
)
def test_a_delete_that_met_a_stopped_native_client_leaves_nothing_in_the_end(
    backend: Valkey, impatient: Server, direct: Client, command: str, work: tuple[str, ...], stop_after: str
) -> None:
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        with NativeProcess(backend.socket, "q", HOLDER, *work, stop_after=stop_after) as native:
            native.wait_until_stopped()
            reply = waiter(command, "q")
            assert is_refused(reply, "INUSE")
            assert HOLDER in str(reply)
            native.resume()
            assert native.outcome() in ("QueueClosedError", "a", "done")
        waiter(command, "q")
        wait_for(lambda: keys_left(direct) == [], "the keys to go", 3)
        assert client.sadd("q", "anew") == 1


# A server of ours that is killed.


def kill_in_its_turn(
    server: Server, backend: Valkey, direct: Client, role: str, work: tuple[str, ...], words: Words
) -> None:
    """Have the server wait for a role that a native client holds, and kill it when it has got it."""
    parked = f"{BASE}:ext:{role}_turn"
    with (
        Waiter(server.port) as waiter,
        NativeProcess(backend.socket, "q", HOLDER, *work, stop_after=f"SET :{role}") as holder,
    ):
        holder.wait_until_stopped()
        waiter.send(*words)
        wait_for_blocked_natives(direct, 1)
        server.process.send_signal(signal.SIGSTOP)
        holder.resume()
        assert holder.outcome() != ""
        assert direct.llen(parked) == 1
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert direct.llen(parked) == 1
    assert direct.llen(f"{BASE}:{role}_free") == 0


ROLES = [
    ("producer", ("put", "theirs"), ("SADD", "q", "ours")),
    ("consumer", ("get",), ("SPOP", "q")),
]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["restart", "another server", "doctor"])
@pytest.mark.parametrize(("role", "work", "words"), ROLES)
def test_the_token_of_a_server_killed_in_its_turn_comes_back(
    backend: Valkey,
    direct: Client,
    start_server: StartServer,
    role: str,
    work: tuple[str, ...],
    words: Words,
    by: str,
) -> None:
    doomed, other = start_server("--backend", backend.url), start_server("--backend", backend.url)
    with doomed.client() as client:
        client.rpush("q", "a", "b", "c")
    kill_in_its_turn(doomed, backend, direct, role, work, words)
    with NativeProcess(backend.socket, "q", "next", *work) as native:
        wait_for_blocked_natives(direct, 1)
        if by == "restart":
            start_server("--backend", backend.url)
        elif by == "another server":
            with Waiter(other.port) as waiter:
                assert waiter(*words) in (1, b"b")
        else:
            assert asyncio.run(doctor(backend))[0] == 0
        assert native.outcome() in ("done", "b", "c")
    assert direct.llen(f"{BASE}:{role}_free") == 1
    assert direct.exists(f"{BASE}:ext:{role}_turn") == 0
    # What it was to do in its turn has not been done: nobody was told that it was.
    queued = {"producer": [b"a", b"b", b"c", b"theirs", b"theirs"], "consumer": [b"c"]}[role]
    if by == "another server":
        queued = {"producer": [*queued[:4], b"ours", b"theirs"], "consumer": []}[role]
    assert sorted(direct.lrange(BASE, 0, -1)) == sorted(queued)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_native_clients_go_on_after_a_server_is_killed_in_its_turn(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    parked = [f"{BASE}:ext:producer_turn", f"{BASE}:ext:consumer_turn"]
    rounds = met = 0

    def has_consumed(count: int) -> bool:
        return consumed() >= count

    def consumed() -> int:
        return int(direct.get(f"{BASE}:stats:consumed_messages") or 0)

    NativeClient(direct, "q").create(10)
    with ExitStack() as stack:
        for work in (("produce", "n", "0", "1000000"), ("consume",)):
            stack.enter_context(NativeProcess(backend.socket, "q", work[0], *work))
        # Sometimes the turn is over when the signal comes.
        while met < 3 and rounds < 40:
            rounds += 1
            server = start_server("--backend", backend.url)
            with waiters(server, 6) as waiting:
                end = time.monotonic() + TIMEOUT
                while not any(direct.exists(*parked) for _ in range(20)):
                    assert time.monotonic() < end, "it has no turn"
                    for number, waiter in enumerate(waiting):
                        waiter.replies_now()
                        waiter.send(*[("SADD", "q", rounds), ("SPOP", "q")][number % 2])
                server.stop(signal.SIGKILL)
            met += direct.exists(*parked) > 0
            next_server = start_server("--backend", backend.url)
            wait_for(lambda: not direct.exists(*parked), "the tokens to come back")
            enough = consumed() + 20
            wait_for(partial(has_consumed, enough), "native clients to go on")
            assert next_server.stop() == 0
    print(f"killed in its turn {met} times of {rounds}")
    assert met == 3
