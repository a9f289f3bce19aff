"""The Python client, sync and async: alone, among native clients of pressure 0.15 and 0.1, with a server."""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from math import nan
from typing import Any

import pytest
import redis

from pressure_server.client import (
    AsyncQueue,
    Queue,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    QueueNameError,
)
from tests.support.backend_relay import NO_REPLY, CallRelay
from tests.support.blocking import Blocking, running_loop
from tests.support.native import NativeClient, NativeSteps, Result, run, step_until
from tests.support.native_process import NativeProcess
from tests.support.programs import TIMEOUT, Client, Valkey, keys_left, run_command, wait_for
from tests.support.waiters import blocked

BASE = "__pressure__:q"
Open = Callable[..., Any]


@pytest.fixture(params=[Queue, AsyncQueue])
def open_queue(backend: Valkey, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that makes a client of a queue, either sync or async."""
    with running_loop() as loop, ExitStack() as stack:

        def make(name: str | bytes = "q", url: str = backend.url, **options: Any) -> Any:
            made: Any = request.param(name, url, **options)
            return stack.enter_context(made if request.param is Queue else Blocking(made, loop))

        yield make


@pytest.fixture
def queue(open_queue: Open) -> Any:
    return open_queue()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def wait_until_waiting(direct: Client, clients: int = 1) -> None:
    """Return when exactly so many Python clients wait for a message or room."""
    channel = "__redis__:invalidate"
    wait_for(lambda: direct.pubsub_numsub(channel)[0][1] == clients, f"{clients} clients to wait")


def wait_until_blocked(direct: Client, clients: int = 1) -> None:
    """Return when exactly so many clients wait for a role, or native ones for a message or room."""
    wait_for(lambda: blocked(direct) == clients, f"{clients} blocked clients")


def is_held(direct: Client, role: str) -> bool:
    """Return whether the client `native-holder` has the role."""
    return bool(direct.get(f"{BASE}:{role}") == b"native-holder")


def error_of(future: Future[Any]) -> type[BaseException] | type[None]:
    return type(future.exception(TIMEOUT))


def test_operations_follow_the_state_of_the_queue(queue: Any, direct: Client) -> None:
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


def test_the_keys_are_those_of_the_protocol(queue: Any, direct: Client) -> None:
    queue.create(3)
    queue.put(b"four")
    queue.put(b"x")
    assert queue.get() == b"four"
    for suffix in ("", ":producer_free", ":consumer_free", ":not_full"):
        assert direct.llen(BASE + suffix) == 1, suffix
    counted = [f"{verb}_{unit}" for verb in ("produced", "consumed") for unit in ("messages", "bytes")]
    assert direct.mget(*[f"{BASE}:stats:{name}" for name in counted]) == [b"2", b"5", b"1", b"4"]
    assert direct.get(f"{BASE}:bound") == b"3"
    producer, consumer = direct.mget(f"{BASE}:producer", f"{BASE}:consumer")
    assert producer == consumer
    assert b" " not in producer


NO_BOUND, NO_MESSAGE = "a bound must be an int, 0 for unbounded, not ", "a message must be bytes or str, not "
NO_TIMEOUT = "a timeout must be a number of seconds, or None to wait for ever, not "


@pytest.mark.parametrize(
    ("options", "method", "arguments", "error", "message"),
    [
        ({"name": "q:bound"}, "", [], QueueNameError, "'q:bound'"),
        ({"name": "q:ext:x"}, "", [], QueueNameError, "'q:ext:x'"),
        ({"name": 5}, "", [], TypeError, "a queue's name must be bytes or str, not 5"),
        ({"prefix": None}, "", [], TypeError, "a prefix must be bytes or str, not None"),
        ({}, "create", [1.5], TypeError, f"{NO_BOUND}1.5"),
        ({}, "create", ["3"], TypeError, f"{NO_BOUND}'3'"),
        ({}, "create", [None], TypeError, f"{NO_BOUND}None"),
        ({}, "create", [-1], ValueError, "a bound must be 0 (unbounded) or more, not -1"),
        ({}, "put", [5], TypeError, f"{NO_MESSAGE}5"),
        ({}, "put", [None], TypeError, f"{NO_MESSAGE}None"),
        ({}, "put", [b"x", nan], ValueError, f"{NO_TIMEOUT}NaN"),
        ({}, "put_nowait", [[b"x"]], TypeError, NO_MESSAGE),
        ({}, "get", [nan], ValueError, f"{NO_TIMEOUT}NaN"),
        ({}, "get", ["1"], TypeError, f"{NO_TIMEOUT}'1'"),
        ({}, "close", [nan], ValueError, f"{NO_TIMEOUT}NaN"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_sent(
    open_queue: Open,
    options: dict[str, Any],
    method: str,
    arguments: list[Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        getattr(open_queue(url="unix:///nowhere", **options), method)(*arguments)


@pytest.mark.parametrize("options", ["?decode_responses=true", "?protocol=3&db=3", "?retry_on_timeout=true"])
def test_messages_are_bytes_and_timeouts_end_whatever_the_url_says(
    open_queue: Open, backend: Valkey, options: str
) -> None:
    queue = open_queue(url=backend.url + options, decode_responses=True)
    queue.create(1)
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0.1)
    queue.put(b"\xff")
    with pytest.raises(QueueFullError):
        queue.put(b"x", timeout=0.1)
    assert queue.get() == b"\xff"
    assert queue.length() == 0


def test_keys_begin_with_the_prefix_of_the_caller(open_queue: Open, direct: Client) -> None:
    open_queue(prefix="other").create()
    assert direct.exists("other:q:bound")


def test_the_script_is_loaded_again_after_a_script_flush(queue: Any, direct: Client) -> None:
    queue.create()
    for number in range(3):
        direct.script_flush()
        queue.put(b"%d" % number)
    assert queue.length() == 3


def test_a_put_whose_reply_is_lost_is_not_done_twice(open_queue: Open, backend: Valkey) -> None:
    with CallRelay(backend.socket) as relay:
        # With this option, redis-py itself would send the command again.
        queue = open_queue(url=f"{relay.url}?retry_on_timeout=true")
        queue.create()
        queue.put(b"first")
        relay.plan(NO_REPLY)
        with pytest.raises(redis.ConnectionError):
            queue.put(b"lost")
        assert [queue.get(), queue.get()] == [b"first", b"lost"]
        assert queue.length() == 0


def test_an_unreachable_backend_is_an_error(open_queue: Open) -> None:
    with pytest.raises(redis.ConnectionError):
        open_queue(url="unix:///nowhere").exists()


def test_a_wait_fails_when_its_connection_breaks(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create()
    got = threads.submit(queue.get)
    wait_until_waiting(direct)
    direct.client_kill_filter(_type="pubsub")
    assert issubclass(error_of(got), redis.ConnectionError)


def test_a_waiting_client_holds_no_role(
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


def end_queue(operation: str, by: str, queue: Any, client: Client, direct: Client) -> None:
    """Close or delete the queue by the Python client, a native client or a server."""
    if by == "server":
        client.execute_command({"close": "PRESSURE.CLOSE", "delete": "DEL"}[operation], "q")
    else:
        getattr(queue if by == "Python" else NativeClient(direct, "q"), operation)()


@pytest.mark.parametrize("by", ["Python", "native", "server"])
@pytest.mark.parametrize("operation", ["close", "delete"])
@pytest.mark.parametrize("full", [False, True])
def test_close_and_delete_wake_all_waiting_clients(
    queue: Any,
    client: Client,
    direct: Client,
    threads: ThreadPoolExecutor,
    operation: str,
    by: str,
    full: bool,
) -> None:
    queue.create(1)
    if full:
        queue.put(b"x")
    waiting = [threads.submit(queue.put, b"y") if full else threads.submit(queue.get) for _ in range(3)]
    iterated = None if full or operation == "delete" else threads.submit(list, queue)
    wait_until_waiting(direct, 4 if iterated else 3)
    end_queue(operation, by, queue, client, direct)
    errors = {error_of(future) for future in waiting}
    if operation == "close":
        assert errors == {QueueClosedError}
        assert iterated is None or iterated.result(TIMEOUT) == []
    else:
        # A native Delete closes the queue first.
        assert errors <= {QueueDoesNotExistError, QueueClosedError}
        wait_for(lambda: direct.keys(f"{BASE}*") == [], "all keys to be deleted")


@pytest.mark.parametrize("version", ["0.15", "0.1"])
def test_delete_wakes_native_clients_and_waits_for_them(
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


def begin_to_delete(queue: Any, direct: Client, threads: ThreadPoolExecutor) -> Future[None]:
    """Begin a Delete, which waits for roles that native clients hold."""
    queue.create()
    for role in ("producer", "consumer"):
        assert direct.rpop(f"{BASE}:{role}_free")
    deleted = threads.submit(queue.delete)
    wait_until_blocked(direct)
    return deleted


def test_a_delete_that_another_finished_takes_no_token_of_the_next_queue(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    deleted = begin_to_delete(queue, direct, threads)
    direct.delete(*direct.keys(f"{BASE}*"))
    NativeClient(direct, "q").create()
    assert deleted.result(TIMEOUT) is None
    assert direct.llen(f"{BASE}:producer_free") == direct.llen(f"{BASE}:consumer_free") == 1
    assert not direct.keys(f"{BASE}:ext:*_turn")


def test_a_delete_that_fails_gives_its_role_back(
    queue: Any, direct: Client, threads: ThreadPoolExecutor
) -> None:
    deleted = begin_to_delete(queue, direct, threads)
    direct.lpush(f"{BASE}:producer_free", 0)
    wait_for(lambda: direct.exists(f"{BASE}:ext:producer_turn"), "the delete to have the producer role")

    def blocked_ids() -> list[str]:
        return [client["id"] for client in direct.client_list() if "b" in client["flags"]]

    (connection,) = wait_for(blocked_ids, "the delete to wait for the consumer role")
    direct.client_kill_filter(_id=connection)
    assert issubclass(error_of(deleted), redis.ConnectionError)
    assert direct.llen(f"{BASE}:producer_free") == 1


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_waiting_get_marks_the_queue_as_used(
    queue: Any,
    direct: Client,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    has_turn: bool,
) -> None:
    """A server notes since when a queue is unused; the waiting client removes the note."""
    monkeypatch.setattr("pressure_server.client.native._MAX_SILENCE", 0.1)
    queue.create()
    if has_turn:
        direct.rpop(f"{BASE}:consumer_free")
    got = threads.submit(queue.get)
    if has_turn:
        wait_until_blocked(direct)
        direct.lpush(f"{BASE}:consumer_free", 0)
        wait_for(lambda: direct.exists(f"{BASE}:ext:consumer_turn"), "the get to have its turn")
    wait_until_waiting(direct)
    for _ in range(3):
        direct.hset(f"{BASE}:ext:settings", "since", 1)
        wait_for(lambda: not direct.hexists(f"{BASE}:ext:settings", "since"), "the note to be removed")
    queue.put(b"x")
    assert got.result(TIMEOUT) == b"x"
    assert direct.llen(f"{BASE}:consumer_free") == 1


def test_an_operation_waits_for_a_role_or_names_its_holder(
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
        wait_until_blocked(direct)
        run(steps)
        if role == "consumer":
            queue.put(b"w")
        waiting.result(TIMEOUT)
        assert direct.llen(f"{BASE}:{role}_free") == 1
    assert [queue.get(), queue.get()] == [b"z", b"y"]


def test_puts_get_their_turns_among_native_producers_of_a_full_queue(
    queue: Any, backend: Valkey, direct: Client, threads: ThreadPoolExecutor
) -> None:
    queue.create(1)
    with ExitStack() as stack:
        for name, version in (("a", "0.15"), ("b", "0.1")):
            work = ("produce", name, "0", "1000000")
            stack.enter_context(NativeProcess(backend.socket, "q", name, *work, version=version))
        wait_until_blocked(direct, 2)
        puts = threads.submit(lambda: [queue.put(b"Python", TIMEOUT) for _ in range(10)])
        taken = 0
        while not puts.done():
            wait_for(lambda: direct.llen(BASE) and blocked(direct) >= 2, "the native producers to wait")
            queue.get(TIMEOUT)
            taken += 1
            # Three messages a round, and some more if the Python client is late.
            assert taken < 60
        puts.result(TIMEOUT)
    print(f"10 of {taken} messages are the Python client's")


_PROGRAM = "import sys; from pressure_server.client import Queue; q = Queue('q', sys.argv[1]); "


def start_process(backend: Valkey, work: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM + work, backend.url], stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("work", ["q.get()", "q.put(b'y')"])
def test_a_client_killed_while_it_waits_leaves_nothing(backend: Valkey, direct: Client, work: str) -> None:
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


def put_in_turn(queue: Any, backend: Valkey, direct: Client, begin_put: Callable[[], Result]) -> Result:
    """Begin a put that gets the role from a native put, and then waits for room with it."""
    queue.create(1)
    queue.put(b"x")
    with NativeProcess(backend.socket, "q", "native", "put", "y") as native:
        wait_until_blocked(direct)
        begun = begin_put()
        wait_until_blocked(direct, 2)
        assert queue.get() == b"x"
        assert native.outcome() == "done"
    return begun


@pytest.mark.slow
def test_the_role_of_a_client_killed_in_its_turn_is_repaired(
    open_queue: Open, backend: Valkey, direct: Client
) -> None:
    queue = open_queue()
    for repaired_by in ("Python client", "doctor"):
        process = put_in_turn(queue, backend, direct, lambda: start_process(backend, "q.put(b'z')"))
        wait_for(lambda: direct.exists(f"{BASE}:ext:producer_turn"), "the put to have its turn")
        process.kill()
        process.wait(TIMEOUT)
        assert direct.llen(f"{BASE}:producer_free") == 0
        assert queue.get() == b"y"
        if repaired_by == "Python client":
            queue.put(b"next")
        else:
            doctor = run_command("doctor", "--repair", "--wait", "0.2", "--backend", backend.url)
            assert (doctor.returncode, "token parked" in doctor.stdout) == (0, True), doctor.stdout
            NativeClient(direct, "q").put(b"next")
        assert direct.llen(f"{BASE}:producer_free") == 1
        assert queue.get() == b"next"
        queue.delete()
        assert direct.keys(f"{BASE}*") == []


def test_a_put_that_times_out_in_its_turn_gives_the_role_back(
    queue: Any, backend: Valkey, direct: Client, threads: ThreadPoolExecutor
) -> None:
    put = put_in_turn(queue, backend, direct, lambda: threads.submit(queue.put, b"z", 1))
    assert error_of(put) is QueueFullError
    assert direct.llen(f"{BASE}:producer_free") == 1


def test_cancelled_gets_lose_no_message(backend: Valkey) -> None:
    messages = [b"%d" % number for number in range(300)]
    cancelled: list[int] = []

    async def take() -> list[bytes]:
        taken: list[bytes] = []
        async with AsyncQueue("q", backend.url) as queue, asyncio.timeout(3 * TIMEOUT):
            await queue.create()
            producing = asyncio.create_task(produce(queue))
            failures = 0
            while len(taken) < len(messages):
                try:
                    # Longer after each cancellation, so that a busy machine makes progress, too.
                    async with asyncio.timeout(random.uniform(0, 0.003) * (1 + failures)):
                        taken.append(await queue.get())
                    failures = 0
                except TimeoutError:
                    cancelled.append(len(taken))
                    failures += 1
            await producing
        return taken

    async def produce(queue: AsyncQueue) -> None:
        for message in messages:
            await queue.put(message)
            await asyncio.sleep(random.uniform(0, 0.002))  # so that the consumer sometimes waits

    assert asyncio.run(take()) == messages
    print(f"{len(cancelled)} gets cancelled")
    assert cancelled


def test_a_get_that_is_cancelled_again_and_again_loses_no_message(backend: Valkey, direct: Client) -> None:
    async def main() -> None:
        async with AsyncQueue("q", backend.url) as queue:
            await queue.create()
            await queue.put(b"x")
            task = asyncio.create_task(queue.get())
            left = 1
            while left:
                await asyncio.sleep(0)
                left = direct.llen(BASE)
            # anyio cancels a task at each turn of the loop until it ends.
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()

    asyncio.run(main())
    assert direct.llen(BASE) == 1
