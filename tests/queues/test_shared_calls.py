"""Calls that carry the operations of many queues, tested through servers: order, moves, memory, slow clients.

`PRESSURE_OUT_OF_MEMORY_SECONDS=60` lets the backend be out of memory for a minute.
"""

import itertools
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.faults import stopped
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    join,
    records,
    wait_for,
)
from tests.support.waiters import Waiter, packed

_SECONDS = float(os.environ.get("PRESSURE_OUT_OF_MEMORY_SECONDS", "4"))


@pytest.mark.parametrize("is_flushed", [False, True], ids=["usual", "scripts are flushed"])
def test_gets_that_take_several_calls_keep_their_order(
    client: Client, direct: Client, waiter: Waiter, is_flushed: bool
) -> None:
    """A call brings at most a mebibyte, so the first get takes several calls."""
    count, size = 3_000, 1_024
    for first in range(0, count, 500):
        client.rpush("q", *(b"%06d" % number + bytes(size - 6) for number in range(first, first + 500)))
    is_done = threading.Event()

    def flush_scripts() -> None:
        with direct.client() as flushing:
            while not is_done.is_set():
                flushing.script_flush()

    thread = threading.Thread(target=flush_scripts)
    if is_flushed:
        thread.start()
    try:
        got: list[int] = []
        commands = [
            ("SPOP", "q", 1000),
            ("SPOP", "q"),
            ("SADD", "other", "x"),
            ("SPOP", "q", 700),
            ("SPOP", "q"),
        ]
        waiter.socket.sendall(b"".join(packed(*words) for words in commands * 2))
        for reply in (waiter.reply() for _ in range(2 * len(commands))):
            assert not isinstance(reply, Exception), reply
            if isinstance(reply, int):
                continue
            messages = reply if isinstance(reply, list) else [reply]
            got += [int(message[:6]) for message in messages if message]
    finally:
        is_done.set()
        if is_flushed:
            join(thread)
    assert got == list(range(count))


@pytest.mark.parametrize("commands", [("LPOP b", "LMOVE a b LEFT RIGHT"), ("LMOVE a b LEFT RIGHT", "LPOP b")])
@pytest.mark.parametrize("bound", [0, 1], ids=["unbounded", "bound 1"])
def test_a_move_and_a_get_on_its_destination_may_share_a_call(
    server: Server, backend: Valkey, client: Client, direct: Client, commands: tuple[str, str], bound: int
) -> None:
    client.execute_command("PRESSURE.CREATE", "b", "BOUND", bound)
    client.rpush("a", "m")
    with Waiter(server.port) as first, Waiter(server.port) as second:
        with stopped(backend.process):
            for connection, command in zip((first, second), commands, strict=True):
                connection.send(*command.split())
                time.sleep(0.05)  # while the backend is stopped, nothing shows that the server has read it
        replies = dict(zip(commands, (first.reply(), second.reply()), strict=True))
    assert replies["LMOVE a b LEFT RIGHT"] == b"m"
    assert replies["LPOP b"] in (b"m", None)
    assert client.llen("b") == (replies["LPOP b"] is None)
    assert direct.llen("__pressure__:a") == 0


def test_without_memory_gets_go_on_and_nothing_grows(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    is_done = threading.Event()

    def work(seed: int) -> Counter[str]:
        """Put more messages than are taken, until all is done."""
        counts: Counter[str] = Counter()
        with server.client() as worker:
            for number in itertools.takewhile(lambda _: not is_done.is_set(), itertools.count(1)):
                queue = f"q{(seed * 7 + number) % 50}"
                try:
                    for part in range(3):
                        worker.sadd(queue, f"{seed} {number} {part} " + "y" * 1000)
                except redis.ResponseError as error:
                    if "OOM command not allowed" not in str(error):
                        raise
                    counts["refused"] += 1
                counts["taken"] += worker.spop(queue) is not None
        return counts

    with valkey.client() as direct, server.client() as client, ThreadPoolExecutor(6) as threads:
        for number in range(50):
            client.sadd(f"q{number}", *(f"{number} {n} " + "x" * 1000 for n in range(200)))
        used = direct.info("memory")["used_memory"]
        direct.config_set("maxmemory", used + (1 << 20))
        working = [threads.submit(work, seed) for seed in range(6)]
        largest, end = 0, time.monotonic() + _SECONDS
        while time.monotonic() < end:
            largest = max(largest, direct.info("memory")["used_memory"])
            is_done.wait(0.1)
        is_done.set()
        counts = sum((one.result(TIMEOUT) for one in working), Counter[str]())
        assert counts["refused"] > 10
        assert counts["taken"] > 100
        assert largest < used + (4 << 20)
        wait_for(lambda: not records(direct), "all messages to be acknowledged")
