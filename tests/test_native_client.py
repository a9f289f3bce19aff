"""Our own native client, in both its forms: alone, among those of 0.15 and 0.1, and beside a server."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from pressure_server.client import (
    AsyncQueue,
    PressureError,
    Queue,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    QueueNameError,
)
from tests.support.native import NativeClient, NativeSteps, run, step_until
from tests.support.native import QueueClosedError as NativeClosedError
from tests.support.native_process import NativeProcess
from tests.support.programs import TIMEOUT, Client, Server, Valkey, join, keys_left, run_command, wait_for

BASE = "__pressure__:q"
Open = Callable[..., Any]


class Blocking:
    """An AsyncQueue, for tests that are not coroutines."""

    def __init__(self, queue: AsyncQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            coroutine = getattr(self._queue, method)(*arguments, **options)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

        return call

    def __iter__(self) -> Iterator[bytes]:
        async def all_of_them() -> list[bytes]:
            return [message async for message in self._queue]

        yield from asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result()


@pytest.fixture(params=[Queue, AsyncQueue])
def open_queue(backend: Valkey, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Make a client of one queue, of either kind."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(join, thread)
        stack.callback(loop.call_soon_threadsafe, loop.stop)

        def make(name: str | bytes = "q", url: str = backend.url, **options: Any) -> Any:
            if request.param is Queue:
                return stack.enter_context(Queue(name, url, **options))
            queue = Blocking(AsyncQueue(name, url, **options), loop)
            stack.callback(queue.disconnect)
            return queue

        yield make


@pytest.fixture
def queue(open_queue: Open) -> Any:
    return open_queue()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def wait_until_waiting(direct: Client, clients: int = 1) -> None:
    """Return when so many of ours wait, and hear what happens."""

    def hearing() -> int:
        return int(direct.pubsub_numsub("__redis__:invalidate")[0][1])

    wait_for(lambda: hearing() == clients, f"{clients} clients to wait")


def wait_until_blocked(direct: Client, clients: int = 1) -> None:
    """Return when so many clients are in line for a role, or native ones for a message or room."""
    wait_for(lambda: direct.info("clients")["blocked_clients"] == clients, f"{clients} clients in line")


def is_held(direct: Client, role: str) -> bool:
    """Whether the native client of that name has signed for the role."""
    return bool(direct.get(f"{BASE}:{role}") == b"native-holder")


def error_of(future: Future[Any]) -> type[BaseException] | type[None]:
    return type(future.exception(TIMEOUT))


# Alone


def test_a_life(queue: Any, direct: Client) -> None:
    assert not queue.exists()
    for operation in (queue.length, queue.closed, queue.get, queue.get_nowait, queue.close, queue.delete):
        with pytest.raises(QueueDoesNotExistError, match="'q'"):
            operation()
    for put in (queue.put, queue.put_nowait):
        with pytest.raises(QueueDoesNotExistError):
            put(b"x")
    queue.create(bound=2)
    with pytest.raises(QueueAlreadyExistsError):
        queue.create()
    assert (queue.exists(), queue.length(), queue.closed()) == (True, 0, False)
    with pytest.raises(QueueEmptyError):
        queue.get_nowait()
    queue.put(b"\x00\xff")
    queue.put_nowait("ä")
    with pytest.raises(QueueFullError):
        queue.put_nowait(b"x")
    assert (queue.length(), queue.get(), queue.length()) == (2, b"\x00\xff", 1)
    queue.close()
    assert queue.closed()
    for operation in (queue.close, lambda: queue.put(b"x"), lambda: queue.put_nowait(b"x")):
        with pytest.raises(QueueClosedError):
            operation()
    assert list(queue) == ["ä".encode()]
    for get in (queue.get, queue.get_nowait):
        with pytest.raises(QueueClosedError):
            get()
    queue.delete()
    assert keys_left(direct) == []


def test_what_is_written_is_what_the_protocol_says(queue: Any, direct: Client) -> None:
    queue.create(3)
    queue.put(b"four")
    queue.put(b"x")
    assert queue.get() == b"four"
    lists = {
        suffix: direct.llen(BASE + suffix) for suffix in ("", ":producer_free", ":consumer_free", ":not_full")
    }
    assert set(lists.values()) == {1}
    words = direct.mget(
        *[
            f"{BASE}:stats:{verb}_{unit}"
            for verb in ("produced", "consumed")
            for unit in ("messages", "bytes")
        ],
        f"{BASE}:bound",
    )
    assert words == [b"2", b"5", b"1", b"4", b"3"]
    producer, consumer = direct.mget(f"{BASE}:producer", f"{BASE}:consumer")
    assert producer == consumer
    assert b" " not in producer


@pytest.mark.parametrize("name", ["q:bound", "q:ext:x"])
def test_a_name_that_is_a_key_of_another_queue_is_refused(open_queue: Open, name: str) -> None:
    with pytest.raises(QueueNameError):
        open_queue(name)


@pytest.mark.parametrize(
    ("method", "argument", "error", "said"),
    [
        ("create", 1.5, TypeError, "a bound must be an int, 0 for unbounded, not 1.5"),
        ("create", "3", TypeError, "a bound must be an int, 0 for unbounded, not '3'"),
        ("create", None, TypeError, "a bound must be an int"),
        ("create", -1, ValueError, "a bound must be 0 (unbounded) or more, not -1"),
        ("put", 5, TypeError, "a message must be bytes or str, not 5"),
        ("put", None, TypeError, "a message must be bytes or str, not None"),
        ("put_nowait", [b"x"], TypeError, "a message must be bytes or str"),
        (
            "get",
            float("nan"),
            ValueError,
            "a timeout must be a number of seconds, or None to wait for ever, not NaN",
        ),
        ("get", "1", TypeError, "a timeout must be a number of seconds, or None to wait for ever, not '1'"),
        ("close", float("nan"), ValueError, "not NaN"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_sent(
    open_queue: Open, method: str, argument: Any, error: type[Exception], said: str
) -> None:
    queue = open_queue(url="unix:///nowhere")
    with pytest.raises(error, match=re.escape(said)):
        getattr(queue, method)(argument)


def test_a_put_refuses_a_timeout_that_makes_no_sense(open_queue: Open) -> None:
    with pytest.raises(ValueError, match="not NaN"):
        open_queue(url="unix:///nowhere").put(b"x", timeout=float("nan"))


def test_a_name_and_a_prefix_are_bytes_or_str(open_queue: Open) -> None:
    with pytest.raises(TypeError, match="a queue's name must be bytes or str, not 5"):
        open_queue(5)
    with pytest.raises(TypeError, match="a prefix must be bytes or str, not None"):
        open_queue("q", prefix=None)


@pytest.mark.parametrize("options", ["?decode_responses=true", "?protocol=3&db=3", "?retry_on_timeout=true"])
def test_messages_are_bytes_whatever_the_url_says(open_queue: Open, backend: Valkey, options: str) -> None:
    queue = open_queue(url=backend.url + options, decode_responses=True)
    queue.create(1)
    queue.put(b"\xff")
    with pytest.raises(QueueFullError):
        queue.put(b"x", timeout=0.1)
    assert queue.get() == b"\xff"


def test_the_prefix_is_the_callers(open_queue: Open, direct: Client) -> None:
    open_queue(prefix="other").create()
    assert direct.exists("other:q:bound")


def test_a_backend_that_forgets_the_script_gets_it_again(queue: Any, direct: Client) -> None:
    queue.create()
    for number in range(3):
        direct.script_flush()
        queue.put(b"%d" % number)
    assert queue.length() == 3


class LosesReplies(socketserver.ThreadingUnixStreamServer):
    """Passes commands on to a backend; a connection that has sent `lost` ends when that has been answered."""

    daemon_threads = True

    def __init__(self, path: Path, backend: Path) -> None:
        super().__init__(str(path), _Losing)
        self.backend = str(backend)


class _Losing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as backend:
            backend.connect(cast(LosesReplies, self.server).backend)
            # A command or some at a time: whoever sends them waits for the replies.
            while asked := self.request.recv(1 << 20):
                backend.sendall(asked)
                reply = backend.recv(1 << 20)
                if b"lost" in asked:
                    return
                self.request.sendall(reply)


def test_a_put_whose_reply_is_lost_is_not_done_twice(
    open_queue: Open, backend: Valkey, tmp_path: Path
) -> None:
    with LosesReplies(tmp_path / "relay", backend.socket) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        # With which redis-py would send it again.
        queue = open_queue(url=f"unix://{tmp_path}/relay?retry_on_timeout=true")
        queue.create()
        queue.put(b"first")
        with pytest.raises(redis.ConnectionError):
            queue.put(b"lost")
        assert [queue.get(), queue.get()] == [b"first", b"lost"]
        assert queue.length() == 0
        relay.shutdown()


def test_a_redis_that_is_not_there_is_an_error(open_queue: Open) -> None:
    with pytest.raises(redis.ConnectionError):
        open_queue(url="unix:///nowhere").exists()


def test_a_wait_ends_with_its_connection(queue: Any, direct: Client, threads: ThreadPoolExecutor) -> None:
    queue.create()
    got = threads.submit(queue.get)
    wait_until_waiting(direct)
    direct.client_kill_filter(_type="pubsub")
    assert issubclass(error_of(got), redis.ConnectionError)


# Waiting


def test_a_wait_ends_in_time(queue: Any, direct: Client) -> None:
    queue.create(1)
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0.2)
    queue.put(b"x")
    with pytest.raises(QueueFullError):
        queue.put(b"y", timeout=0.2)
    assert queue.length() == 1


def test_a_message_wakes_one_and_room_another(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create(1)
    got = threads.submit(queue.get, TIMEOUT)
    wait_until_waiting(direct)
    queue.put(b"1")
    assert got.result(TIMEOUT) == b"1"
    queue.put(b"2")
    put = threads.submit(queue.put, b"3", TIMEOUT)
    wait_until_waiting(direct)
    assert [queue.get(), queue.get(TIMEOUT)] == [b"2", b"3"]
    assert put.result(TIMEOUT) is None


def test_who_waits_holds_nothing(
    queue: Any, backend: Valkey, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create(1)
    got = threads.submit(queue.get)
    wait_until_waiting(direct)
    assert direct.exists(f"{BASE}:producer_free", f"{BASE}:consumer_free", f"{BASE}:not_full") == 3
    native = NativeClient(direct, "q")
    native.put(b"1")
    assert got.result(TIMEOUT) == b"1"
    native.put(b"2")
    put = threads.submit(queue.put, b"3")
    wait_until_waiting(direct)
    assert direct.exists(f"{BASE}:producer_free", f"{BASE}:consumer_free") == 2
    assert [native.get(), native.get()] == [b"2", b"3"]
    put.result(TIMEOUT)


WAYS_TO_CLOSE: dict[str, Callable[[Any, Client, Client], Any]] = {
    "ours": lambda ours, _direct, _server: ours.close(),
    "native": lambda _ours, direct, _server: NativeClient(direct, "q").close(),
    "server": lambda _ours, _direct, server: server.execute_command("PRESSURE.CLOSE", "q"),
}
WAYS_TO_DELETE: dict[str, Callable[[Any, Client, Client], Any]] = {
    "ours": lambda ours, _direct, _server: ours.delete(),
    "native": lambda _ours, direct, _server: NativeClient(direct, "q").delete(),
    "server": lambda _ours, _direct, server: server.delete("q"),
}


@pytest.mark.parametrize("way", WAYS_TO_CLOSE)
def test_close_wakes_all_who_wait(
    queue: Any, client: Client, direct: Client, threads: ThreadPoolExecutor, way: str
) -> None:
    queue.create()
    got = [threads.submit(queue.get) for _ in range(3)]
    iterated = threads.submit(list, queue)
    wait_until_waiting(direct, 4)
    WAYS_TO_CLOSE[way](queue, direct, client)
    assert {error_of(future) for future in got} == {QueueClosedError}
    assert iterated.result(TIMEOUT) == []


@pytest.mark.parametrize("way", WAYS_TO_CLOSE)
def test_close_wakes_who_waits_for_room(
    queue: Any, client: Client, direct: Client, threads: ThreadPoolExecutor, way: str
) -> None:
    queue.create(1)
    queue.put(b"x")
    puts = [threads.submit(queue.put, b"y") for _ in range(3)]
    wait_until_waiting(direct, 3)
    WAYS_TO_CLOSE[way](queue, direct, client)
    assert {error_of(future) for future in puts} == {QueueClosedError}


@pytest.mark.parametrize("way", WAYS_TO_DELETE)
@pytest.mark.parametrize("full", [False, True])
def test_delete_wakes_all_who_wait_and_leaves_no_key(
    queue: Any, client: Client, direct: Client, threads: ThreadPoolExecutor, way: str, full: bool
) -> None:
    queue.create(1)
    if full:
        queue.put(b"x")
    work: Callable[[], Any] = (lambda: queue.put(b"y")) if full else queue.get
    waiting = [threads.submit(work) for _ in range(3)]
    wait_until_waiting(direct, 3)
    WAYS_TO_DELETE[way](queue, direct, client)
    # A native Delete closes the queue before it goes.
    assert {error_of(future) for future in waiting} <= {QueueDoesNotExistError, QueueClosedError}
    wait_for(lambda: direct.keys(f"{BASE}*") == [], "all keys to go")


# Among native clients


@pytest.mark.parametrize("version", ["0.15", "0.1"])
def test_delete_waits_for_native_clients_and_wakes_them(
    queue: Any, backend: Valkey, direct: Client, version: str
) -> None:
    queue.create(1)
    queue.put(b"x")
    with NativeProcess(backend.socket, "q", "producer", "put", "y", version=version) as producer:
        wait_until_blocked(direct)
        queue.delete()
        assert producer.outcome() == "done"
    assert keys_left(direct) == []
    queue.create()
    with NativeProcess(backend.socket, "q", "consumer", "get", version=version) as consumer:
        wait_until_blocked(direct)
        queue.delete()
        assert consumer.outcome() == "QueueClosedError"
    assert keys_left(direct) == []


def take_both_roles(direct: Client) -> None:
    """As native clients that are at work on the queue."""
    assert direct.rpop(f"{BASE}:producer_free")
    assert direct.rpop(f"{BASE}:consumer_free")


def begin_to_delete(queue: Any, direct: Client, threads: ThreadPoolExecutor) -> Future[None]:
    """A Delete that stands in line for roles that others hold."""
    queue.create()
    take_both_roles(direct)
    deleted = threads.submit(queue.delete)
    wait_until_blocked(direct)
    return deleted


def test_a_delete_that_another_has_finished_leaves_the_next_queue_its_tokens(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    deleted = begin_to_delete(queue, direct, threads)
    direct.delete(*direct.keys(f"{BASE}*"))
    NativeClient(direct, "q").create()
    assert deleted.result(TIMEOUT) is None
    assert direct.llen(f"{BASE}:producer_free") == direct.llen(f"{BASE}:consumer_free") == 1
    assert not direct.keys(f"{BASE}:ext:*_turn")


def test_a_delete_that_ends_before_its_time_gives_its_turn_back(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    deleted = begin_to_delete(queue, direct, threads)
    direct.lpush(f"{BASE}:producer_free", 0)
    wait_for(lambda: direct.exists(f"{BASE}:ext:producer_turn"), "its turn as the producer")

    def in_line() -> list[str]:
        return [client["id"] for client in direct.client_list() if "b" in client["flags"]]

    (blocked,) = wait_for(in_line, "it to stand in line again")
    direct.client_kill_filter(_id=blocked)
    assert issubclass(error_of(deleted), redis.ConnectionError)
    assert direct.llen(f"{BASE}:producer_free") == 1


@pytest.mark.parametrize("in_its_turn", [False, True])
def test_who_waits_for_a_message_uses_the_queue(
    queue: Any,
    direct: Client,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    in_its_turn: bool,
) -> None:
    """And says so: a server notes since when one is unused, and deletes it after a while."""
    monkeypatch.setattr("pressure_server.client.steps._MAX_SILENCE", 0.1)
    queue.create()
    if in_its_turn:
        direct.rpop(f"{BASE}:consumer_free")
    got = threads.submit(queue.get)
    if in_its_turn:
        wait_until_blocked(direct)
        direct.lpush(f"{BASE}:consumer_free", 0)
        wait_for(lambda: direct.exists(f"{BASE}:ext:consumer_turn"), "its turn")
    wait_until_waiting(direct)
    for _ in range(3):
        direct.hset(f"{BASE}:ext:settings", "since", 1)
        wait_for(lambda: not direct.hexists(f"{BASE}:ext:settings", "since"), "the note to be removed")
    queue.put(b"x")
    assert got.result(TIMEOUT) == b"x"
    assert direct.llen(f"{BASE}:consumer_free") == 1


def test_a_role_is_waited_for_and_its_holder_named(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create()
    queue.put(b"x")
    for role, work in (("consumer", queue.get), ("producer", lambda timeout: queue.put(b"y", timeout))):
        native = NativeSteps(direct, "q", "native-holder")
        steps = native.get() if role == "consumer" else native.put(b"z")
        step_until(steps, partial(is_held, direct, role))
        for timeout in (0, 0.2):
            with pytest.raises(QueueInUseError, match="native-holder"):
                work(timeout)
        if role == "producer":
            with pytest.raises(QueueInUseError, match="native-holder"):
                queue.close(0.2)
            waiting = threads.submit(work, TIMEOUT)
        else:
            waiting = threads.submit(work, TIMEOUT)
        wait_until_blocked(direct)
        run(steps)
        if role == "consumer":
            queue.put(b"w")
        waiting.result(TIMEOUT)
        assert direct.llen(f"{BASE}:{role}_free") == 1
    assert [queue.get(), queue.get()] == [b"z", b"y"]


def test_a_put_has_its_turn_among_native_producers_of_a_queue_that_is_always_full(
    queue: Any, backend: Valkey, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create(1)
    with ExitStack() as stack:
        for name, version in (("a", "0.15"), ("b", "0.1")):
            work = ("produce", name, "0", "1000000")
            stack.enter_context(NativeProcess(backend.socket, "q", name, *work, version=version))
        wait_until_blocked(direct, 2)
        ours = threads.submit(lambda: [queue.put(b"ours", TIMEOUT) for _ in range(10)])
        taken: list[bytes] = []
        while not ours.done():
            assert len(taken) < 60
            wait_for(lambda: direct.llen(BASE) and direct.info("clients")["blocked_clients"] >= 2, "a crowd")
            taken.append(queue.get(TIMEOUT))
        ours.result(TIMEOUT)
    # Each round has all three, but where ours was not in line yet.
    assert len(taken) < 60
    print(f"10 of ours among {len(taken)}")


@pytest.mark.slow
def test_messages_go_once_and_in_order_among_all_kinds_of_clients(
    open_queue: Open, backend: Valkey, server: Server, threads: ThreadPoolExecutor
) -> None:
    queue, messages = open_queue(), 150
    queue.create(5)
    taken: list[list[bytes]] = []

    def ours(name: str) -> None:
        for number in range(messages):
            queue.put(f"{name}-{number}")

    def served(name: str) -> None:
        with server.client() as connected:
            for number in range(messages):
                connected.execute_command("PRESSURE.PUT", "q", f"{name}-{number}")

    def take() -> None:
        taken.append(list(queue))

    def take_by_the_server() -> None:
        got: list[bytes] = []
        taken.append(got)
        with server.client() as connected:
            try:
                while True:
                    got.append(connected.execute_command("PRESSURE.GET", "q"))
            except redis.ResponseError as error:
                assert str(error).startswith("CLOSED"), error  # noqa: PT017 -- the loop ends so

    def natively(name: str, version: str) -> None:
        work = ("produce", name, "0", str(messages))
        with NativeProcess(backend.socket, "q", name, *work, version=version) as process:
            assert process.outcome(3 * TIMEOUT) == "done"

    def take_natively() -> None:
        got: list[bytes] = []
        taken.append(got)
        with backend.client() as connected:
            native = NativeClient(connected, "q")
            with suppress(NativeClosedError):
                while True:
                    got.append(native.get())

    consumers = [threads.submit(work) for work in (take, take, take_by_the_server, take_natively)]
    producers = [
        *[threads.submit(ours, f"ours{number}") for number in range(3)],
        threads.submit(served, "served"),
        threads.submit(natively, "native15", "0.15"),
        threads.submit(natively, "native1", "0.1"),
    ]
    for producer in producers:
        producer.result(3 * TIMEOUT)
    queue.close()
    for consumer in consumers:
        consumer.result(TIMEOUT)
    counted = Counter(message for got in taken for message in got)
    assert set(counted.values()) == {1}
    assert len(counted) == messages * len(producers)
    for got in taken:
        last: dict[bytes, int] = {}
        for message in got:
            name, _, number = message.partition(b"-")
            assert last.get(name, -1) < int(number)
            last[name] = int(number)
    queue.delete()
    with backend.client() as direct:
        wait_for(lambda: direct.keys(f"{BASE}*") == [], "all keys to go")


# Clients that die

_PROGRAM = "import sys; from pressure_server.client import Queue; q = Queue('q', sys.argv[1]); "


def start_process(backend: Valkey, work: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM + work, backend.url], stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("work", ["q.get()", "q.put(b'y')"])
def test_one_that_is_killed_while_it_waits_leaves_nothing(backend: Valkey, direct: Client, work: str) -> None:
    native = NativeClient(direct, "q")
    native.create(1)
    if "put" in work:
        native.put(b"x")
    before = sorted(keys_left(direct))
    process = start_process(backend, work)
    wait_until_waiting(direct)
    process.kill()
    process.wait(TIMEOUT)
    wait_until_waiting(direct, 0)
    assert sorted(keys_left(direct)) == before
    if "put" not in work:
        native.put(b"x")
    assert native.get() == b"x"
    assert direct.llen(BASE) == 0


@pytest.mark.slow
def test_one_that_is_killed_in_its_turn_is_seen_through_and_mended(
    open_queue: Open, backend: Valkey, direct: Client
) -> None:
    queue = open_queue()
    for mended_by in ("ours", "doctor"):
        queue.create(1)
        queue.put(b"x")
        with NativeProcess(backend.socket, "q", "native", "put", "y") as native:
            wait_until_blocked(direct)
            process = start_process(backend, "q.put(b'z')")
            wait_until_blocked(direct, 2)
            assert queue.get() == b"x"
            assert native.outcome() == "done"
        wait_for(lambda: direct.exists(f"{BASE}:ext:producer_turn"), "its turn")
        process.kill()
        process.wait(TIMEOUT)
        assert direct.llen(f"{BASE}:producer_free") == 0
        assert queue.get() == b"y"
        if mended_by == "ours":
            queue.put(b"next")
        else:
            said = run_command("doctor", "--repair", "--wait", "0.2", "--backend", backend.url)
            assert (said.returncode, "token parked" in said.stdout) == (0, True), said.stdout
            NativeClient(direct, "q").put(b"next")
        assert direct.llen(f"{BASE}:producer_free") == 1
        assert queue.get() == b"next"
        queue.delete()
        assert direct.keys(f"{BASE}*") == []


def test_one_that_gives_up_in_its_turn_gives_it_back(
    queue: Any, backend: Valkey, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create(1)
    queue.put(b"x")
    with NativeProcess(backend.socket, "q", "native", "put", "y") as native:
        wait_until_blocked(direct)
        put = threads.submit(queue.put, b"z", 1)
        wait_until_blocked(direct, 2)
        assert queue.get() == b"x"
        assert native.outcome() == "done"
    assert error_of(put) is QueueFullError
    assert direct.llen(f"{BASE}:producer_free") == 1


def test_no_message_goes_with_a_coroutine_that_is_cancelled(backend: Valkey, direct: Client) -> None:
    messages = [b"%d" % number for number in range(300)]
    cancelled: list[int] = []

    async def take() -> list[bytes]:
        taken: list[bytes] = []
        async with AsyncQueue("q", backend.url) as queue, asyncio.timeout(3 * TIMEOUT):
            await queue.create()
            producing = asyncio.create_task(produce(queue))
            in_a_row = 0
            while len(taken) < len(messages):
                try:
                    # Longer each time, so that a busy machine gets on, too.
                    async with asyncio.timeout(random.uniform(0, 0.003) * (1 + in_a_row)):
                        taken.append(await queue.get())
                    in_a_row = 0
                except TimeoutError:
                    cancelled.append(len(taken))
                    in_a_row += 1
            await producing
        return taken

    async def produce(queue: AsyncQueue) -> None:
        for message in messages:
            await queue.put(message)
            await asyncio.sleep(random.uniform(0, 0.002))  # so that the consumer has to wait, now and then

    assert asyncio.run(take()) == messages
    print(f"{len(cancelled)} gets cancelled")
    assert cancelled


def test_every_error_is_a_pressure_error() -> None:
    for error in (QueueEmptyError, QueueFullError, QueueInUseError, QueueClosedError, QueueDoesNotExistError):
        assert issubclass(error, PressureError)
