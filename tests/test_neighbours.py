"""Native clients and the server's clients on one queue, while native clients or the server are killed.

`PRESSURE_NEIGHBOUR_MESSAGES=100000 .venv/bin/pytest -s tests/test_neighbours.py -k no_message_is_lost` is the
full run, and prints its figures. Without the variable the run is much shorter.
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
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.native import NativeClient
from tests.support.native_process import VERSIONS, NativeProcess
from tests.support.neighbours import Outcome, Plan, Workload, doctor
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
FAULTS = max(4, MESSAGES // 500)

PLANS = {
    "native producers, server's consumers": Plan(3, 0, 0, 3, MESSAGES, FAULTS, bound=100),
    "server's producers, native consumers": Plan(0, 3, 3, 0, MESSAGES, FAULTS, bound=0),
    "several of each": Plan(3, 3, 3, 3, MESSAGES, FAULTS, bound=10, auto_repair=True),
}


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_no_message_is_lost_or_doubled_when_native_clients_are_suspended_and_killed(
    start_valkey: StartValkey, start_server: StartServer, tmp_path: Path, plan: Plan
) -> None:
    backend = start_valkey()
    options = ["--auto-repair-after", "1"] if plan.auto_repair else []
    server = start_server("--backend", backend.url, *options)
    outcome = uvloop.run(Workload(plan, backend, server, tmp_path).run())
    print(outcome)
    assert outcome.kills.total() > 0
    assert outcome.suspended > 0
    assert outcome.ledger.acknowledged == plan.messages
    outcome.ledger.check(in_order=True)
    assert "Traceback" not in server.log
    with backend.client() as direct:
        assert_settled(backend, direct)
        NativeClient(direct, "q").delete()
        assert server.stop() == 0
        assert keys_left(direct) == []


def assert_settled(backend: Valkey, direct: Client) -> None:
    """Raise AssertionError unless, after a repair, the closed and empty queue is as specified."""
    status, output = asyncio.run(doctor(backend))
    assert status == 0, output
    assert asyncio.run(doctor(backend)) == (0, "1 queue checked: no problems\n")
    suffixes = ("", ":producer_free", ":consumer_free", ":not_full")
    assert [direct.llen(BASE + suffix) for suffix in suffixes] == [0, 1, 1, 1]
    # A consumer that was blocked when the queue was closed has popped one of the two elements.
    assert direct.llen(f"{BASE}:closed") in (1, 2)
    produced, consumed = direct.mget(*[f"{BASE}:stats:{v}_messages" for v in ("produced", "consumed")])
    assert produced == consumed


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
def test_native_clients_and_the_server_s_clients_take_turns_fairly(
    start_valkey: StartValkey,
    start_server: StartServer,
    tmp_path: Path,
    clients: tuple[int, int, int, int],
    bound: int,
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    plan = Plan(*clients, messages=1600, faults=0, bound=bound, auto_repair=True)
    order = clients_in_order(uvloop.run(Workload(plan, backend, server, tmp_path).run()), plan)
    places = {client: [p for p, other in enumerate(order) if other == client] for client in set(order)}
    assert len(places) == 4
    together = range(max(p[0] for p in places.values()), min(p[-1] for p in places.values()))
    shares = Counter(order[place] for place in together)
    gaps = {
        client: sorted(after - before for before, after in pairwise(p) if before in together)
        for client, p in places.items()
    }
    longest, long = ([g[int(len(g) * part)] for g in gaps.values()] for part in (0.9999, 0.99))
    print(f"shares of {len(together)}: {sorted(shares.values())}; gaps in messages: {long=} {longest=}")
    assert len(together) > 400
    assert min(shares.values()) > len(together) / 8
    # On a loaded machine a process may pause for long.
    assert max(long) < 50
    assert max(longest) < 500


@pytest.fixture(scope="module")
def impatient(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a short role timeout."""
    log = tmp_path_factory.mktemp("impatient") / "log"
    server = Server(log, "--backend", shared_backend.url, "--role-timeout", str(ROLE_TIMEOUT))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="module")
def patient(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose role timeout is not reached on a busy machine."""
    log = tmp_path_factory.mktemp("patient") / "log"
    server = Server(log, "--backend", shared_backend.url, "--role-timeout", "60")
    yield server
    server.end_well()


@contextmanager
def suspended(
    backend: Valkey, work: tuple[str, ...], suspend_after: str, version: str = VERSIONS[0]
) -> Iterator[NativeProcess]:
    """A native client that is suspended after the command `suspend_after`."""
    with NativeProcess(
        backend.socket, "q", HOLDER, *work, version=version, suspend_after=suspend_after
    ) as native:
        native.wait_until_suspended()
        yield native


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
# Each role with a native client's work and a server's command that need it.
ROLES = [
    ("producer", ("put", "native"), ("PRESSURE.PUT", "q", "server")),
    ("consumer", ("get",), ("PRESSURE.GET", "q")),
]
# A native client's work, the command after which it is suspended, and the commands that it makes wait.
HOLDING = [
    (("put", "native"), "SET :producer", PUTTING),
    (("put", "native"), "BRPOP :not_full", PUTTING),
    (("put", "native"), "LPUSH", PUTTING),
    (("get",), "SET :consumer", TAKING),
    (("get",), "BRPOP", TAKING),
]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("work", "suspend_after", "commands"), HOLDING)
def test_after_the_role_timeout_an_error_names_the_suspended_native_client(
    backend: Valkey,
    impatient: Server,
    work: tuple[str, ...],
    suspend_after: str,
    commands: list[Words],
    version: str,
) -> None:
    with impatient.client() as client, waiters(impatient, len(commands)) as waiting:
        client.rpush("q", *range(len(commands) + 1))
        client.rpush("other", "d")
        client.rpush("another", "e")
        with suspended(backend, work, suspend_after, version) as native:
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
        # The refused commands have changed nothing, and succeed now.
        queued = [b"%d" % number for number in range(len(commands) + 1)]
        queued = [*queued, b"native"] if work[0] == "put" else queued[1:]
        assert client.lrange("q", 0, -1) == queued
        for waiter, words in zip(waiting, commands, strict=True):
            reply = waiter(*words)
            assert reply is not None
            assert not isinstance(reply, Exception), reply
        length = len(queued) + 5 if commands is PUTTING else len(queued) - len(commands)
        assert client.llen("q") == length


@pytest.mark.parametrize(
    ("work", "suspend_after", "words"),
    [
        (("put", "native"), "BRPOP :producer_free", ("SADD", "q", "x")),
        (("get",), "BRPOP :consumer_free", ("SPOP", "q")),
    ],
)
def test_the_server_is_not_named_as_the_holder_of_a_role_it_never_holds(
    backend: Valkey, impatient: Server, work: tuple[str, ...], suspend_after: str, words: Words
) -> None:
    """The native client has the token, but has not replaced the server's name as the last holder."""
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        assert client.rpop("q") == b"a"
        with suspended(backend, work, suspend_after):
            reply = waiter(*words)
            assert is_refused(reply, "INUSE")
            assert "pressure-server:" not in str(reply)


@pytest.mark.parametrize(("role", "work", "words"), ROLES)
def test_with_nowait_a_command_is_refused_at_once_if_the_role_is_held(
    backend: Valkey, client: Client, waiter: Waiter, role: str, work: tuple[str, ...], words: Words
) -> None:
    client.rpush("q", "a")
    with suspended(backend, work, f"SET :{role}"):
        began = time.monotonic()
        assert is_refused(waiter(*words, "NOWAIT"), "INUSE")
        assert time.monotonic() - began < 1  # the role timeout is five seconds


def test_a_native_consumer_waiting_on_an_empty_queue_delays_nobody(
    backend: Valkey, impatient: Server, direct: Client
) -> None:
    with impatient.client() as client, waiters(impatient, 2) as (first, second):
        create(client, "q")
        with NativeProcess(backend.socket, "q", HOLDER, "get") as native:
            wait_for_blocked_natives(direct, 1)
            assert client.spop("q") is None
            assert first("PRESSURE.GET", "q", "NOWAIT") is None
            second.send("BLPOP", "q", 0)
            # Longer than the role timeout.
            assert first("BLPOP", "q", 3 * ROLE_TIMEOUT) is None
            assert about(client, "q")[b"consumer"] == HOLDER.encode()
            assert first("SADD", "q", "one", "two") == 2
            assert native.outcome() == "one"
            assert second.reply() == [b"q", b"two"]


def test_a_suspended_native_consumer_keeps_the_message_that_it_was_served(
    backend: Valkey, impatient: Server, direct: Client
) -> None:
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        create(client, "q")
        with NativeProcess(backend.socket, "q", HOLDER, "get") as native:
            wait_for_blocked_natives(direct, 1)
            native.suspend()
            native.wait_until_suspended()
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
def test_waiting_native_consumers_are_served_within_50_ms(
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
        wait_for(lambda: len(got) == len(put), "the previous message")
        wait_for_blocked_natives(direct, 1)
        put.append(time.perf_counter())
        assert waiter("SADD", "q", number) == 1
    join(thread)
    times = [after - before for before, after in zip(put, got, strict=True)]
    print(
        f"from SADD to a waiting native consumer: median {statistics.median(times) * 1000:.2f} ms, "
        f"at most {max(times) * 1000:.2f} ms"
    )
    assert statistics.median(times) < 0.05


def wait_for_blocked_natives(direct: Client, count: int) -> None:
    """Return when `count` clients of the backend are blocked. A server that waits for messages is not."""
    wait_for(lambda: direct.info("clients")["blocked_clients"] == count, f"{count} clients to be blocked")


@pytest.mark.slow
def test_suspended_clients_that_continue_after_a_repair_lose_and_double_nothing(
    backend: Valkey, client: Client, direct: Client
) -> None:
    """A message may be put while another client has the role; a longer `--wait` of the doctor avoids that."""
    client.sadd("q", "before")
    with ExitStack() as stack:
        natives = [
            stack.enter_context(
                NativeProcess(backend.socket, "q", f"after {step}", "put", f"by {step}", suspend_after=step)
            )
            for step in ("BRPOP :producer_free", "LPUSH :producer_free")
        ]
        natives[0].wait_until_suspended()
        status, output = asyncio.run(doctor(backend))
        assert "gave the producer role back" in output
        assert status == 0
        natives[1].wait_until_suspended()
        assert client.sadd("q", "server") == 1
        for native in natives:
            native.resume()
            assert native.outcome() == "done"
    assert sorted(client.lrange("q", 0, -1)) == [
        b"before",
        b"by BRPOP :producer_free",
        b"by LPUSH :producer_free",
        b"server",
    ]
    assert asyncio.run(doctor(backend))[0] == 0
    assert direct.llen(f"{BASE}:producer_free") == 1
    assert client.sadd("q", "after") == 1


async def repeat_until_refused(port: int, words: Callable[[int], Words], codes: Counter[str]) -> list[Any]:
    """Repeat a command until it is refused. Count the error's code, and return the earlier replies."""
    waiter = await AsyncWaiter.connect(port)
    replies: list[Any] = []
    while not isinstance(reply := await waiter(*words(len(replies))), Exception):
        replies.append(reply)
    codes[str(reply).split()[0]] += 1
    waiter.close()
    return replies


async def end_during_work(
    port: int, end: Callable[[], None]
) -> tuple[Counter[str], list[bytes], list[bytes]]:
    """Call `end` at a random moment while three clients put and three take.

    Return the codes of their errors, the messages that were put, and those that were taken.
    """
    codes: Counter[str] = Counter()

    def putting(producer: int) -> Callable[[int], Words]:
        # Unique puts make the server keep a mirror of the queue.
        return lambda number: ("PRESSURE.PUT", "q", f"{producer}-{number}", *["NX"][: producer % 2])

    def getting(_number: int) -> Words:
        return "PRESSURE.GET", "q"

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        puts = [group.create_task(repeat_until_refused(port, putting(each), codes)) for each in range(3)]
        gets = [group.create_task(repeat_until_refused(port, getting, codes)) for _ in range(3)]
        await asyncio.sleep(random.uniform(0, 0.03))  # the random moment
        await asyncio.to_thread(end)
    put = [b"%d-%d" % (each, number) for each in range(3) for number in range(len(puts[each].result()))]
    return codes, put, [message for get in gets for message in get.result()]


@pytest.mark.slow
@pytest.mark.parametrize("with_natives", [False, True], ids=["server's clients", "native clients too"])
@pytest.mark.parametrize("bound", [0, 3])
@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_native_close_or_delete_ends_the_work_of_all_clients(
    server: Server, backend: Valkey, client: Client, direct: Client, end: str, bound: int, with_natives: bool
) -> None:
    all_codes: Counter[str] = Counter()
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
            codes, put, taken = asyncio.run(end_during_work(server.port, getattr(ender, end)))
            if end == "close":
                # After a delete, native clients may wait for a token for ever.
                assert [native.outcome() for native in natives] in ([], ["QueueClosedError", "done"])
        all_codes += codes
        assert codes.total() == 6
        assert max(Counter(taken).values(), default=1) == 1
        if end == "close":
            if not with_natives:
                assert sorted(taken) == sorted(put)
            ender.delete()
        # The server deletes its own keys when it is notified.
        wait_for(lambda: keys_left(direct) == [], "the keys to be deleted", 5)
    print(all_codes)
    assert all_codes.keys() <= {"CLOSED", *["NOQUEUE"][: end == "delete"]}


@pytest.mark.parametrize("first_in_line", ["server", "deleter"])
@pytest.mark.parametrize(("role", "work", "words"), ROLES)
def test_a_native_delete_refuses_clients_that_wait_for_the_same_role(
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
        holder = stack.enter_context(suspended(backend, work, f"SET :{role}"))
        if first_in_line == "server":
            send_all(waiting, words)
            wait_for_waiting(client, "q", **{f"{role}s": len(waiting)})
            wait_for_blocked_natives(direct, 1)
        deleter = stack.enter_context(NativeProcess(backend.socket, "q", "deleter", "delete"))
        if first_in_line == "deleter":
            wait_for_blocked_natives(direct, 1)
            send_all(waiting, words)
        # The queue does not exist from the first command of the delete on, whoever holds a role.
        replies = [waiter.reply() for waiter in waiting]
        assert all(is_refused(reply, "NOQUEUE") for reply in replies), replies
        # The server leaves the line; the deleter stays in it after it has closed the queue.
        wait_for(lambda: direct.exists("__pressure__:q:closed"), "the deleter to close the queue")
        wait_for_blocked_natives(direct, 1)
        holder.resume()
        assert holder.outcome() == ("QueueClosedError" if role == "producer" else "a")
        assert deleter.outcome() == "done"
    wait_for(lambda: keys_left(direct) == [], "the keys to be deleted")


def send_all(waiting: list[Waiter], words: Words) -> None:
    for waiter in waiting:
        waiter.send(*words)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["PRESSURE.DELETE", "DEL", "UNLINK"])
@pytest.mark.parametrize(("role", "work"), [role[:2] for role in ROLES])
def test_a_delete_refused_because_of_a_suspended_client_can_be_finished_later(
    backend: Valkey, impatient: Server, direct: Client, command: str, role: str, work: tuple[str, ...]
) -> None:
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        with suspended(backend, work, f"SET :{role}") as native:
            reply = waiter(command, "q")
            assert is_refused(reply, "INUSE")
            assert HOLDER in str(reply)
            native.resume()
            assert native.outcome() in ("QueueClosedError", "a", "done")
        waiter(command, "q")
        wait_for(lambda: keys_left(direct) == [], "the keys to be deleted", 3)
        assert client.sadd("q", "anew") == 1


def kill_in_its_turn(
    server: Server, backend: Valkey, direct: Client, role: str, work: tuple[str, ...], words: Words
) -> None:
    """Make the server wait for a role that a native client holds, and kill the server in its turn."""
    parked = f"{BASE}:ext:{role}_turn"
    with Waiter(server.port) as waiter, suspended(backend, work, f"SET :{role}") as holder:
        waiter.send(*words)
        wait_for_blocked_natives(direct, 1)
        server.process.send_signal(signal.SIGSTOP)
        holder.resume()
        assert holder.outcome() != ""
        assert direct.llen(parked) == 1
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert direct.llen(parked) == 1
    assert direct.llen(f"{BASE}:{role}_free") == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["restart", "another server", "doctor"])
@pytest.mark.parametrize(("role", "work", "words"), ROLES)
def test_the_token_of_a_server_killed_in_its_turn_is_recovered(
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
    # The killed server's operation was not done, and its client received no reply.
    queued = {"producer": [b"a", b"b", b"c", b"native", b"native"], "consumer": [b"c"]}[role]
    if by == "another server":
        queued = {"producer": [*queued, b"server"], "consumer": []}[role]
    assert sorted(direct.lrange(BASE, 0, -1)) == sorted(queued)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_native_clients_continue_after_a_server_is_killed_in_its_turn(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    parked = [f"{BASE}:ext:producer_turn", f"{BASE}:ext:consumer_turn"]
    rounds = in_turn = 0

    def consumed() -> int:
        return int(direct.get(f"{BASE}:stats:consumed_messages") or 0)

    def has_consumed(count: int) -> bool:
        return consumed() >= count

    NativeClient(direct, "q").create(10)
    with ExitStack() as stack:
        for work in (("produce", "n", "0", "1000000"), ("consume",)):
            stack.enter_context(NativeProcess(backend.socket, "q", work[0], *work))
        # Sometimes the turn is over before the server is killed.
        while in_turn < 3 and rounds < 40:
            rounds += 1
            server = start_server("--backend", backend.url)
            with waiters(server, 6) as waiting:
                end = time.monotonic() + TIMEOUT
                while not any(direct.exists(*parked) for _ in range(20)):
                    assert time.monotonic() < end, "the server has no turn"
                    for number, waiter in enumerate(waiting):
                        waiter.replies_now()
                        waiter.send(*[("SADD", "q", rounds), ("SPOP", "q")][number % 2])
                server.stop(signal.SIGKILL)
            in_turn += direct.exists(*parked) > 0
            next_server = start_server("--backend", backend.url)
            wait_for(lambda: not direct.exists(*parked), "the tokens to be recovered")
            wait_for(partial(has_consumed, consumed() + 20), "native clients to continue")
            assert next_server.stop() == 0
    print(f"killed in its turn {in_turn} times of {rounds}")
    assert in_turn == 3
