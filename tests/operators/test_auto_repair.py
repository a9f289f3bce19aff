"""Auto-repair: a running server repairs the queues whose problems have lasted, and no others."""

import asyncio
import threading

import pytest
import redis

from pressure_server.errors import BackendError
from pressure_server.queues.repair import AutoRepair, Case, Doctor
from tests.operators.test_doctor_command import BASE, QUEUE, kill_a_producer
from tests.support.brokers import default_broker
from tests.support.native import NativeClient, NativeSteps, run
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, join, wait_for
from tests.support.waiters import wait_for_blocked


def warnings(server: Server) -> list[str]:
    return [line for line in server.log.splitlines() if "WARNING" in line]


def test_only_a_queue_with_a_dead_client_is_repaired(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    kill_a_producer(direct)
    got: list[bytes] = []
    run(NativeSteps(direct, "live", "native").create(0))
    with backend.client() as connection:
        waiting = NativeClient(connection, "live", "waiting")
        thread = threading.Thread(target=lambda: got.append(waiting.get()), daemon=True)
        thread.start()
        wait_for_blocked(direct, 1)
        server = start_server("--backend", backend.url, "--auto-repair-after", "1", "--role-timeout", "20")
        with server.client() as client:
            # The put waits until auto-repair has given the role back.
            assert client.sadd(QUEUE, "a") == 1
            (warning,) = wait_for(lambda: warnings(server), "the warning")
            assert "queue 'q' had a problem for" in warning
            assert "held by 'host-1 42'" in warning
            assert warning.endswith("Auto-repair gave the producer role back")
            assert direct.llen("__pressure__:live:consumer_free") == 0
            client.sadd("live", "message")
            join(thread)
    assert got == [b"message"]
    server.end_well()
    assert len(warnings(server)) == 1


def test_a_failed_repair_is_logged_once_and_other_queues_are_repaired(
    direct: Client, backend: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for queue in ("q0", "q1"):
        native = NativeSteps(direct, queue, "native")
        run(native.create(0))
        run(native.put(b"message"))
        direct.rpop(f"__pressure__:{queue}:producer_free")
    produced = "__pressure__:q1:stats:produced_messages"
    direct.set(produced, "not a number")
    attempts = 0
    fix = Doctor.fix

    async def fix_all_but_one(doctor: Doctor, case: Case) -> list[str]:
        nonlocal attempts
        if case.name == b"q0":
            attempts += 1
            raise BackendError("the backend answered with an error")
        return await fix(doctor, case)

    monkeypatch.setattr(Doctor, "fix", fix_all_but_one)

    def are_repaired() -> bool:
        is_free = bool(direct.llen("__pressure__:q1:producer_free"))
        return attempts > 1 and is_free and direct.get(produced) == b"1"

    async def run_auto_repair() -> None:
        broker = default_broker(backend.url)
        await broker.start()
        repairing = asyncio.create_task(AutoRepair(broker, 0.5).run())
        await asyncio.to_thread(wait_for, are_repaired, "the other queue to be repaired")
        repairing.cancel()
        await broker.close()

    asyncio.run(run_auto_repair())
    logged = [record.getMessage() for record in caplog.records if "'q0'" in record.getMessage()]
    assert logged == ["queue 'q0' could not be repaired: the backend answered with an error"]


@pytest.mark.slow
def test_auto_repair_is_off_by_default(client: Client, direct: Client) -> None:
    kill_a_producer(direct)
    # The role timeout of five seconds would be long enough for a repair.
    with pytest.raises(redis.ResponseError, match="INUSE"):
        client.sadd(QUEUE, "a")
    assert direct.llen(f"{BASE}:producer_free") == 0


def test_auto_repair_continues_after_a_restart_of_the_backend(
    start_valkey: StartValkey, start_server: StartServer
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
