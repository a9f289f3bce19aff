"""Native clients and the server's clients on one queue, while native clients or the server are killed.

`PRESSURE_NEIGHBOUR_MESSAGES=100000 .venv/bin/pytest -s tests/native/test_neighbours.py -k no_message_is_lost`
is the full run, and prints its statistics. Without the variable the run is much shorter.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from tests.support.module_servers import module_server
from tests.support.native import VERSIONS, NativeClient
from tests.support.native_process import NativeProcess
from tests.support.neighbours import MixedClients, Outcome, Plan, doctor
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
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
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

BASE = "__pressure__:q"
HOLDER = "host-7 4711"
ROLE_TIMEOUT = 0.5

MESSAGES = int(os.environ.get("PRESSURE_NEIGHBOUR_MESSAGES", "500"))
FAULTS = max(4, MESSAGES // 500)


class Role(NamedTuple):
    """A role, the work of a native client that takes it, and a command that needs it."""

    name: str
    work: tuple[str, ...]
    command: Words


PRODUCER = Role("producer", ("put", "native"), ("PRESSURE.PUT", "q", "server"))
CONSUMER = Role("consumer", ("get",), ("PRESSURE.GET", "q"))
in_each_role = pytest.mark.parametrize("role", [PRODUCER, CONSUMER], ids=lambda role: role.name)


@contextmanager
def stopped_native(
    backend: Valkey, work: tuple[str, ...], stop_after: str, version: str = "0.15"
) -> Iterator[NativeProcess]:
    """Start a native client, and wait until it has stopped itself after that command."""
    with NativeProcess(backend.socket, "q", HOLDER, *work, version=version, stop_after=stop_after) as native:
        native.wait_until_stopped()
        yield native


def names_the_holder(reply: Any) -> bool:
    return is_refused(reply, "INUSE") and HOLDER in str(reply)


# Many messages, and faults of native clients.

PLANS = {
    "native producers, server's consumers": Plan(3, 0, 0, 3, MESSAGES, FAULTS, bound=100),
    "server's producers, native consumers": Plan(0, 3, 3, 0, MESSAGES, FAULTS, bound=0),
    "three of each": Plan(3, 3, 3, 3, MESSAGES, FAULTS, bound=10, auto_repair=True),
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
    outcome = uvloop.run(MixedClients(plan, backend, server, tmp_path).run())
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
    """Repair the queue. Raise AssertionError unless the closed, empty queue is as specified then."""
    status, output = doctor(backend)
    assert status == 0, output
    assert doctor(backend) == (0, "1 queue checked: no problems\n")
    suffixes = ("", ":producer_free", ":consumer_free", ":not_full")
    assert [direct.llen(BASE + suffix) for suffix in suffixes] == [0, 1, 1, 1]
    # Close pushes two; a consumer that was blocked then has popped one.
    assert direct.llen(f"{BASE}:closed") in (1, 2)
    produced, consumed = direct.mget(*[f"{BASE}:stats:{v}_messages" for v in ("produced", "consumed")])
    assert produced == consumed


# Fairness.


def clients_in_order(outcome: Outcome, plan: Plan) -> list[str]:
    """Return the consumer of each message in queue order, or its producer if there are several producers."""
    receipts = outcome.ledger.receipts
    if plan.producers == 1:
        return [receipts[b"p0-%d" % number].by for number in range(plan.messages)]
    return [message.decode().partition("-")[0] for message in receipts]


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
    """While all four clients of a kind are active, each acts regularly, and about as often as the others."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    plan = Plan(*clients, messages=1000, faults=0, bound=bound, auto_repair=True)
    order = clients_in_order(uvloop.run(MixedClients(plan, backend, server, tmp_path).run()), plan)
    places = {
        client: [place for place, other in enumerate(order) if other == client] for client in set(order)
    }
    assert len(places) == 4
    together = range(max(p[0] for p in places.values()), min(p[-1] for p in places.values()))
    shares = Counter(order[place] for place in together)
    gaps = [
        sorted(after - before for before, after in pairwise(p) if before in together) for p in places.values()
    ]
    longest, long = ([g[int(len(g) * part)] for g in gaps] for part in (0.9999, 0.99))
    print(f"shares of {len(together)}: {sorted(shares.values())}; gaps in messages: {long=} {longest=}")
    assert len(together) > 250
    assert min(shares.values()) > len(together) / 8
    assert max(long) < 50
    # A busy machine may suspend one process for some time.
    assert max(longest) < 500


# Roles that native clients hold.


# A server with a short role timeout.
impatient = module_server("--role-timeout", str(ROLE_TIMEOUT))


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
# The work of a native client, the command after which it stops, and the commands that need its role.
HOLDING = [
    (PRODUCER.work, "SET :producer", PUTTING),
    (PRODUCER.work, "BRPOP :not_full", PUTTING),
    (PRODUCER.work, "LPUSH", PUTTING),
    (CONSUMER.work, "SET :consumer", TAKING),
    (CONSUMER.work, "BRPOP", TAKING),
]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("work", "stop_after", "commands"), HOLDING)
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
        with stopped_native(backend, work, stop_after, version) as native:
            began = time.monotonic()
            for waiter, words in zip(waiting, commands, strict=True):
                waiter.send(*words)
            replies = [waiter.reply() for waiter in waiting]
            waited = time.monotonic() - began
            assert all(names_the_holder(reply) for reply in replies), replies
            assert ROLE_TIMEOUT * 0.9 < waited < ROLE_TIMEOUT + 2
            wait_for_waiting(client, "q")
            native.resume()
            assert native.outcome() == ("done" if commands is PUTTING else "0")
        # The refused commands have changed nothing, and succeed now.
        queued = [b"%d" % number for number in range(len(commands) + 1)]
        queued = [*queued, b"native"] if commands is PUTTING else queued[1:]
        assert client.lrange("q", 0, -1) == queued
        for waiter, words in zip(waiting, commands, strict=True):
            reply = waiter(*words)
            assert reply is not None
            assert not isinstance(reply, Exception), reply
        length = len(queued) + 5 if commands is PUTTING else len(queued) - len(commands)
        assert client.llen("q") == length


@in_each_role
def test_the_server_is_not_named_as_the_holder_of_a_role_it_never_holds(
    backend: Valkey, impatient: Server, role: Role
) -> None:
    """The native client has the token, but :producer or :consumer still has the server's name."""
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        assert client.rpop("q") == b"a"
        with stopped_native(backend, role.work, f"BRPOP :{role.name}_free"):
            reply = waiter(*role.command)
            assert is_refused(reply, "INUSE")
            assert "pressure-server:" not in str(reply)


@in_each_role
def test_an_operation_that_must_not_wait_is_refused_at_once(
    backend: Valkey, client: Client, waiter: Waiter, role: Role
) -> None:
    client.rpush("q", "a")
    with stopped_native(backend, role.work, f"SET :{role.name}"):
        began = time.monotonic()
        assert is_refused(waiter(*role.command, "NOWAIT"), "INUSE")
        assert time.monotonic() - began < 1  # the server's role timeout is five seconds


def test_a_native_consumer_that_waits_on_an_empty_queue_is_no_obstacle(
    backend: Valkey, impatient: Server, direct: Client
) -> None:
    with impatient.client() as client, waiters(impatient, 2) as (first, second):
        create(client, "q")
        with NativeProcess(backend.socket, "q", HOLDER, "get") as native:
            wait_for_blocked(direct, 1)
            assert client.spop("q") is None
            assert first("PRESSURE.GET", "q", "NOWAIT") is None
            second.send("BLPOP", "q", 0)
            # Longer than the role timeout.
            assert first("BLPOP", "q", 3 * ROLE_TIMEOUT) is None
            assert about(client, "q")[b"consumer"] == HOLDER.encode()
            assert first("SADD", "q", "one", "two") == 2
            assert native.outcome() == "one"
            assert second.reply() == [b"q", b"two"]


# A native client closes or deletes the queue.


async def repeat_until_refused(port: int, words: Callable[[int], Words], codes: Counter[str]) -> list[Any]:
    """Send a command again and again. Return the replies before the error, whose code is counted."""
    waiter = await AsyncWaiter.connect(port)
    replies: list[Any] = []
    while not isinstance(reply := await waiter(*words(len(replies))), Exception):
        replies.append(reply)
    codes[str(reply).split()[0]] += 1
    waiter.close()
    return replies


async def end_during_traffic(
    port: int, end: Callable[[], None]
) -> tuple[Counter[str], list[bytes], list[bytes]]:
    """Call `end` at a random moment while three clients put and three take.

    Return the codes of the six errors, the messages put, and the messages taken.
    """
    codes: Counter[str] = Counter()

    def put(client: int) -> Callable[[int], Words]:
        # Unique messages, so that the server keeps its mirror of the queue.
        return lambda number: ("PRESSURE.PUT", "q", f"{client}-{number}", *["NX"][: client % 2])

    def get(_number: int) -> Words:
        return ("PRESSURE.GET", "q")

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        puts = [group.create_task(repeat_until_refused(port, put(client), codes)) for client in range(3)]
        gets = [group.create_task(repeat_until_refused(port, get, codes)) for _ in range(3)]
        await asyncio.sleep(random.uniform(0, 0.03))
        await asyncio.to_thread(end)
    sent = [
        b"%d-%d" % (client, number) for client in range(3) for number in range(len(puts[client].result()))
    ]
    return codes, sent, [message for taken in gets for message in taken.result()]


@pytest.mark.slow
@pytest.mark.parametrize("with_natives", [False, True], ids=["server's clients", "native clients too"])
@pytest.mark.parametrize("bound", [0, 3])
@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_native_close_or_delete_while_clients_put_and_take(
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
            codes, put, taken = asyncio.run(end_during_traffic(server.port, getattr(ender, end)))
            if end == "close":
                # After a Delete they may wait for a token for ever.
                assert [native.outcome() for native in natives] in ([], ["QueueClosedError", "done"])
        all_codes += codes
        assert codes.total() == 6
        assert max(Counter(taken).values(), default=1) == 1
        if end == "close":
            if not with_natives:
                assert sorted(taken) == sorted(put)
            ender.delete()
        # The server's own keys go when the server learns of the deletion.
        wait_for(lambda: keys_left(direct) == [], "the keys to go", 5)
    print(all_codes)
    assert all_codes.keys() <= {"CLOSED", *["NOQUEUE"][: end == "delete"]}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["PRESSURE.DELETE", "DEL"])
@in_each_role
def test_a_delete_that_met_a_stopped_native_client_leaves_nothing_in_the_end(
    backend: Valkey, impatient: Server, direct: Client, command: str, role: Role
) -> None:
    with impatient.client() as client, Waiter(impatient.port) as waiter:
        client.rpush("q", "a", "b")
        with stopped_native(backend, role.work, f"SET :{role.name}") as native:
            assert names_the_holder(waiter(command, "q"))
            native.resume()
            assert native.outcome() in ("QueueClosedError", "a", "done")
        waiter(command, "q")
        wait_for(lambda: keys_left(direct) == [], "the keys to go", 3)
        assert client.sadd("q", "anew") == 1


# The server is killed in its turn.


def kill_in_its_turn(server: Server, backend: Valkey, direct: Client, role: Role) -> None:
    """Let the server wait for a role that a native client holds, and kill the server once it has the turn."""
    parked = f"{BASE}:ext:{role.name}_turn"
    with (
        Waiter(server.port) as waiter,
        stopped_native(backend, role.work, f"SET :{role.name}") as holder,
    ):
        waiter.send(*role.command)
        wait_for_blocked(direct, 1)
        server.process.send_signal(signal.SIGSTOP)
        holder.resume()
        assert holder.outcome() != ""
        assert direct.llen(parked) == 1
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert direct.llen(parked) == 1
    assert direct.llen(f"{BASE}:{role.name}_free") == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["restart", "another server", "doctor"])
@in_each_role
def test_the_token_of_a_server_killed_in_its_turn_comes_back(
    backend: Valkey, direct: Client, start_server: StartServer, role: Role, by: str
) -> None:
    doomed, other = start_server("--backend", backend.url), start_server("--backend", backend.url)
    with doomed.client() as client:
        client.rpush("q", "a", "b", "c")
    kill_in_its_turn(doomed, backend, direct, role)
    with NativeProcess(backend.socket, "q", "next", *role.work) as native:
        wait_for_blocked(direct, 1)
        if by == "restart":
            start_server("--backend", backend.url)
        elif by == "another server":
            with Waiter(other.port) as waiter:
                assert waiter(*role.command) in (1, b"b")
        else:
            assert doctor(backend)[0] == 0
        assert native.outcome() in ("done", "b", "c")
    assert direct.llen(f"{BASE}:{role.name}_free") == 1
    assert direct.exists(f"{BASE}:ext:{role.name}_turn") == 0
    # The killed server's operation has not happened; it was not acknowledged either.
    queued = [b"a", b"b", b"c", b"native", b"native"] if role is PRODUCER else [b"c"]
    if by == "another server":
        queued = [*queued, b"server"] if role is PRODUCER else []
    assert sorted(direct.lrange(BASE, 0, -1)) == queued
