"""Auto-repair: the running server mends what has been stuck for long enough, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest
import redis

from pressure_server.backend.address import Address
from pressure_server.errors import BackendError
from pressure_server.queues.broker import Broker
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from pressure_server.queues.repair.auto_repair import AutoRepair
from pressure_server.queues.repair.doctor import Case, Doctor
from tests.support.deaths import NO_QUEUE, OPERATIONS, STATES, VersionedSteps
from tests.support.native import NativeClient, NativeSteps, run
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.ward import Keys
from tests.test_doctor_command import BASE, QUEUE, kill_a_producer


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
            assert "queue 'q' had a problem for" in warning
            assert "held by 'host-1 42'" in warning
            assert warning.endswith("Auto-repair gave the producer role back")
            assert direct.llen("__pressure__:live:consumer_free") == 0
            client.sadd("live", "message")
            thread.join(20)
    assert got == [b"message"]
    server.end_well()
    assert len(warnings(server)) == 1


@pytest.mark.slow
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


def queues_with_a_dead_producer(direct: Client) -> list[str]:
    queues = [f"q{number}" for number in range(10)]
    for queue in queues:
        native = NativeSteps(direct, queue, "native")
        run(native.create(0))
        run(native.put(b"message"))
        direct.rpop(f"__pressure__:{queue}:producer_free")
    return queues


def test_statistics_that_are_no_numbers_keep_nothing_from_being_mended(
    direct: Client, backend: Valkey, start_server: StartServer
) -> None:
    queues = queues_with_a_dead_producer(direct)
    direct.set(f"__pressure__:{queues[0]}:stats:produced_messages", "12x")
    server = start_server("--backend", backend.url, "--auto-repair-after", "0.6")
    for queue in queues:
        wait_for(partial(direct.llen, f"__pressure__:{queue}:producer_free"), f"{queue} to be mended")
    wait_for(
        lambda: direct.get(f"__pressure__:{queues[0]}:stats:produced_messages") == b"1", "the statistics"
    )
    server.end_well()


def test_what_cannot_be_mended_is_told_of_once_and_the_others_are(
    direct: Client, backend: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues = queues_with_a_dead_producer(direct)
    tried = 0
    mend = Doctor.fix

    async def mend_all_but_one(doctor: Doctor, case: Case) -> list[str]:
        nonlocal tried
        if case.name == queues[0].encode():
            tried += 1
            raise BackendError("the backend answered with an error")
        return await mend(doctor, case)

    monkeypatch.setattr(Doctor, "fix", mend_all_but_one)

    def has_done_its_work() -> bool:
        return tried > 1 and all(direct.llen(f"__pressure__:{queue}:producer_free") for queue in queues[1:])

    async def look_after() -> None:
        broker = Broker(
            Address(backend.url), prefix="__pressure__", peer_detection=PeerDetection(), policy=Policy()
        )
        await broker.start()
        repair = AutoRepair(broker, 0.5)
        repair.start()
        await asyncio.to_thread(wait_for, has_done_its_work, "the others to be mended")
        repair.stop()
        await broker.close()

    asyncio.run(look_after())
    told = [record.getMessage() for record in caplog.records if "'q0'" in record.getMessage()]
    assert told == ["queue 'q0' could not be repaired: the backend answered with an error"]


@pytest.mark.slow
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
