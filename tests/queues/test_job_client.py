"""The Python clients of jobs, sync and async, with a server."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from math import nan
from typing import Any

import pytest
import redis
import redis.asyncio

from pressure_server.client import (
    AsyncJob,
    AsyncJobQueue,
    BackendError,
    JobInfo,
    JobNotReservedError,
    JobQueue,
    PeekedJob,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueNameError,
    QueueTypeError,
)
from tests.support.blocking import Blocking, running_loop
from tests.support.client_scripts import examples, output_of
from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.waiters import about, create, wait_for_blocked, wait_for_waiting

Open = Callable[..., Any]


class WorkError(Exception):
    """The work of a job has failed."""


@pytest.fixture(params=[JobQueue, AsyncJobQueue])
def open_queue(server: Server, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that makes a client of a queue's jobs, either sync or async."""
    with running_loop() as loop, ExitStack() as stack:

        def make(name: str | bytes = "q", url: str = server.url, **options: Any) -> Any:
            queue: Any
            if request.param is JobQueue:
                queue = JobQueue(name, url, **options)
            else:
                queue = Blocking(AsyncJobQueue(name, url, **options), loop, AsyncJob)
            stack.callback(queue.disconnect)
            return queue

        yield make


@pytest.fixture
def queue(open_queue: Open, client: Client) -> Any:
    """A client of the queue q, which exists."""
    create(client, "q")
    return open_queue()


def state_of(queue: Any, job_id: int) -> str | None:
    """Return a job's state; None if there is no such job."""
    found = queue.job(job_id)
    return found.state if found else None


def wait_until_ready(queue: Any, job_id: int) -> None:
    wait_for(lambda: state_of(queue, job_id) == "ready", f"job {job_id} to be ready")


def test_jobs_are_reserved_by_priority_then_age(queue: Any) -> None:
    ids = [
        queue.put("plain"),
        queue.put(b"\x00\xff", priority=1),
        queue.put("ä", priority=0),
        queue.put("late", delay=100),
    ]
    assert ids == [1, 2, 3, 4]
    jobs = [queue.reserve(timeout=0) for _ in range(3)]
    assert [(job.id, job.message, job.reserves, job.queue, job.token) for job in jobs] == [
        (3, "ä".encode(), 1, "q", None),
        (2, b"\x00\xff", 1, "q", None),
        (1, b"plain", 1, "q", None),
    ]
    with pytest.raises(QueueEmptyError, match="'q'"):
        queue.reserve(timeout=0)


# What the body of a block does with its job, and the job's state when the block has ended, and has raised.
BODIES: list[tuple[Callable[[Any], None], str | None, str | None]] = [
    (lambda job: None, None, "ready"),
    (lambda job: job.ack(), None, None),
    (lambda job: job.release(), "ready", "ready"),
    (lambda job: job.release(delay=100), "delayed", "delayed"),
    (lambda job: job.bury(), "buried", "buried"),
]


@pytest.mark.parametrize("error", [None, WorkError, KeyboardInterrupt])
@pytest.mark.parametrize(("body", "ended", "raised"), BODIES)
def test_a_block_ends_its_job_unless_the_body_has(
    queue: Any,
    body: Callable[[Any], None],
    ended: str | None,
    raised: str | None,
    error: type[BaseException] | None,
) -> None:
    queue.put("work")
    with pytest.raises(error) if error else nullcontext(), queue.reserve(timeout=5) as job:
        assert state_of(queue, job.id) == "reserved"
        body(job)
        if error:
            raise error
    assert state_of(queue, 1) == (raised if error else ended)


@pytest.mark.parametrize("token", [None, "mine"])
def test_without_a_block_the_caller_ends_the_job(queue: Any, token: str | None) -> None:
    queue.put("work")
    job = queue.reserve(token=token)
    job.ack()
    assert queue.job(1) is None
    for method in (job.ack, job.release, job.bury, job.touch):
        with pytest.raises(JobNotReservedError, match="job 1 of queue 'q'"):
            method()


def test_priorities_and_delays_of_release_and_bury(queue: Any) -> None:
    for message in ("a", "b", "c"):
        queue.put(message, priority=5)
    queue.reserve(timeout=0).release(priority=9)
    queue.reserve(timeout=0).bury(priority=8)
    queue.reserve(timeout=0).release(delay=100)
    assert [(state_of(queue, job), queue.job(job).priority) for job in (1, 2, 3)] == [
        ("ready", 9),
        ("buried", 8),
        ("delayed", 5),
    ]
    assert (queue.kick(), queue.kick(5), queue.kick(5)) == (1, 1, 0)


def test_jobs_are_described(queue: Any) -> None:
    first = queue.put("first", priority=7, ttr=90)
    later = queue.put("later", delay=100)
    assert queue.peek("ready") == queue.peek(first) == PeekedJob(1, b"first")
    assert queue.peek("delayed") == (later, b"later")
    assert queue.peek("buried") is queue.peek(99) is queue.job(99) is None
    info = queue.job(first)
    assert info == JobInfo("ready", 7, info.age_ms, 0, 90_000, 0, "", 0, 0, 0, 0, 0)
    assert (queue.job(later).delay_ms, queue.job(later).ttr_ms) == (100_000, 60_000)
    found = queue.info()
    assert [found[name] for name in ("type", "length", "ready", "delayed")] == ["jobs", 2, 1, 1]


def test_a_put_on_a_full_queue_waits_for_room(open_queue: Open, client: Client) -> None:
    create(client, "q", "BOUND", 1)
    queue = open_queue()
    queue.put("a")
    for timeout in (0, -1, 0.1):
        with pytest.raises(QueueFullError, match="'q'"):
            queue.put("b", timeout=timeout)
    with ThreadPoolExecutor() as threads:
        # Longer than the time in which an ordinary reply must come.
        put = threads.submit(open_queue(socket_timeout=0.1).put, "b", timeout=TIMEOUT)
        wait_for_waiting(client, "q", producers=1)
        queue.reserve(timeout=0).ack()
        assert put.result(TIMEOUT) == 2


@pytest.mark.parametrize("timeout", [None, TIMEOUT, float("inf"), 1e12])
def test_a_reserve_waits_for_a_job(open_queue: Open, client: Client, timeout: float | None) -> None:
    create(client, "q")
    queue = open_queue(socket_timeout=0.1)
    for short in (0.2, 0.0001):
        with pytest.raises(QueueEmptyError):
            queue.reserve(timeout=short)
    with ThreadPoolExecutor() as threads:
        reserved = threads.submit(queue.reserve, timeout)
        wait_for_blocked(client, 1)
        queue.put("work")
        assert reserved.result(TIMEOUT).message == b"work"


def test_a_loop_acknowledges_each_job_when_it_asks_for_the_next(queue: Any) -> None:
    for message in ("a", "b", "c"):
        queue.put(message)
    assert [
        (job.message, [state_of(queue, job_id) for job_id in (1, 2, 3)]) for job in queue.jobs(timeout=0)
    ] == [
        (b"a", ["reserved", "ready", "ready"]),
        (b"b", [None, "reserved", "ready"]),
        (b"c", [None, None, "reserved"]),
    ]
    assert queue.job(3) is None


def test_a_loop_waits_for_jobs(queue: Any, client: Client) -> None:
    with ThreadPoolExecutor() as threads:
        queue.put("a")
        seen = threads.submit(lambda: [job.id for job in queue.jobs(timeout=1)])
        # The acknowledgement does not wait for the next job.
        wait_for_blocked(client, 1)
        wait_for(lambda: queue.job(1) is None, "the acknowledgement")
        queue.put("b")
        assert seen.result(TIMEOUT) == [1, 2]


@pytest.mark.parametrize("error", [WorkError, KeyboardInterrupt])
def test_a_loop_whose_body_raises_releases_the_job(queue: Any, error: type[BaseException]) -> None:
    for message in ("a", "b"):
        queue.put(message)

    def work() -> None:
        for job in queue.jobs(timeout=0):
            if job.message == b"b":
                raise error

    with pytest.raises(error):
        work()
    assert queue.job(1) is None
    assert (state_of(queue, 2), queue.job(2).releases) == ("ready", 1)


def test_a_job_that_the_body_of_a_loop_has_ended_is_left_alone(queue: Any) -> None:
    for message in ("a", "b", "c", "d", "e"):
        queue.put(message)
    ends: list[Callable[[Any], None]] = [
        lambda job: job.release(delay=100), lambda job: job.bury(), lambda job: job.ack(), lambda _: None,
    ]  # fmt: skip
    for job, end in zip(queue.jobs(timeout=0), ends, strict=False):
        end(job)
        if job.id == 4:
            break
    assert [state_of(queue, job) for job in (1, 2, 3, 4, 5)] == ["delayed", "buried", None, "ready", "ready"]


def test_a_loop_that_loses_its_job_logs_a_warning_and_goes_on(
    queue: Any, open_queue: Open, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("a")
    others, seen = [], []
    for job in queue.jobs(timeout=0, ttr=0.1):
        seen.append(job.id)
        if job.id == 1:
            others.append(open_queue().reserve(timeout=TIMEOUT))
            queue.put("b")
    assert seen == [1, 2]
    assert state_of(queue, 1) == "reserved"
    assert ["job 1 of queue 'q' is not reserved here" in text for text in caplog.messages] == [True]


def test_a_loop_whose_connection_is_cut_acknowledges_on_a_new_one(
    open_queue: Open, queue: Any, client: Client
) -> None:
    queue.put("a")
    for job in open_queue(client_name="worker").jobs(timeout=0):
        assert job.reserves == 1
        (worker,) = (other for other in client.client_list() if other["name"] == "worker")
        client.client_kill_filter(_id=worker["id"])
        wait_until_ready(queue, 1)
    assert queue.job(1) is None


def test_a_loop_ends_with_an_error_if_the_queue_is_closed(queue: Any, client: Client) -> None:
    queue.put("a")
    client.execute_command("PRESSURE.CLOSE", "q")
    jobs = queue.jobs()
    assert next(jobs).id == 1
    with pytest.raises(QueueClosedError):
        next(jobs)
    assert queue.job(1) is None


def test_a_touch_begins_the_time_to_run_again(queue: Any) -> None:
    queue.put("work", ttr=100)
    with queue.reserve(timeout=0) as job:
        wait_for(lambda: queue.job(1).time_left_ms < 99_950, "50 ms to pass")
        before = queue.job(1).time_left_ms
        job.touch()
        assert queue.job(1).time_left_ms > before


@pytest.mark.parametrize("error", [JobNotReservedError, WorkError])
def test_a_block_that_loses_its_job_raises_unless_its_body_has(
    queue: Any, open_queue: Open, error: type[Exception]
) -> None:
    queue.put("work")
    others = []

    def work() -> None:
        with queue.reserve(timeout=0, ttr=0.1):
            others.append(open_queue().reserve(timeout=TIMEOUT))
            assert (others[0].id, others[0].reserves) == (1, 2)
            if error is WorkError:
                raise error

    with pytest.raises(error):
        work()
    assert state_of(queue, 1) == "reserved"
    others[0].ack()


def test_work_that_is_done_late_is_not_done_again_if_nobody_has_begun(queue: Any) -> None:
    queue.put("work")
    with queue.reserve(timeout=0, ttr=0.1):
        wait_until_ready(queue, 1)
    assert queue.job(1) is None


def test_each_job_has_a_connection_which_is_used_again(open_queue: Open, client: Client) -> None:
    create(client, "q")
    queue = open_queue(client_name="worker")
    for number in range(12):
        queue.put(str(number))
    used: set[str] = set()
    for _ in range(3):
        jobs = [queue.reserve(timeout=0) for _ in range(4)]
        for job in jobs:
            job.ack()
        used |= {entry["id"] for entry in client.client_list() if entry["name"] == "worker"}
    assert len(used) == 4


def test_a_job_returns_when_its_connection_breaks(queue: Any, open_queue: Open, client: Client) -> None:
    queue.put("work")
    before = {entry["id"] for entry in client.client_list()}
    job = open_queue().reserve(timeout=0)
    (own,) = {entry["id"] for entry in client.client_list()} - before
    client.client_kill_filter(_id=own)
    other = queue.reserve(timeout=TIMEOUT)
    assert (other.id, other.reserves) == (1, 2)
    with pytest.raises(JobNotReservedError):
        job.ack()
    other.ack()


def test_a_block_that_fails_with_its_connection_raises_its_own_error(
    open_queue: Open, start_server: Callable[..., Server], server: Server, backend: Any, client: Client
) -> None:
    create(client, "q")
    doomed = start_server("--backend", backend.url)
    queue = open_queue(url=doomed.url)
    queue.put("work")

    def work() -> None:
        with queue.reserve(timeout=0):
            doomed.stop()
            raise WorkError

    with pytest.raises(WorkError):
        work()
    assert open_queue().reserve(timeout=TIMEOUT).id == 1


def test_a_loop_goes_on_when_its_connection_broke_between_two_jobs(
    queue: Any, open_queue: Open, client: Client
) -> None:
    for message in ("work", "more"):
        queue.put(message)
    before = {entry["id"] for entry in client.client_list()}
    jobs = open_queue().jobs(timeout=0)
    assert next(jobs).id == 1
    (own,) = {entry["id"] for entry in client.client_list()} - before
    client.client_kill_filter(_id=own)
    wait_for(lambda: state_of(queue, 1) == "ready", "the job to return")
    assert [(job.id, job.reserves) for job in jobs] == [(2, 1)]
    assert queue.length() == 0


def test_a_forked_process_has_connections_of_its_own(queue: Any, server: Server) -> None:
    for number in range(40):
        queue.put(str(number))
    program = (
        f"import os\nfrom pressure_server.client import JobQueue\nqueue = JobQueue('q', {server.url!r})\n"
        "queue.reserve(0).ack()\nchild = os.fork()\n"
        "os.write(1, ''.join(f'{job.id} ' for job in queue.jobs(0)).encode())\nif child:\n    os.wait()\n"
    )
    found = output_of(sys.executable, "-c", program).split()
    assert sorted(map(int, found)) == [*range(2, 41)]


def test_the_job_of_a_killed_process_returns_while_its_child_lives(queue: Any, server: Server) -> None:
    queue.put("work", ttr=0)
    program = (
        "import os, signal\nfrom pressure_server.client import JobQueue\n"
        f"job = JobQueue('q', {server.url!r}).reserve()\nchild = os.fork()\n"
        "if child:\n    os.write(1, b'%d\\n' % child)\nsignal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        try:
            worker.kill()
            wait_until_ready(queue, 1)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_disconnect_gives_reserved_jobs_back(queue: Any, open_queue: Open) -> None:
    queue.put("work")
    queue.put("more")
    kept = queue.reserve(timeout=0, token="mine")
    job = queue.reserve(timeout=0)
    queue.disconnect()
    assert open_queue().reserve(timeout=TIMEOUT).id == job.id
    with pytest.raises(JobNotReservedError):
        job.release()
    kept.ack()


def test_a_job_that_is_dropped_returns_to_the_queue(queue: Any) -> None:
    for message in ("before", "work"):
        queue.put(message)
    before = queue.reserve(timeout=0)
    before.ack()
    job = queue.reserve(timeout=0)  # on the same connection
    assert (before.id, job.id, state_of(queue, 2)) == (1, 2, "reserved")
    gc.disable()  # the connection alone would be collected some time
    try:
        del job
        wait_until_ready(queue, 2)
    finally:
        gc.enable()


def fail(monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, *, is_sent: bool) -> None:
    """Have redis-py raise this error instead of returning the reply of the command."""
    send: Any = redis.Redis.execute_command
    send_async: Any = redis.asyncio.Redis.execute_command

    def execute(client: Any, *words: Any) -> Any:
        reply = send(client, *words) if is_sent or words[0] != command else None
        if words[0] == command:
            raise error
        return reply

    async def execute_async(client: Any, *words: Any) -> Any:
        reply = await send_async(client, *words) if is_sent or words[0] != command else None
        if words[0] == command:
            raise error
        return reply

    monkeypatch.setattr(redis.Redis, "execute_command", execute)
    monkeypatch.setattr(redis.asyncio.Redis, "execute_command", execute_async)


def test_a_reserve_that_is_interrupted_keeps_no_job(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put("work")
    fail(monkeypatch, "PRESSURE.RESERVE", WorkError(), is_sent=True)
    with pytest.raises(WorkError):
        queue.reserve(timeout=0)
    wait_until_ready(queue, 1)
    assert queue.job(1).reserves == 1


def test_a_job_that_cannot_be_ended_returns_to_the_queue(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put("work")
    job = queue.reserve(timeout=0)
    fail(monkeypatch, "PRESSURE.ACK", redis.ResponseError("BACKEND the backend was lost"), is_sent=False)
    with pytest.raises(BackendError, match=r"^the backend was lost$"), job:
        assert state_of(queue, 1) == "reserved"
    wait_until_ready(queue, 1)
    with pytest.raises(JobNotReservedError):
        job.touch()


def test_threads_reserve_different_jobs(open_queue: Open, client: Client) -> None:
    create(client, "q")
    queue, together = open_queue(), threading.Barrier(8)
    for number in range(24):
        queue.put(str(number))

    def work() -> list[int]:
        done = []
        for _ in range(3):
            with queue.reserve(timeout=TIMEOUT) as job:
                together.wait(TIMEOUT)
                done.append(job.id)
        return done

    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(work) for _ in range(8)]
        assert sorted(job for future in futures for job in future.result(TIMEOUT)) == [*range(1, 25)]
    assert (queue.length(), queue.info()["reserved"]) == (0, 0)


def test_threads_may_touch_a_job_while_it_is_ended(queue: Any) -> None:
    def touch(job: Any, begun: threading.Event) -> None:
        while True:
            job.touch()
            begun.set()

    with ThreadPoolExecutor() as threads:
        for number in range(10):
            queue.put(str(number))
            begun = threading.Event()
            with queue.reserve(timeout=0) as job:
                touching = threads.submit(touch, job, begun)
                assert begun.wait(TIMEOUT)
            assert isinstance(touching.exception(TIMEOUT), JobNotReservedError)
    assert (queue.length(), queue.info()["reserved"]) == (0, 0)


def test_a_token_carries_a_reservation_from_process_to_process(queue: Any, server: Server) -> None:
    queue.put("work", priority=3, ttr=100)
    program = f"JobQueue('q', {server.url!r}).reserve(0, token='cart-7')"
    assert output_of(sys.executable, "-c", f"from pressure_server.client import JobQueue\n{program}") == ""
    with pytest.raises(QueueEmptyError):
        queue.reserve(timeout=0)
    for token, job_id in (("cart-8", 1), ("cart-7", 2)):
        with pytest.raises(JobNotReservedError):
            queue.resume(job_id, token)
    job = queue.resume(1, "cart-7")
    assert (job.id, job.message, job.reserves, job.token) == (1, b"work", 1, "cart-7")
    job.touch()
    with pytest.raises(WorkError), job:
        raise WorkError
    with pytest.raises(JobNotReservedError):
        queue.resume(1, "cart-7")
    with queue.reserve(timeout=0, token=b"cart-9") as job:
        assert (job.id, job.reserves) == (1, 2)
    assert queue.job(1) is None


def test_a_reserve_is_awaited_or_entered(server: Server, client: Client) -> None:
    create(client, "q")

    async def main() -> None:
        async with AsyncJobQueue("q", server.url) as queue:
            for message in ("a", "b", "c", "d"):
                await queue.put(message)
            async with queue.reserve() as job:
                assert job.message == b"a"
            job = await queue.reserve()
            await job.ack()
            async with await asyncio.wait_for(queue.reserve(), TIMEOUT):
                pass
            async with asyncio.TaskGroup() as group:
                task = group.create_task(queue.reserve())
            with pytest.raises(WorkError):
                async with task.result() as job:
                    raise WorkError
            with pytest.raises(WorkError):
                async with queue.reserve() as job:
                    raise WorkError
            assert (repr(job), job.reserves) == ("<AsyncJob 4 of queue 'q'>", 2)
            with pytest.raises(TypeError, match="a timeout"):
                queue.reserve(timeout="5")  # type: ignore[arg-type]

    asyncio.run(main())
    assert client.scard("q") == 1


def test_a_cancelled_reserve_keeps_no_job(server: Server, client: Client) -> None:
    create(client, "q")

    async def main() -> None:
        async with AsyncJobQueue("q", server.url) as queue:
            waiting = asyncio.ensure_future(queue.reserve())
            await asyncio.to_thread(wait_for_blocked, client, 1)
            # The loop does not run while the job is put and reserved: the reply is not read before the end.
            client.execute_command("PRESSURE.PUT", "q", "work", "PRIORITY", 1)
            wait_for(lambda: about(client, "q")[b"reserved"], "the job to be reserved")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with queue.reserve(timeout=TIMEOUT) as job:
                assert (job.id, job.reserves) == (1, 2)

    asyncio.run(main())


def test_a_cancelled_block_releases_its_job(server: Server, client: Client) -> None:
    create(client, "q")

    async def main() -> None:
        async with AsyncJobQueue("q", server.url) as queue:
            await queue.put("work")
            begun = asyncio.Event()

            async def work() -> None:
                async with queue.reserve():
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = await queue.job(1)
            assert found is not None
            assert (found.state, found.releases) == ("ready", 1)

    asyncio.run(main())


def test_a_job_stays_reserved_if_a_touch_is_cancelled(server: Server, client: Client) -> None:
    create(client, "q")

    async def main() -> None:
        async with AsyncJobQueue("q", server.url) as queue:
            await queue.put("work")
            job = await queue.reserve()
            for turns in range(20):
                touching = asyncio.create_task(job.touch())
                for _ in range(turns):
                    await asyncio.sleep(0)
                touching.cancel()
                with suppress(asyncio.CancelledError):
                    await touching
            found = await queue.job(job.id)
            assert found is not None
            assert (found.state, found.reserves) == ("reserved", 1)
            await job.ack()
            assert await queue.job(job.id) is None

    asyncio.run(main())


def test_errors_of_the_server_are_pressure_errors(open_queue: Open, client: Client) -> None:
    queue = open_queue("other")
    for method in (lambda: queue.put("work"), queue.length, queue.info, lambda: queue.kick(1)):
        with pytest.raises(QueueDoesNotExistError, match="queue 'other' does not exist"):
            method()
    queue.create()
    with pytest.raises(QueueAlreadyExistsError):
        queue.create()
    with pytest.raises(QueueTypeError):
        queue.put("work", unique_by="x")
    with pytest.raises(PressureError, match=r"^a token must be 1 to 128 printable characters") as refused:
        queue.reserve(timeout=0, token="a b")
    assert refused.value.code == "ERR"
    client.execute_command("PRESSURE.CLOSE", "other")
    for method in (lambda: queue.put("work"), queue.reserve):
        with pytest.raises(QueueClosedError, match="queue 'other' is closed"):
            method()


def test_a_missing_right_is_an_error_of_redis_py(
    open_queue: Open, start_server: Callable[..., Server], backend: Any
) -> None:
    server = start_server("--backend", backend.url, environment={"PRESSURE_PASSWORD": "secret"})
    with pytest.raises(redis.AuthenticationError):
        open_queue(url=server.url, password="wrong").length()


def test_an_invalid_name_or_an_unreachable_server_is_an_error(open_queue: Open) -> None:
    for name, error in (("q:bound", QueueNameError), (5, TypeError)):
        with pytest.raises(error):
            open_queue(name)
    queue = open_queue(url="unix:///nowhere")
    for method in (queue.length, queue.reserve, lambda: queue.put("work")):
        with pytest.raises(redis.ConnectionError):
            method()


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("put", {"message": 5}, TypeError, "a message must be bytes or str, not 5"),
        ("put", {"message": "m", "priority": 1.5}, TypeError, "a priority must be an int, not 1.5"),
        ("put", {"message": "m", "priority": -1}, ValueError, "a priority must be between 0 and 4294967295"),
        ("put", {"message": "m", "priority": 1 << 32}, ValueError, "a priority must be between"),
        ("put", {"message": "m", "delay": -1}, ValueError, "a delay must be between 0 and 4294967295 sec"),
        ("put", {"message": "m", "delay": "1"}, TypeError, "a delay must be a number of seconds, not '1'"),
        ("put", {"message": "m", "ttr": nan}, ValueError, "a time to run must be between"),
        ("put", {"message": "m", "ttr": 1 << 32}, ValueError, "a time to run must be between"),
        ("put", {"message": "m", "unique_by": 5}, TypeError, "a name must be bytes or str, not 5"),
        ("put", {"message": "m", "timeout": nan}, ValueError, "not NaN"),
        ("reserve", {"timeout": nan}, ValueError, "not NaN"),
        ("reserve", {"timeout": "1"}, TypeError, "a timeout must be a number of seconds"),
        ("reserve", {"ttr": -1}, ValueError, "a time to run must be between"),
        ("reserve", {"token": 5}, TypeError, "a token must be bytes or str, not 5"),
        ("resume", {"job_id": "1", "token": "t"}, TypeError, "the id of a job must be an int, not '1'"),
        ("peek", {"which": "reserved"}, ValueError, "a state must be 'ready', 'delayed' or 'buried'"),
        ("peek", {"which": 0}, ValueError, "the id of a job must be 1 or more, not 0"),
        ("job", {"job_id": 1.0}, TypeError, "the id of a job must be an int"),
        ("kick", {"count": -1}, ValueError, "a count must be 0 or more, not -1"),
        ("pause", {"seconds": None}, TypeError, "a pause must be a number of seconds, not None"),
        ("create", {"bound": -1}, ValueError, "a bound must be 0 (unbounded) or more"),
        ("create", {"max_deliveries": 0}, ValueError, "a limit of deliveries must be 1 or more, not 0"),
        ("create", {"dead_letter": 5}, TypeError, "a queue's name must be bytes or str"),
        ("create", {"unique": True}, ValueError, "unique must be 'queued', 'unfinished' or None, not True"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_sent(
    open_queue: Open, method: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    queue = open_queue(url="unix:///nowhere")
    with pytest.raises(error, match=re.escape(message)):
        getattr(queue, method)(**arguments)


@pytest.mark.parametrize("options", ["?decode_responses=true", "?protocol=3", "?retry_on_timeout=true"])
def test_replies_are_read_whatever_the_url_says(
    open_queue: Open, server: Server, client: Client, options: str
) -> None:
    create(client, "q")
    queue = open_queue(url=server.url + options)
    queue.put(b"\xff")
    assert queue.info()["type"] == "jobs"
    with queue.reserve(timeout=0) as job:
        assert job.message == b"\xff"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The commands of clients, which reach no server. The reply to each is 1."""
    commands: list[tuple[Any, ...]] = []

    def execute(_client: Any, *words: Any) -> int:
        commands.append(words)
        return 1

    async def execute_async(client: Any, *words: Any) -> int:
        return execute(client, *words)

    monkeypatch.setattr(redis.Redis, "execute_command", execute)
    monkeypatch.setattr(redis.asyncio.Redis, "execute_command", execute_async)
    return commands


def test_methods_send_their_options(open_queue: Open, sent: list[tuple[Any, ...]]) -> None:
    queue = open_queue()
    queue.create()
    queue.create(5, 3, "dead", "unfinished")
    queue.put("m")
    queue.put("m", priority=7, delay=0.0001, ttr=90, unique=True, unique_by="x", timeout=1.5)
    queue.pause(100)
    assert sent == [
        ("PRESSURE.CREATE", b"q", "BOUND", 0, "TYPE", "jobs"),
        ("PRESSURE.CREATE", b"q", "BOUND", 5, "TYPE", "jobs", "MAX-DELIVERIES", 3,
         "DEAD-LETTER", b"dead", "UNIQUE", "unfinished"),
        ("PRESSURE.PUT", b"q", b"m", "DELAY", b"0.000"),
        ("PRESSURE.PUT", b"q", b"m", "DELAY", b"0.001", "PRIORITY", 7, "TTR", b"90.000",
         "UNIQUE", "UNIQUE-BY", b"x", "TIMEOUT", b"1.500"),
        ("PRESSURE.PAUSE", b"q", b"100.000"),
    ]  # fmt: skip


EXAMPLES = examples("docs/guides/job-client.md")


@pytest.mark.parametrize(("program", "output"), EXAMPLES, ids=["sync", "retry", "async", "token"])
def test_the_documented_programs_print_their_output(server: Server, program: str, output: str) -> None:
    assert "127.0.0.1:4000" in program
    program = program.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    assert output_of(sys.executable, "-c", program) == output
