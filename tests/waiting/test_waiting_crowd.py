"""Many clients that wait on as many queues: their memory, processor time and wake-up times."""

import os
import random
import resource
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.support.measures import connections, memory, processor_seconds
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, StartValkey, wait_for
from tests.support.waiters import Waiter, wait_for_blocked, waiters

WAITERS = int(os.environ.get("PRESSURE_WAITERS", "1000"))
WOKEN = 200
IDLE_SECONDS = 1.0


@pytest.fixture
def _open_files() -> Iterator[None]:
    """Raise the limit of open files, here and in the programs that are started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, WAITERS + 1000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("_open_files")
def test_waiting_clients_cost_little_memory_and_processor_time(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url, "--max-clients", str(WAITERS + 100))
    with backend.client() as direct, server.client() as client:
        with waiters(server, 10) as warm:  # the measurement does not include the cost of the first clients
            for waiter in warm:
                waiter.send("BLPOP", "warm", 0)
            wait_for_blocked(client, 10)
            client.rpush("warm", *range(10))
            assert sorted(waiter.reply()[1] for waiter in warm) == [b"%d" % number for number in range(10)]
        with waiters(server, WAITERS) as crowd:
            for waiter in crowd:
                assert waiter("PING") == b"PONG"
            before, others = memory(server), len(connections(direct, tracking=False))
            began = time.monotonic()
            for number, waiter in enumerate(crowd):
                waiter.send("BLPOP", f"q{number}", 0)
            wait_for_blocked(client, WAITERS, timeout=60)
            took = time.monotonic() - began
            each = (memory(server) - before) / WAITERS
            assert len(connections(direct, tracking=True)) == 1
            assert len(connections(direct, tracking=False)) == others
            used = idle_processor_seconds(server)
            by_server, by_native = wake_some(crowd, client, direct)
    print(
        f"{WAITERS} waiters: {took:.2f} s until all wait, {each / 1024:.2f} KiB each, "
        f"{used:.3f} s of processor in {IDLE_SECONDS:g} s; "
        f"from put to wake-up, median and p99: SADD {times(by_server)}; native {times(by_native)}"
    )
    assert each < 8 * 1024
    assert used <= 0.05 * IDLE_SECONDS
    assert statistics.median(by_server) < 0.05
    assert statistics.median(by_native) < 0.05


def idle_processor_seconds(server: Server) -> float:
    """Return the processor time that the idle server uses in `IDLE_SECONDS`."""

    def settled() -> bool:
        used = processor_seconds(server)
        time.sleep(0.1)  # a measurement over several of the kernel's ticks of 10 ms
        return processor_seconds(server) == used

    wait_for(settled, "the server to be idle")
    before = processor_seconds(server)
    time.sleep(IDLE_SECONDS)  # the measurement
    return processor_seconds(server) - before


def wake_some(crowd: list[Waiter], client: Client, direct: Client) -> tuple[list[float], list[float]]:
    """Return the seconds from a put to the reply, for puts through the server and by native clients."""
    by_server: list[float] = []
    by_native: list[float] = []
    for turn, number in enumerate(random.Random(1).sample(range(len(crowd)), min(WOKEN, len(crowd)))):
        queue = f"q{number}"
        native = NativeClient(direct, queue)
        if turn % 2:
            native.create()
        began = time.perf_counter()
        if turn % 2:
            native.put(b"m")
        else:
            client.sadd(queue, "m")
        assert crowd[number].reply() == [queue.encode(), b"m"]
        (by_native if turn % 2 else by_server).append(time.perf_counter() - began)
    return by_server, by_native


def times(seconds: list[float]) -> str:
    """Return the median and the 99th percentile as text."""
    p99 = statistics.quantiles(seconds, n=100)[98]
    return f"{statistics.median(seconds) * 1e3:.2f} and {p99 * 1e3:.2f} ms"
