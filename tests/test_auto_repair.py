"""Auto-repair: the running server mends what has been stuck for long enough, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import redis

from tests.deaths import NO_QUEUE, OPERATIONS, STATES, VersionedSteps
from tests.native import NativeClient, NativeSteps, run
from tests.programs import Client, Server, StartServer, Valkey, wait_for
from tests.test_doctor_command import BASE, QUEUE, kill_a_producer
from tests.ward import Keys


def warnings(server: Server) -> list[str]:
    return [line for line in server.log.splitlines() if "WARNING" in line]


def test_it_mends_what_is_stuck_and_nothing_else(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    kill_a_producer(direct)
    got: list[bytes] = []
    run(NativeSteps(direct, "live", "native").create(0))
    with backend.client() as theirs:
        waiting = NativeClient(theirs, "live", "waiting")
        thread = threading.Thread(target=lambda: got.append(waiting.get()), daemon=True)
        thread.start()
        wait_for(lambda: direct.info("clients")["blocked_clients"], "the consumer to be blocked")
        server = start_server("--backend", backend.url, "--auto-repair-after", "1", "--role-timeout", "20")
        with server.client() as client:
            # It waits for the role until the role has been given back.
            assert client.sadd(QUEUE, "a") == 1
            (warning,) = wait_for(lambda: warnings(server), "it")
            assert "queue 'q' was in trouble for" in warning
            assert "held by 'host-1 42'" in warning
            assert warning.endswith("Auto-repair gave the producer role back")
            assert direct.llen("__pressure__:live:consumer_free") == 0
            client.sadd("live", "message")
            thread.join(20)
    assert got == [b"message"]
    server.end_well()
    assert len(warnings(server)) == 1


def test_it_mends_whatever_a_client_has_died_in(
    direct: Client, backend: Valkey, start_server: StartServer
) -> None:
    """In the middle of each operation, all at once."""
    died: dict[str, Keys] = {}
    for operation, begin in OPERATIONS.items():
        state = NO_QUEUE if operation == "create" else STATES[3]
        steps = begin(VersionedSteps(direct, state.make(direct, operation), "victim"))
        for _ in range(3):
            next(steps)
        steps.close()
        died[operation] = Keys.read(direct, operation)
    server = start_server("--backend", backend.url, "--auto-repair-after", "0.6")
    for operation, before in died.items():
        wait_for(partial(is_mended, direct, operation, before), f"the {operation} to be mended")
    server.end_well()


def is_mended(direct: Client, queue: str, before: Keys) -> bool:
    """Whether nobody is stuck on it, with its messages as they were; or nothing is left of the deletion."""
    if before.bound is None:
        return not direct.keys(f"__pressure__:{queue}*")
    keys = Keys.read(direct, queue)
    assert keys.messages == before.messages
    try:
        keys.assert_sound()
    except AssertionError:
        return False
    return True


def test_it_is_off_unless_asked_for(client: Client, direct: Client) -> None:
    kill_a_producer(direct)
    # For the role it waits five seconds, which would be enough.
    with pytest.raises(redis.ResponseError, match="INUSE"):
        client.sadd(QUEUE, "a")
    assert direct.llen(f"{BASE}:producer_free") == 0


def test_it_survives_a_backend_that_goes_away(
    start_valkey: Callable[..., Valkey], start_server: StartServer
) -> None:
    valkey = start_valkey("--appendonly", "yes")
    server = start_server("--backend", valkey.url, "--auto-repair-after", "1")
    valkey.kill()
    valkey.start()
    with valkey.client() as direct:
        kill_a_producer(direct)
        wait_for(lambda: direct.llen(f"{BASE}:producer_free") == 1, "the role to be given back")
    assert server.stop() == 0
    assert "Traceback" not in server.log
