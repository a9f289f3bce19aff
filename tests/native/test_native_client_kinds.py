"""The Python client on queues of all types that servers make, while much must be done there first."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from pressure_server.client import AsyncQueue, Queue, QueueEmptyError, QueueFullError
from tests.support.module_servers import module_server
from tests.support.native import NativeClient
from tests.support.programs import TIMEOUT, Client, Server, Valkey, wait_for
from tests.support.protocols import LISTEN, MEMCACHED, Wire, stored
from tests.support.waiters import Waiter, create, wait_for_waiting

BASE = "__pressure__:q"
TYPES = ("FIFO", "JOBS", "LIFO", "RANDOM", "LOG")


shared_server = module_server(*LISTEN)


@pytest.fixture
def queue(backend: Valkey, client: Client) -> Iterator[Queue]:
    """The Python client."""
    with Queue("q", backend.url) as opened:
        yield opened


def put_as_native_clients(direct: Client, count: int) -> None:
    """Put messages into the list, as any number of native clients do."""
    messages = [b"%05d" % number for number in range(count)]
    direct.lpush(BASE, *messages)
    direct.incrby(f"{BASE}:stats:produced_messages", count)
    direct.incrby(f"{BASE}:stats:produced_bytes", 5 * count)


def many_become_jobs(client: Client, direct: Client, kind: str) -> None:
    """Leave more messages in the list than one call makes jobs of, twice over."""
    create(client, "q", "TYPE", kind)
    put_as_native_clients(direct, 3000)


def many_are_due(client: Client, direct: Client, kind: str) -> None:
    """Leave more delayed jobs that are due than one call makes ready."""
    create(client, "q", "TYPE", kind)
    with client.pipeline(transaction=False) as pipeline:
        for number in range(3000):
            pipeline.execute_command("PRESSURE.PUT", "q", b"%05d" % number, "DELAY", "0.2")
        pipeline.execute()
    last = direct.zrange(f"{BASE}:ext:delayed", -1, -1, withscores=True)[0][1]
    wait_for(lambda: direct.time()[0] * 1000 > last, "all jobs to be due")


METHODS: dict[str, Callable[[Queue], Any]] = {
    "put": lambda queue: queue.put("x", timeout=0),
    "get": lambda queue: queue.get(timeout=0),
    "length": lambda queue: queue.length(),
    "exists": lambda queue: queue.exists(),
    "closed": lambda queue: queue.closed(),
    "close": lambda queue: queue.close(),
    "delete": lambda queue: queue.delete(),
}
EXPECTED = {"put": None, "length": 3000, "exists": True, "closed": False, "close": None, "delete": None}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["JOBS", "LIFO", "RANDOM"])
@pytest.mark.parametrize("prepare", [many_become_jobs, many_are_due])
def test_each_method_does_what_it_says_while_many_jobs_are_made_or_due(
    client: Client,
    direct: Client,
    queue: Queue,
    prepare: Callable[[Client, Client, str], None],
    kind: str,
    method: str,
) -> None:
    prepare(client, direct, kind)
    found = METHODS[method](queue)
    if method == "get":
        assert kind == "RANDOM" or found == (b"02999" if kind == "LIFO" else b"00000")
    else:
        assert found == EXPECTED[method]
    left = {"delete": False, "get": 2999, "put": 3001}.get(method, 3000)
    assert (queue.length() if left else queue.exists()) == left


@pytest.mark.parametrize("kind", ["FIFO", "JOBS", "LIFO"])
def test_a_get_from_a_queue_with_ack_next_takes_the_message_for_good(
    client: Client, queue: Queue, kind: str
) -> None:
    create(client, "q", "TYPE", kind, "ACK", "NEXT")
    client.rpush("q", "a")
    assert queue.get(timeout=0) == b"a"
    found = client.execute_command("PRESSURE.INFO", "q")
    assert (found[b"length"], found[b"reserved"], found[b"consumed_messages"]) == (0, 0, 1)
    with pytest.raises(QueueEmptyError):
        queue.get(timeout=0.1)


def test_a_get_passes_over_many_messages_that_have_expired(
    server: Server, client: Client, queue: Queue
) -> None:
    create(client, "q", "TYPE", "JOBS")
    with Wire(MEMCACHED, server) as wire:
        wire.send(stored(b"q", b"m", more=b"0 2600000") * 2500)
        assert set(wire.replies(2500)) == {b"STORED"}
        wire(stored(b"q", b"last"))
    assert queue.get(timeout=0) == b"last"


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("settings", "timeout", "left"),
    [
        (("BOUND", 2, "OVERFLOW", "OVERWRITE"), 1, [b"c", b"d"]),
        (("BOUND", 1, "OVERFLOW", "BLOCK"), 0, [b"a"]),
        (("BOUND", 1, "OVERFLOW", "ERROR"), 0, [b"a"]),
    ],
)
def test_a_put_into_a_full_queue_is_refused_or_done_once(
    client: Client, queue: Queue, kind: str, settings: tuple[str | int, ...], timeout: int, left: list[bytes]
) -> None:
    create(client, "q", "TYPE", kind, *settings)
    for message in ("a", "b", "c", "d"):
        with nullcontext() if message == "a" or timeout else pytest.raises(QueueFullError):
            queue.put(message, timeout)
    assert sorted(client.lrange("q", 0, -1)) == left


def test_a_put_of_a_message_that_must_be_unique_is_no_error(client: Client, queue: Queue) -> None:
    create(client, "q", "UNIQUE", "QUEUED")
    for _ in range(2):
        queue.put("a", timeout=1)
    assert client.lrange("q", 0, -1) == [b"a"]


def test_a_put_goes_on_when_the_message_in_its_way_expires(
    server: Server, client: Client, queue: Queue
) -> None:
    create(client, "q", "BOUND", 1)
    with Wire(MEMCACHED, server) as wire:
        assert wire(stored(b"q", b"m", more=b"0 1")) == b"STORED"
    queue.put("a", timeout=2.5)
    assert client.lrange("q", 0, -1) == [b"a"]


class Held(AsyncQueue):
    """A client whose gets are answered only when the test says so."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_taken, self.may_answer = asyncio.Event(), asyncio.Event()

    async def _send(self, call: list[bytes]) -> Any:
        reply = await super()._send(call)
        self.has_taken.set()
        await self.may_answer.wait()
        return reply


def test_a_cancelled_get_puts_its_message_back_while_many_become_jobs(
    client: Client, direct: Client, backend: Valkey
) -> None:
    create(client, "q", "TYPE", "JOBS")
    client.rpush("q", "first")

    async def cancel_a_get() -> None:
        queue = Held("q", backend.url)
        async with queue:
            getting = asyncio.create_task(queue.get())
            async with asyncio.timeout(TIMEOUT):
                await queue.has_taken.wait()
            put_as_native_clients(direct, 3000)
            getting.cancel()
            queue.may_answer.set()
            with suppress(asyncio.CancelledError):
                await getting

    asyncio.run(cancel_a_get())
    assert client.llen("q") == 3001
    assert b"first" in client.lrange("q", 0, -1)


def test_a_native_delete_of_the_slowest_group_makes_room_in_its_log(
    server: Server, client: Client, backend: Valkey
) -> None:
    create(client, "log", "TYPE", "LOG", "BOUND", 1, "OVERFLOW", "BLOCK")
    for group in ("g", "slow"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "log", group)
    client.rpush("log", "m")
    assert client.spop("log+g") == b"m"
    assert client.llen("log+slow") == 1
    with backend.client() as connection, Waiter(server.port) as waiter:
        waiter.send("PRESSURE.PUT", "log", "next", "TIMEOUT", 60)
        wait_for_waiting(client, "log", producers=1)
        NativeClient(connection, "log+slow").delete()
        assert waiter.reply() == 1
