"""Calls that carry the operations of many queues, from outside: order, moves, memory that runs out.

`PRESSURE_OUT_OF_MEMORY_SECONDS=60` has the last of these last a minute.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import redis

from tests.support.faults import stopped
from tests.support.peers import heartbeats, identity
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, records, wait_for
from tests.support.waiters import Waiter, packed

_SECONDS = float(os.environ.get("PRESSURE_OUT_OF_MEMORY_SECONDS", "4"))


@pytest.mark.parametrize("forgets", [False, True], ids=["", "the backend forgets its scripts"])
def test_what_is_left_for_the_next_call_goes_before_what_came_later(
    client: Client, direct: Client, waiter: Waiter, forgets: bool
) -> None:
    """A call brings one mebibyte at most, so the first of these takes several."""
    count, size = 3_000, 1_024
    for first in range(0, count, 500):
        client.rpush("q", *(b"%06d" % number + bytes(size - 6) for number in range(first, first + 500)))
    stops = threading.Event()

    def forget() -> None:
        with direct.client() as flushing:
            while not stops.is_set():
                flushing.script_flush()

    thread = threading.Thread(target=forget)
    if forgets:
        thread.start()
    try:
        got: list[int] = []
        # Others join the calls.
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
            got += [int(one[:6]) for one in (reply if isinstance(reply, list) else [reply]) if one]
    finally:
        stops.set()
        if forgets:
            thread.join()
    assert got == list(range(count))


@pytest.mark.parametrize("order", ["before", "behind", "waiting"])
@pytest.mark.parametrize("bound", [0, 1], ids=["unbounded", "bound 1"])
def test_a_move_into_a_queue_that_the_same_call_works_on(
    server: Server, backend: Valkey, client: Client, direct: Client, order: str, bound: int
) -> None:
    client.execute_command("PRESSURE.CREATE", "b", "BOUND", bound)
    client.rpush("a", "m")
    with Waiter(server.port) as mover, Waiter(server.port) as other:
        if order == "waiting":
            other.send("BLPOP", "b", 0)
            wait_for(lambda: client.info("clients")["blocked_clients"] == 1, "it to wait")
            assert mover("LMOVE", "a", "b", "LEFT", "RIGHT") == b"m"
            assert other.reply() == [b"b", b"m"]
        else:
            with stopped(backend.process):
                first, second = (mover, other) if order == "behind" else (other, mover)
                for one in (first, second):
                    if one is mover:
                        one.send("LMOVE", "a", "b", "LEFT", "RIGHT")
                    else:
                        one.send("LPOP", "b")
                    time.sleep(0.05)  # the backend stands still, so nothing tells when the server has read it
            assert mover.reply() == b"m"
            assert other.reply() in (b"m", None)
    left = [message for queue in "ab" for message in client.lrange(queue, 0, -1)]
    assert len(left) <= 1
    assert direct.llen("__pressure__:a") == 0


def test_memory_that_runs_out(start_valkey: StartValkey, start_server: StartServer) -> None:
    """Puts are refused, takes served, and what has been delivered is acknowledged; nothing grows."""
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with valkey.client() as direct, server.client() as client:
        for number in range(50):
            client.sadd(f"q{number}", *(f"{number} {n} " + "x" * 1000 for n in range(200)))
        used = direct.info("memory")["used_memory"]
        direct.config_set("maxmemory", used + (1 << 20))
        counts, stops = {"put": 0, "refused": 0, "taken": 0, "empty": 0}, threading.Event()
        lock = threading.Lock()
        errors: list[Exception] = []

        def work(seed: int) -> None:
            mine = dict.fromkeys(counts, 0)
            with server.client() as one:
                number = 0
                while not stops.is_set():
                    number += 1
                    queue = f"q{(seed * 7 + number) % 50}"
                    try:
                        # More is put than taken.
                        for part in range(3):
                            one.sadd(queue, f"{seed} {number} {part} " + "y" * 1000)
                            mine["put"] += 1
                    except redis.ResponseError as error:
                        if "OOM command not allowed" not in str(error):
                            errors.append(error)
                            return
                        mine["refused"] += 1
                    mine["taken" if one.spop(queue) is not None else "empty"] += 1
            with lock:
                for name, count in mine.items():
                    counts[name] += count

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        largest, end = 0, time.monotonic() + _SECONDS
        while time.monotonic() < end:
            largest = max(largest, direct.info("memory")["used_memory"])
            stops.wait(0.1)
        stops.set()
        for thread in threads:
            thread.join()
        assert not errors, errors[0].args
        print(f"{counts}; memory {used} at first, limit {used + (1 << 20)}, largest {largest}")
        assert counts["refused"] > 10
        assert counts["taken"] > 100
        assert largest < used + (4 << 20)
        wait_for(lambda: not records(direct), "all to be acknowledged")


def lpop(queue: str) -> bytes:
    return packed("LPOP", queue)


def slow_client(path: Path) -> socket.socket:
    """A connection that does not read; a unix socket has room for some 200 KiB."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


@pytest.mark.slow
def test_many_slow_clients(
    backend: Valkey, direct: Client, start_server: StartServer, tmp_path: Path
) -> None:
    """Records are cut down to what has not arrived, and exactly that comes back when the server is killed."""
    count, size = int(os.environ.get("PRESSURE_SLOW_CLIENTS", "300")), 300_000
    path = tmp_path / "slow.sock"
    options = ("--backend", backend.url, "--proxy-timeout", "1")
    dying, living = start_server("--listen", f"resp+unix://{path}", *options), start_server(*options)
    with living.client() as client:
        for number in range(count):
            client.rpush(f"large-{number}", b"x" * size)
        client.rpush("q", *range(3 * count))
    slow = [slow_client(path) for _ in range(count)]
    with Waiter(dying.port) as fast:
        with stopped(backend.process):
            fast.socket.sendall(lpop("q") * count)
            for number, one in enumerate(slow):
                # The reply that brings a message is behind one that is not read.
                one.sendall(lpop(f"large-{number}") + lpop("q"))
        taken = [int(fast.reply()) for _ in range(count)]
        wait_for(lambda: direct.llen("__pressure__:q") == count, "all to be taken")
    wait_for(lambda: not _fast_ones(direct, taken), "what has arrived to leave the records")
    name = identity(dying)
    dying.process.kill()
    wait_for(lambda: name not in heartbeats(direct), "it to be buried")
    back = [int(found) for found in direct.lrange("__pressure__:q", 0, -1)]
    assert sorted(back + taken) == list(range(3 * count))
    assert not records(direct)
    print(f"{count} clients that do not read: {len(back) - count} of {2 * count} messages came back")
    for one in slow:
        one.close()


def _fast_ones(direct: Client, taken: list[int]) -> bool:
    """Whether a record has a message that has arrived. They are numbers, packed as short strings."""
    found = {
        int(number)
        for record in records(direct).values()
        for number in re.findall(rb"[\xa1-\xa6](\d+)(?=[\x80-\xff])", record)
    }
    return not found.isdisjoint(taken)
