"""Lost replies of the backend: clients see a pause, and every operation is done once.

Each operation is done on the same queues with and without a cut of the connection while the call is in
flight. Replies and keys must be the same.
"""

import asyncio
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pressure_server.backend.address import Address
from pressure_server.backend.link import Timeouts
from pressure_server.errors import BackendError
from pressure_server.queues.broker import Broker
from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.operations import verbs
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from tests.support.backend_relay import LATE, NO_REPLY, NO_REQUEST, CallRelay, Cut
from tests.support.native import NativeClient
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    records,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import Waiter, about, packed, wait_for_waiting

Setup = tuple[str, ...]
# Calls the second argument right before the operation to cut, and returns replies.
Act = Callable[[Server, Callable[[], None]], list[Any]]


def sends(*commands: str) -> Act:
    """Send commands at once, on one connection, and return their replies."""

    def act(server: Server, begins: Callable[[], None]) -> list[Any]:
        with Waiter(server.port) as waiter:
            begins()
            waiter.socket.sendall(b"".join(packed(*command.split()) for command in commands))
            return [in_plain(waiter.reply()) for _ in commands]

    return act


def waits(waiting: str, line: str, other: str) -> Act:
    """Let a command wait until another command, on another connection, ends the wait. Return both replies."""

    def act(server: Server, begins: Callable[[], None]) -> list[Any]:
        with Waiter(server.port) as waiter, Waiter(server.port) as acting, server.client() as client:
            waiter.send(*waiting.split())
            wait_for_waiting(client, "q", consumers=line == "consumers", producers=line == "producers")
            begins()
            return [in_plain(acting(*other.split())), in_plain(waiter.reply())]

    return act


def do(server: Server, *commands: str) -> list[Any]:
    """Send commands, and return their replies."""
    return sends(*commands)(server, lambda: None)


def in_plain(reply: Any) -> Any:
    """Return the reply, with errors as text, because errors compare unequal."""
    if isinstance(reply, list):
        return [in_plain(value) for value in reply]
    return str(reply) if isinstance(reply, Exception) else reply


class Case(NamedTuple):
    """An operation on new queues.

    `done` has the messages of queue q, and after a space those of queue r, if the call was done and is given
    up, and `not_done` if it was not done. None: the case does not say.
    """

    setup: Setup
    act: Act
    done: str | None = None
    not_done: str = ""


SOME = ("RPUSH q a b c d",)
TWO = (*SOME, "RPUSH r z")
SET = ("SADD q a b c",)
FULL = ("PRESSURE.CREATE q BOUND 2", "RPUSH q a b")
CASES = {
    "SADD": Case((), sends("SADD q a b a"), "ab", ""),
    "SADD to a queue in use": Case(("SADD q a", "SPOP q"), sends("SADD q x")),
    "LPUSH": Case(SOME, sends("LPUSH q a x"), "abcdax", "abcd"),
    "SPOP": Case(SOME, sends("SPOP q"), "abcd", "abcd"),
    "SPOP of a set": Case((*SET, "SPOP q"), sends("SPOP q"), "bc", "bc"),
    "SPOP n": Case(SOME, sends("SPOP q 3"), "abcd", "abcd"),
    "LPOP": Case(SOME, sends("LPOP q")),
    "BLPOP": Case(SOME, sends("BLPOP q 0")),
    "BLPOP that waits": Case(("RPUSH q a", "LPOP q"), waits("BLPOP q 0", "consumers", "RPUSH q x y")),
    "gets and puts": Case(SOME, sends("LPOP q 2", "RPUSH q x", "LPOP q 9"), "abcdx", "abcd"),
    "SREM": Case(SET, sends("SREM q b nothing"), "ac", "abc"),
    "SMOVE": Case(SET, sends("SMOVE q r b")),
    "LMOVE": Case(TWO, sends("LMOVE q r LEFT RIGHT"), "bcd za", "abcd z"),
    "LMOVE round its queue": Case(SOME, sends("LMOVE q q LEFT RIGHT")),
    "EXEC": Case(SOME, sends("MULTI", "LPOP q", "RPUSH q x", "SPOP q 2", "EXEC"), "abcdx", "abcd"),
    "EXEC on two queues": Case(
        TWO, sends("MULTI", "LPOP r", "LPOP q 2", "LPUSH r x", "EXEC"), "abcd zx", "abcd z"
    ),
    "EXEC on two queues, in another order": Case(TWO, sends("MULTI", "LPOP q", "LPOP r", "EXEC")),
    "EXEC that deletes its last queue": Case(
        TWO, sends("MULTI", "LPOP q", "DEL r", "EXEC"), "abcd", "abcd z"
    ),
    "EXEC that deletes its first queue": Case(TWO, sends("MULTI", "DEL q", "LPOP r", "EXEC")),
    "a get, then a DEL": Case(SOME, sends("LPOP q", "DEL q", "RPUSH q x")),
    "PRESSURE.CREATE": Case((), sends("PRESSURE.CREATE q BOUND 3")),
    "PRESSURE.CLOSE": Case(SOME, sends("PRESSURE.CLOSE q")),
    "PRESSURE.DELETE": Case(SOME, sends("PRESSURE.DELETE q")),
    "DEL": Case(TWO, sends("DEL q r")),
    "a put that waits for room": Case(FULL, waits("RPUSH q x", "producers", "LPOP q"), "abx", "ab"),
    "a put that waits in part": Case(
        ("PRESSURE.CREATE q BOUND 2", "RPUSH q a"), waits("SADD q x y", "producers", "SPOP q")
    ),
    "a pipeline": Case(
        SOME, sends(*(command for n in range(50) for command in (f"SADD q m{n}", "SPOP q")))
    ),
}  # fmt: skip
GIVEN_UP = {name: case for name, case in CASES.items() if case.done is not None}


@pytest.fixture(scope="module")
def cuts(shared_backend: Valkey) -> Iterator[CallRelay]:
    with CallRelay(shared_backend.socket) as opened:
        yield opened


def started(folder: Path, cuts: CallRelay, *options: str) -> Iterator[Server]:
    """Start a server whose connections to the backend can be cut, and stop it at the end."""
    server = Server(folder / "log", "--backend", cuts.url, *options)
    yield server
    assert server.stop() == 0
    assert not re.search("Traceback|ERROR", server.log), server.log


@pytest.fixture(scope="module")
def cut_server(cuts: CallRelay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from started(tmp_path_factory.mktemp("server"), cuts)


@pytest.fixture(scope="module")
def impatient(cuts: CallRelay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from started(tmp_path_factory.mktemp("impatient"), cuts, "--backend-grace", "0.2")


def keys_of(direct: Client) -> dict[bytes, Any]:
    """Return all that the backend has, except the times of queues and the servers that wait."""
    found: dict[bytes, Any] = {}
    for key in direct.keys("__pressure__:*"):
        if key.endswith((b":ext:settings", b":ext:waiting", b":ext:made")):
            continue
        kind = direct.type(key)
        read = {b"string": direct.get, b"set": direct.smembers, b"hash": direct.hgetall}
        found[key] = read[kind](key) if kind in read else direct.lrange(key, 0, -1)
    return found


@dataclass(frozen=True)
class Stage:
    """A server whose calls can be cut, and its backend."""

    server: Server
    cuts: CallRelay
    direct: Client

    def prepare(self, *setup: str) -> None:
        """Delete all queues, and send commands."""
        wait_until_settled(self.direct)
        self.direct.delete("no key", *keys_left(self.direct))
        do(self.server, *setup)
        wait_until_settled(self.direct)

    def play(self, case: Case, *planned: Cut, before: Callable[[], object] = lambda: None) -> tuple[Any, Any]:
        """Do the operation. Return the replies, and the keys that are left.

        `before` is done right before the backend gets the first planned call.
        """

        def begins() -> None:
            self.cuts.plan(*planned, before=before)

        self.prepare(*case.setup)
        made = self.cuts.made
        replies = case.act(self.server, begins)
        assert self.cuts.is_done
        # One cut may break the connection on which another one was planned, for a clean-up of the queue.
        if any(cut != Cut() for cut in planned):
            wait_for(lambda: self.cuts.made > made, "a cut to be counted")
        wait_until_settled(self.direct)
        return replies, keys_of(self.direct)


@pytest.fixture
def stage(cut_server: Server, cuts: CallRelay, backend: Valkey, direct: Client) -> Stage:
    return Stage(cut_server, cuts, direct)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_operation_on_a_cut_connection_is_done_once(stage: Stage, case: Case) -> None:
    expected = stage.play(case)
    planned = [
        [NO_REQUEST], [Cut(request=40)], [Cut(request=-1)],
        [NO_REPLY], [Cut(reply=1)], [Cut(reply=-1)],
        [NO_REPLY, NO_REPLY], [NO_REQUEST, NO_REPLY], [NO_REPLY, NO_REQUEST], [NO_REPLY, Cut(reply=-1)],
    ]  # fmt: skip
    for some in planned:
        assert stage.play(case, *some) == expected, some


@pytest.mark.slow
def test_a_call_whose_reply_is_cut_at_any_byte_is_sent_again(stage: Stage) -> None:
    case = CASES["EXEC on two queues"]
    stage.cuts.seen.clear()
    expected = stage.play(case, Cut())
    for offset in range(len(stage.cuts.seen[0])):
        assert stage.play(case, Cut(reply=offset)) == expected, offset


@pytest.mark.parametrize("name", ["SPOP n", "EXEC on two queues", "BLPOP that waits", "a pipeline"])
def test_a_call_on_a_cut_connection_is_done_once_though_the_backend_forgets_its_scripts(
    stage: Stage, name: str
) -> None:
    expected = stage.play(CASES[name])
    for planned in ([NO_REPLY], [Cut(), NO_REPLY]):
        assert stage.play(CASES[name], *planned, before=stage.direct.function_flush) == expected


def test_operations_of_native_clients_during_an_outage_come_after_the_call(stage: Stage) -> None:
    native = NativeClient(stage.direct, "q")
    stage.prepare("RPUSH q a b c")
    stage.cuts.plan(NO_REPLY, stays_shut=True)
    with Waiter(stage.server.port) as taking, Waiter(stage.server.port) as putting:
        taking.send("LPOP", "q", 2)
        wait_for(lambda: stage.cuts.is_shut, "the cut")
        putting.send("RPUSH", "q", "x")
        assert native.get() == b"c"
        native.put(b"native")
        assert not taking.has_reply()
        stage.cuts.reopen()
        assert taking.reply() == [b"a", b"b"]
        assert putting.reply() == 2
    with stage.server.client() as client:
        assert client.lrange("q", 0, -1) == [b"native", b"x"]
        found = about(client, "q")
    assert (found[b"produced_messages"], found[b"consumed_messages"]) == (5, 3)


def test_a_queue_deleted_during_an_outage_does_not_change_the_reply(stage: Stage) -> None:
    """The call's message of another queue is neither lost nor taken twice."""
    stage.prepare("RPUSH q a b", "RPUSH r x y")
    stage.cuts.plan(NO_REPLY, stays_shut=True)
    with Waiter(stage.server.port) as waiter:
        for command in ("MULTI", "LPOP q", "LPOP r"):
            waiter(*command.split())
        waiter.send("EXEC")
        wait_for(lambda: stage.cuts.is_shut, "the cut")
        stage.direct.delete(*stage.direct.keys("__pressure__:q*"))
        stage.cuts.reopen()
        assert waiter.reply() == [b"a", b"x"]
    wait_until_settled(stage.direct)
    with stage.server.client() as client:
        assert client.lrange("r", 0, -1) == [b"y"]
        assert about(client, "r")[b"consumed_messages"] == 1


def test_a_late_request_is_not_done_after_it_was_sent_again(stage: Stage) -> None:
    stage.prepare("RPUSH q a b c")
    stage.cuts.plan(LATE)
    assert do(stage.server, "LPOP q") == [b"a"]
    assert stage.cuts.deliver_late() == 0  # the server has closed that connection
    wait_until_settled(stage.direct)
    assert do(stage.server, "LRANGE q 0 -1") == [[b"b", b"c"]]


def test_a_late_call_is_refused_if_its_connection_cannot_be_closed(
    start_server: StartServer, cuts: CallRelay, backend: Valkey, direct: Client
) -> None:
    direct.execute_command("ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-client|kill")
    url = cuts.url.replace("redis://", "redis://weak:secret@")
    server = start_server("--backend", url, "--backend-timeout", "1")
    do(server, "RPUSH q a b c")
    wait_until_settled(direct)
    cuts.plan(LATE)
    assert do(server, "LPOP q") == [b"a"]
    assert cuts.deliver_late() == 1
    wait_for(lambda: "errorstat_BURIED" in direct.info("errorstats"), "the late call to be refused")
    assert direct.lrange("__pressure__:q", 0, -1) == [b"c", b"b"]
    assert server.stop() == 0
    direct.execute_command("ACL", "DELUSER", "weak")
    assert not records(direct)


def test_a_long_outage_leaves_no_lane_and_no_callback(start_valkey: StartValkey) -> None:

    def lanes() -> list[Lane]:
        gc.collect()
        return [found for found in gc.get_objects() if isinstance(found, Lane)]

    async def run() -> None:
        valkey = start_valkey()
        broker = Broker(
            Address(valkey.url),
            prefix="p",
            peer_detection=PeerDetection(),
            policy=Policy(),
            timeouts=Timeouts(grace=0),
        )
        await broker.start()
        database = broker.default_database
        try:
            await database.run(verbs.PUT, b"busy", [b"x"])
            valkey.kill()
            for number in range(500):
                for name in (b"busy", b"other %d" % number):
                    with pytest.raises(BackendError):
                        await database.run(verbs.PUT, name, [b"x"])
                if number % 100 == 0:
                    # A time, because the server has nothing to do: it is longer than the pause after which an
                    # idle server acknowledges deliveries.
                    await asyncio.sleep(0.03)
            assert len(database.shards[0]._when_back_callbacks) <= 2
            assert {lane.name for lane in lanes()} <= {b"busy"}
            valkey.start()
            assert await database.shards[0].settle(TIMEOUT)
            assert not lanes()
        finally:
            await broker.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


@pytest.mark.parametrize("cut", [NO_REPLY, NO_REQUEST], ids=["done", "not done"])
@pytest.mark.parametrize("case", GIVEN_UP.values(), ids=GIVEN_UP)
def test_messages_taken_by_a_call_that_is_given_up_go_back(
    impatient: Server, cuts: CallRelay, direct: Client, case: Case, cut: Cut
) -> None:
    """A message that the call puts is there once, or not at all."""
    # The first command shows the server that the backend is empty.
    do(impatient, "RPUSH first x", *case.setup)
    wait_until_settled(direct)
    replies = case.act(impatient, lambda: cuts.plan(cut, stays_shut=True))
    assert cuts.is_done
    assert any("BACKEND" in str(reply) for reply in replies), replies
    cuts.reopen()
    expected = ((case.done or "") if cut is NO_REPLY else case.not_done).partition(" ")[::2]
    wait_for(lambda: not str(do(impatient, "LLEN q")[0]).startswith("BACKEND"), "the backend to be back")

    def queued() -> tuple[str, ...]:
        return tuple(
            b"".join(reversed(direct.lrange(f"__pressure__:{queue}", 0, -1))).decode() for queue in "qr"
        )

    wait_for(lambda: queued() == expected, f"{expected}; there is {queued()}")
    wait_until_settled(direct)
    assert queued() == expected
    with impatient.client() as client:
        for queue, messages in zip("qr", expected, strict=True):
            if client.exists(queue):
                found = about(client, queue)
                assert found[b"produced_messages"] - found[b"consumed_messages"] == len(messages)
                assert found[b"produced_bytes"] - found[b"consumed_bytes"] == len(messages)


@pytest.mark.parametrize("cut", [NO_REPLY, NO_REQUEST], ids=["done", "not done"])
@pytest.mark.parametrize("has_waited", [False, True])
def test_a_wait_whose_call_is_given_up_goes_on(
    impatient: Server, cuts: CallRelay, direct: Client, has_waited: bool, cut: Cut
) -> None:
    """What the call has taken goes back, and is delivered once."""
    do(impatient, "RPUSH first x", "RPUSH q a", "LPOP q")
    with Waiter(impatient.port) as waiter, Waiter(impatient.port) as other, impatient.client() as client:
        if has_waited:
            waiter.send("BLPOP", "q", 0)
            wait_for_waiting(client, "q", consumers=1)
        else:
            do(impatient, "RPUSH q x y")
        wait_until_settled(direct)
        cuts.plan(cut, stays_shut=True)
        if has_waited:
            assert "BACKEND" in str(other("RPUSH", "q", "x", "y"))
        else:
            waiter.send("BLPOP", "q", 0)
            wait_for(lambda: "BACKEND" in str(other("LLEN", "first")), "the end of the grace")
        assert cuts.is_done
        cuts.reopen()
        if has_waited and cut is NO_REQUEST:
            wait_for(lambda: other("RPUSH", "q", "x", "y") == 2, "the backend to be back")
        assert waiter.reply() == [b"q", b"x"]
        wait_for(lambda: client.lrange("q", 0, -1) == [b"y"], "one message to be left")
    wait_until_settled(direct)
