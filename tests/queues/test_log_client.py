"""The Python clients of logs, sync and async, with a server."""

import asyncio
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import nan
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from pressure_server.client import (
    AsyncGroup,
    AsyncLogQueue,
    GroupDoesNotExistError,
    GroupInfo,
    LogMessage,
    LogQueue,
    OffsetAheadError,
    OffsetGoneError,
    Outcome,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueTypeError,
    TransactionIdError,
)
from pressure_server.client.redis_io import AsyncRedis, BlockingRedis
from tests.support.backend_relay import BackendRelay
from tests.support.blocking import Blocking, running_loop
from tests.support.client_scripts import examples, output_of
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for
from tests.support.waiters import create, wait_for_waiting

Open = Callable[..., Any]
PUT = b"PRESSURE.PUT"


@pytest.fixture(params=[LogQueue, AsyncLogQueue])
def open_log(server: Server, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that makes a client of a log, either sync or async."""
    with running_loop() as loop, ExitStack() as stack:

        def make(name: str | bytes = "q", url: str = server.url, **options: Any) -> Any:
            log: Any
            if request.param is LogQueue:
                log = LogQueue(name, url, **options)
            else:
                log = Blocking(AsyncLogQueue(name, url, **options), loop, AsyncGroup)
                made = log._target.group
                log.group = lambda *names: Blocking(made(*names), loop)
            stack.callback(log.disconnect)
            return log

        yield make


@pytest.fixture
def log(open_log: Open) -> Any:
    """A client of the log q, which exists."""
    opened = open_log()
    opened.create()
    return opened


def test_messages_have_offsets(log: Any) -> None:
    assert [log.put(message) for message in ("a", b"\x00\xff", "ä")] == [0, 1, 2]
    assert (log.at(0), log.at(1), log.at(2)) == (b"a", b"\x00\xff", "ä".encode())
    assert log.get(timeout=0) == b"a"
    assert log.at(0) is None
    assert log.at(0, 9) == [None, b"\x00\xff", "ä".encode()]
    assert log.at(1, count=1) == [b"\x00\xff"]
    with pytest.raises(OffsetAheadError, match="gets the offset 3"):
        log.at(3)
    assert log.length() == 2
    info = log.info()
    assert [info[name] for name in ("type", "head_offset", "tail_offset", "length")] == ["log", 1, 3, 2]


def test_a_log_is_created_once(open_log: Open) -> None:
    log = open_log()
    assert log.create(bound=2, overflow="error") is True
    with pytest.raises(QueueAlreadyExistsError):
        log.create()
    assert log.create(bound=7, if_not_exists=True) is False
    assert open_log("r").create(if_not_exists=True) is True
    assert log.info()["bound"] == 2
    assert [log.put("a"), log.put("b")] == [0, 1]
    with pytest.raises(QueueFullError):
        log.put("c")
    assert log.put("c", overwrite=True) == 2
    assert log.at(0, 3) == [None, b"b", b"c"]


def test_a_ring_keeps_the_newest_messages(open_log: Open) -> None:
    ring = open_log()
    ring.create(bound=3, overflow="overwrite")
    assert [ring.put(str(number)) for number in range(10)] == [*range(10)]
    assert ring.at(7, 9) == [b"7", b"8", b"9"]
    assert ring.info()["head_offset"] == 7


def test_a_get_waits_for_a_message(open_log: Open, client: Client) -> None:
    create(client, "q", "TYPE", "LOG")
    log = open_log(socket_timeout=0.1)
    for timeout in (0, -1, 0.2):
        with pytest.raises(QueueEmptyError, match="'q'"):
            log.get(timeout)
    with ThreadPoolExecutor() as threads:
        got = threads.submit(log.get)
        wait_for_waiting(client, "q", consumers=1)
        log.put("a")
        assert got.result(TIMEOUT) == b"a"
    client.execute_command("PRESSURE.CLOSE", "q")
    with pytest.raises(QueueClosedError):
        log.get()


def test_a_put_on_a_full_log_waits_for_room(open_log: Open, client: Client) -> None:
    create(client, "q", "TYPE", "LOG", "BOUND", 1, "OVERFLOW", "BLOCK")
    log = open_log(socket_timeout=0.1)
    log.put("a")
    for timeout in (0, -1, 0.2):
        with pytest.raises(QueueFullError):
            log.put("b", timeout=timeout)
    with ThreadPoolExecutor() as threads:
        put = threads.submit(log.put, "b")
        wait_for_waiting(client, "q", producers=1)
        assert log.get() == b"a"
        assert put.result(TIMEOUT) == 1


def test_a_put_with_the_same_transaction_id_is_done_once(log: Any) -> None:
    assert log.outcome("t1") == Outcome("unknown", None, None)
    assert [log.put("a", transaction="t1") for _ in range(3)] == [0, 0, 0]
    assert log.put("a") == 1
    assert log.outcome(b"t1") == Outcome("done", 0, None)
    assert log.at(0, 9) == [b"a", b"a"]


def test_a_forgotten_outcome_tells_since_when(
    open_log: Open, backend: Valkey, start_server: StartServer
) -> None:
    log = open_log(url=start_server("--backend", backend.url, "--max-outcomes", "1").url)
    log.create()
    for number in range(5):
        log.put("m", transaction=f"t{number}")
    assert log.outcome("t4") == Outcome("done", 4, None)
    found = log.outcome("t0")
    assert (found.state, found.offset) == ("forgotten", None)
    assert isinstance(found.seconds, int)


@pytest.fixture
def relay(
    server: Server, backend: Valkey, start_server: StartServer, tmp_path: Path
) -> Iterator[BackendRelay]:
    """A relay to a server with the same backend, which breaks connections as told."""
    path = tmp_path / "pressure.sock"
    start_server("--backend", backend.url, "--listen", f"resp+unix://{path}")
    with BackendRelay(path) as opened:
        yield opened


def cut_first(relay: BackendRelay, count: int, *, before: bool) -> None:
    """Break the connection of the next `count` puts before, or after, the server has got the request."""
    puts = itertools.count()
    is_put = False

    def drops(data: bytes) -> bool:
        nonlocal is_put
        is_put = PUT in data and next(puts) < count
        return is_put and before

    relay.drops = drops
    relay.cuts = lambda _reply: is_put


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_a_put_whose_connection_breaks_is_done_once(
    log: Any, open_log: Open, relay: BackendRelay, before: bool, count: int, timeout: float | None
) -> None:
    log.put("first")
    putting = open_log(url=relay.url)
    putting.length()
    cut_first(relay, count, before=before)
    assert putting.put("message", timeout=timeout) == 1
    assert putting.put("last", timeout=timeout) == 2
    assert relay.made == (0 if before else min(count, 2))
    assert log.at(0, 9) == [b"first", b"message", b"last"]


def test_a_put_whose_reply_does_not_come_in_time_is_done_once(
    log: Any, open_log: Open, relay: BackendRelay
) -> None:
    putting = open_log(url=relay.url, socket_timeout=0.2)
    putting.length()
    relay.hold(lambda reply: reply.startswith(b":"))
    with ThreadPoolExecutor() as threads:
        put = threads.submit(putting.put, "message", timeout=0)
        wait_for(lambda: relay.held, "the reply to be held")
        wait_for(lambda: log.length() == 1, "the put to be done")
        time.sleep(0.3)  # longer than the timeout
        relay.release()
        assert put.result(TIMEOUT) == 0
    assert log.at(0, 9) == [b"message"]


def test_a_put_is_given_up_after_some_time(log: Any, open_log: Open, relay: BackendRelay) -> None:
    putting = open_log(url=relay.url, resume_for=0.4)
    relay.drops = lambda _data: True
    begun = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        putting.put("message", transaction="t1")
    assert 0.2 < time.monotonic() - begun < TIMEOUT
    with pytest.raises(redis.ConnectionError):
        open_log(url=relay.url, resume_for=0).put("message")
    assert log.outcome("t1").state == "unknown"
    assert log.length() == 0


def test_a_put_whose_outcome_is_forgotten_is_not_sent_again(
    log: Any, open_log: Open, relay: BackendRelay, backend: Valkey, start_server: StartServer
) -> None:
    small = start_server("--backend", backend.url, "--max-outcomes", "1").client()
    putting = open_log(url=relay.url)
    is_put = False

    def drops(data: bytes) -> bool:
        nonlocal is_put
        is_put = PUT in data
        if b"PRESSURE.OUTCOME" in data:
            for number in range(3):
                small.execute_command("PRESSURE.PUT", "q", "other", "TXN", f"t{number}")
        return False

    relay.drops = drops
    relay.cuts = lambda _reply: is_put
    with pytest.raises(redis.ConnectionError):
        putting.put("message")
    assert log.at(0, 9) == [b"message", b"other", b"other", b"other"]


def test_a_put_outlives_killed_servers(
    open_log: Open, backend: Valkey, start_server: StartServer, tmp_path: Path, client: Client
) -> None:
    create(client, "q", "TYPE", "LOG")
    paths = [tmp_path / f"{number}.sock" for number in range(3)]
    servers = [start_server("--backend", backend.url, "--listen", f"resp+unix://{paths[0]}")]
    offsets: list[int] = []
    with BackendRelay(paths[0]) as relay:
        putting, over = open_log(url=relay.url), threading.Event()

        def put() -> None:
            while not over.is_set():
                offsets.append(putting.put(str(len(offsets))))

        with ThreadPoolExecutor() as threads:
            thread = threads.submit(put)
            for path in paths[1:]:
                enough = len(offsets) + 20
                wait_for(lambda: len(offsets) > enough, "some puts")  # noqa: B023 # called at once
                servers[-1].process.kill()
                servers.append(start_server("--backend", backend.url, "--listen", f"resp+unix://{path}"))
                relay.backend = path
            wait_for(lambda: len(offsets) > enough + 20, "puts after the last death")
            over.set()
            thread.result(TIMEOUT)
    assert offsets == [*range(len(offsets))]
    found = client.execute_command("PRESSURE.AT", "q", 0, "COUNT", 1000)
    assert found == [b"%d" % number for number in offsets[:1000]]


def test_a_wrong_password_is_refused_at_once(
    open_log: Open, backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, environment={"PRESSURE_PASSWORD": "secret"})
    log = open_log(url=server.url, password="wrong", resume_for=1000)
    with pytest.raises(redis.AuthenticationError):
        log.put("message")


class Script:
    """Replies to commands instead of a server, with a clock of its own. Each reply takes some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.replies: list[tuple[float, Any]] = []
        self.commands: list[tuple[Any, ...]] = []
        self.pauses: list[float] = []

        async def execute_async(client: Any, *words: Any) -> Any:
            return self._execute(client, *words)

        async def sleep_async(seconds: float) -> None:
            self._sleep(seconds)

        monkeypatch.setattr(redis.Redis, "execute_command", lambda *words: self._execute(*words))
        monkeypatch.setattr(redis.asyncio.Redis, "execute_command", execute_async)
        for kind in (AsyncRedis, BlockingRedis):
            monkeypatch.setattr(kind, "sleep", sleep_async)
        monkeypatch.setattr("pressure_server.client.logs.monotonic", lambda: self.now)

    def _execute(self, _client: Any, *words: Any) -> Any:
        self.commands.append(words)
        seconds, reply = self.replies.pop(0)
        self.now += seconds
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def test_the_steps_of_a_put_whose_server_comes_back_late(open_log: Open, script: Script) -> None:
    lost, stopping = redis.ConnectionError("lost"), redis.ResponseError("STOPPING the server stops")
    script.replies = [(0, lost)] * 7
    script.replies += [(0, [b"unknown", None]), (8, stopping), (0, [b"forgotten", 60]), (0, 4)]
    assert open_log(resume_for=30).put("m", transaction="t", timeout=10) == 4
    put, outcome = ("PRESSURE.PUT", b"q", b"m", "OFFSET", "TXN", b"t"), ("PRESSURE.OUTCOME", b"q", b"t")
    assert script.commands == [
        (*put, "TIMEOUT", b"10.000"),
        *[outcome] * 7,
        (*put, "TIMEOUT", b"6.450"),
        outcome,
        (*put, "NOWAIT"),
    ]
    assert script.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_the_time_for_a_lost_connection_begins_when_the_put_has_waited_long(
    open_log: Open, script: Script
) -> None:
    script.replies = [(3600, redis.TimeoutError("lost")), *[(0, redis.ConnectionError("lost"))] * 100]
    with pytest.raises(redis.ConnectionError):
        open_log(resume_for=30).put("m")
    assert script.now == pytest.approx(3600 + 29.55)  # one more second would be too long


def test_a_put_is_given_up_if_every_try_takes_longer_than_that(open_log: Open, script: Script) -> None:
    script.replies = [(6, redis.TimeoutError("no reply"))] * 100
    with pytest.raises(redis.TimeoutError):
        open_log(resume_for=5).put("m")
    assert [words[0] for words in script.commands] == ["PRESSURE.PUT", "PRESSURE.OUTCOME"]


BACKEND = redis.ResponseError("BACKEND the backend is away")


def test_a_put_whose_outcome_cannot_be_read_yet_asks_again(open_log: Open, script: Script) -> None:
    script.replies = [(0, redis.ConnectionError("lost")), (1, BACKEND), (1, BACKEND), (0, [b"done", 7])]
    assert open_log(resume_for=5).put("m") == 7


def test_a_put_whose_outcome_cannot_be_read_raises_the_error_of_the_connection(
    open_log: Open, script: Script
) -> None:
    script.replies = [(0, redis.ConnectionError("lost")), *[(1, BACKEND)] * 100]
    with pytest.raises(redis.ConnectionError, match="lost"):
        open_log(resume_for=5).put("m")


def test_every_put_has_an_id_of_its_own(open_log: Open, script: Script) -> None:
    script.replies = [(0, 0), (0, 1)]
    log = open_log()
    assert [log.put("m", overwrite=True) for _ in range(2)] == [0, 1]
    first, second = script.commands
    assert first[:5] == second[:5] == ("PRESSURE.PUT", b"q", b"m", "OFFSET", "TXN")
    assert first[5] != second[5]
    assert first[6:] == ("OVERWRITE",)


def test_every_group_reads_every_message(log: Any) -> None:
    log.put("before")
    log.create_group("one")
    log.create_group("two", "tail")
    log.create_group("three", 1)
    for message in ("a", "b"):
        log.put(message)
    one, two, three = (log.group(name, "ann") for name in ("one", "two", "three"))
    assert one.read(timeout=0) == [LogMessage(1, b"before", 1, 0)]
    assert [(read.message, read.offset) for read in one.read(9)] == [(b"a", 1), (b"b", 2)]
    assert [read.offset for read in two.read(9, timeout=5)] == [1, 2]
    found = three.read(1)
    assert [read.offset for read in found] == [1]
    assert one.read(timeout=0) == one.read(timeout=0.1) == []
    assert sorted(log.groups())[0] == GroupInfo("one", 0, 0, 3, 0, 0)
    assert three.ack(*found, *three.read(1)) == 2
    assert one.ack(1) == 1
    assert log.length() == 2
    with pytest.raises(QueueTypeError, match="groups"):
        log.get(timeout=0)


def test_fields_of_newer_servers_are_left_out(open_log: Open, script: Script) -> None:
    fields: dict[str, Any] = {"name": "g", "offset": 1, "lag": 2, "pending": 3, "buried": 4, "missed": 5}
    script.replies = [(0, [[b"new", 6, *(part for field in fields.items() for part in field)]])]
    assert open_log().groups() == [GroupInfo(**fields)]


def test_the_consumers_of_a_group_share_its_messages(log: Any) -> None:
    log.create_group("g")
    for message in ("a", "b", "c"):
        log.put(message)
    ann, bob = log.group("g", "ann"), log.group("g", b"bob")
    (first,), second = ann.read(ttr=0.3), bob.read(2)
    assert (first.message, [read.message for read in second]) == (b"a", [b"b", b"c"])
    assert bob.ack(first) == 0
    assert ann.touch(first) == 1
    (again,) = bob.read(timeout=TIMEOUT)
    assert again == (first.id, b"a", 2, 0)
    assert ann.ack(first) == 0
    assert bob.release(second[0]) is True
    assert bob.release(second[0]) is False
    assert ann.read() == [second[0]._replace(deliveries=2)]
    assert bob.claim(idle=1000) == bob.claim(1, idle=1000) == []
    assert bob.claim(5, ttr=10) == [second[0]._replace(deliveries=3)]
    assert (ann.ack(second[0]), bob.ack(second[0])) == (0, 1)


def test_a_group_goes_on_elsewhere(log: Any) -> None:
    log.create_group("slow")
    log.create_group("g")
    for message in ("a", "b", "c"):
        log.put(message)
    group = log.group("g", "ann")
    assert group.ack(*group.read(3)) == 3
    log.seek("g", 1)
    assert [read.offset for read in group.read(3)] == [1, 2]
    log.seek("g", "head")
    assert group.read()[0].offset == 0
    log.delete_group("g")
    assert [about.name for about in log.groups()] == ["slow"]
    with pytest.raises(GroupDoesNotExistError):
        group.read(timeout=0)


def test_a_read_waits_for_a_message(open_log: Open, client: Client) -> None:
    create(client, "q", "TYPE", "LOG")
    log = open_log()
    log.create_group("g")
    group = log.group("g", "ann")
    impatient = open_log(socket_timeout=0.1).group("g", "ann")
    with ThreadPoolExecutor() as threads:
        read = threads.submit(impatient.read, 5)
        wait_for_waiting(client, "q+g", consumers=1)
        log.put("a")
        assert read.result(TIMEOUT) == [(1, b"a", 1, 0)]
    client.execute_command("PRESSURE.CLOSE", "q")
    group.ack(1)
    with pytest.raises(QueueClosedError):
        group.read()


def test_errors_of_the_server_are_pressure_errors(open_log: Open, client: Client) -> None:
    log = open_log()
    for method in (lambda: log.put("m"), log.length, log.info, lambda: log.outcome("t"), lambda: log.at(0)):
        with pytest.raises(QueueDoesNotExistError, match="queue 'q' does not exist"):
            method()
    create(client, "q")
    for method in (lambda: log.put("m"), lambda: log.at(0), lambda: log.create_group("g")):
        with pytest.raises(QueueTypeError, match="'q'"):
            method()
    new = open_log("new")
    new.create()
    client.execute_command("PRESSURE.PUT", "new", "a", "NX", "TXN", "t1")
    with pytest.raises(TransactionIdError):
        new.put("a", transaction="t1")
    new.get()
    for start, error in ((0, OffsetGoneError), (2, OffsetAheadError)):
        with pytest.raises(error):
            new.create_group("g", start)
    new.create_group("g")
    with pytest.raises(QueueAlreadyExistsError):
        new.create_group("g")
    client.execute_command("PRESSURE.CLOSE", "new")
    with pytest.raises(QueueClosedError):
        new.put("m")


TOKEN = "must be 1 to 128 printable characters without spaces"


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("create", {"bound": -1}, ValueError, "a bound must be 0 (unbounded) or more"),
        (
            "create",
            {"overflow": "drop"},
            ValueError,
            "overflow must be 'block', 'error', 'overwrite'",
        ),
        ("put", {"message": 5}, TypeError, "a message must be bytes or str, not 5"),
        ("put", {"message": "m", "timeout": nan}, ValueError, "not NaN"),
        ("put", {"message": "m", "timeout": 1, "overwrite": True}, ValueError, "does not wait for room"),
        ("put", {"message": "m", "transaction": 5}, TypeError, "must be bytes or str, not 5"),
        ("put", {"message": "m", "transaction": ""}, ValueError, TOKEN),
        ("put", {"message": "m", "transaction": "a b"}, ValueError, TOKEN),
        ("outcome", {"transaction": "x" * 129}, ValueError, TOKEN),
        ("get", {"timeout": "1"}, TypeError, "a timeout must be a number of seconds"),
        ("at", {"offset": -1}, ValueError, "an offset must be 0 or more, not -1"),
        ("at", {"offset": "1"}, TypeError, "an offset must be an int, not '1'"),
        ("at", {"offset": 1, "count": 0}, ValueError, "a count must be 1 or more, not 0"),
        ("create_group", {"name": 5}, TypeError, "a group's name must be bytes or str"),
        ("create_group", {"name": "g", "start": "end"}, ValueError, "a start must be 'head', 'tail' or an"),
        ("seek", {"name": "g", "start": -1}, ValueError, "an offset must be 0 or more"),
        ("group.read", {"count": 0}, ValueError, "a count must be 1 or more, not 0"),
        ("group.read", {"timeout": nan}, ValueError, "not NaN"),
        ("group.read", {"ttr": -1}, ValueError, "a time to run must be between"),
        ("group.claim", {"count": 0}, ValueError, "a count must be 1 or more, not 0"),
        ("group.claim", {"idle": -1}, ValueError, "idle must be between"),
        ("group.release", {"message": "1"}, TypeError, "the id of a message must be an int"),
        ("group.ack", {}, ValueError, "at least one message"),
        ("group.touch", {}, ValueError, "at least one message"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_sent(
    open_log: Open, method: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    log = open_log(url="unix:///nowhere")
    target = log.group("g", "ann") if method.startswith("group.") else log
    with pytest.raises(error, match=re.escape(message)):
        getattr(target, method.removeprefix("group."))(**arguments)


def test_an_invalid_consumer_or_time_is_refused(open_log: Open) -> None:
    with pytest.raises(ValueError, match="resume_for must be between"):
        open_log(resume_for=-1)
    with pytest.raises(ValueError, match=TOKEN):
        open_log().group("g", "a b")


def test_a_cancelled_put_may_be_put_again(server: Server, client: Client) -> None:
    create(client, "q", "TYPE", "LOG", "BOUND", 1, "OVERFLOW", "BLOCK")
    client.lpush("q", "a")

    async def main() -> None:
        async with AsyncLogQueue("q", server.url) as log:
            waiting = asyncio.ensure_future(log.put("b", transaction="t"))
            await asyncio.to_thread(wait_for_waiting, client, "q", producers=1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(wait_for_waiting, client, "q", producers=0)
            assert await log.get() == b"a"
            assert await log.put("b", transaction="t") == 1
            assert await log.length() == 1

    asyncio.run(main())


EXAMPLES = examples("docs/guides/log-client.md")


@pytest.mark.parametrize(("program", "output"), EXAMPLES, ids=["offsets", "group", "async"])
def test_the_documented_programs_print_their_output(server: Server, program: str, output: str) -> None:
    assert "127.0.0.1:4000" in program
    program = program.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    assert output_of(sys.executable, "-c", program) == output
