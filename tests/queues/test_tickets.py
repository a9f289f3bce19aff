"""Operations on several queues that share a ticket: none is forgotten, and none keeps others from a job."""

import asyncio
import signal
import time

from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.owners import CoroutineOwner
from pressure_server.queues.operations.wait import Ticket, Wait
from tests.support.brokers import default_broker
from tests.support.programs import Client, StartServer, StartValkey, Valkey, wait_for
from tests.support.waiters import Waiter, create, wait_for_blocked, wait_for_waiting

# More jobs than one call makes ready: they leave an operation for another call.
MANY = 1200


def put_delayed(client: Client, seconds: float) -> float:
    """Put many jobs that become due at one moment, at least a second later. Return this moment."""
    due = time.monotonic() + seconds
    pipeline = client.pipeline(transaction=False)
    for _ in range(MANY):
        pipeline.execute_command("PRESSURE.PUT", "q", "m", "DELAY", max(0.1, due - time.monotonic()))
    pipeline.execute()
    if due - time.monotonic() >= 1:
        return due
    client.delete("q")
    create(client, "q", "TYPE", "jobs")
    return put_delayed(client, 3 * seconds)


def test_a_wait_ends_although_many_jobs_become_due_when_its_time_is_up(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    """The operation in flight was to be sent again, and was dropped: the client waited for ever."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "other", "TYPE", "jobs")
        create(client, "q", "TYPE", "jobs")
        due = put_delayed(client, 2)
        waiter.send("BLPOP", "other", "q", due + 1.5 - time.monotonic())
        wait_for_blocked(client, 1)
        backend.process.send_signal(signal.SIGSTOP)
        # The operation is sent when the jobs are due, and its time is up before it is answered.
        time.sleep(max(0, due + 2 - time.monotonic()))
        backend.process.send_signal(signal.SIGCONT)
        assert waiter.reply() == [b"q", b"m"]


class _Told:
    """A listener to the watch: its answers come after all that the backend has told before."""

    def __init__(self) -> None:
        self.armed_once = asyncio.get_running_loop().create_future()

    def armed(self, _name: bytes, _watched: list[bytes], _mask: int | None, _due: bytes | None) -> None:
        self.armed_once.set_result(None)

    def changed(self, _name: bytes) -> None:
        """See KeyListener."""


async def _hear(database: Database) -> None:
    """Return when the database has heard of all changes so far, and has looked at them."""
    (shard,) = database.shards
    for _ in range(3):
        told = _Told()
        shard.notifications.arm(told, b"another", [b""])
        await told.armed_once
        shard.notifications.leave(told, b"another", [b""])


def test_a_try_that_was_not_sent_keeps_nobody_from_a_job(backend: Valkey, client: Client) -> None:
    """A client that has got a job elsewhere is passed over, which was taken for a try that had failed."""

    def join(database: Database, ticket: Ticket) -> Operation:
        wait = Wait(None, ticket=ticket)
        operation = Operation(
            verbs.RESERVE, b"q", [b"=token"], 1, CoroutineOwner(None), wait=wait, options=WAITS
        )
        database.shards[0].join(operation)
        return operation

    async def play() -> bool:
        broker = default_broker(backend.url)
        await broker.start()
        database = broker.default_database
        elsewhere = Ticket()
        gone = join(database, elsewhere)
        await _hear(database)
        elsewhere.served = True
        await asyncio.to_thread(client.rpush, "q", "m")
        await _hear(database)
        late = join(database, Ticket())
        await _hear(database)
        database.cancel(gone)
        assert isinstance(late.owner, CoroutineOwner)
        done, _ = await asyncio.wait((late.owner.first_ended,), timeout=4)
        database.cancel(late)
        await broker.close()
        return bool(done)

    create(client, "q", "TYPE", "jobs")
    assert asyncio.run(play())


def test_a_lost_watch_does_not_try_each_queue(start_valkey: StartValkey, start_server: StartServer) -> None:
    """The operations of one command were tried one after the other: as many calls as queues."""
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    names = [f"q{number}" for number in range(200)]

    def calls() -> int:
        statistics = direct.info("commandstats")
        return sum(int(statistics[f"cmdstat_{name}"]["calls"]) for name in ("evalsha", "fcall"))

    with server.client() as client, backend.client() as direct, Waiter(server.port) as waiter:
        create(client, names[-1])
        waiter.send("PRESSURE.RESERVE", *names, "TIMEOUT", 0)
        wait_for_waiting(client, names[-1], consumers=1)
        before = calls()
        for connection in direct.client_list():
            if "t" in connection["flags"]:  # the one that tracks keys
                direct.client_kill_filter(_id=connection["id"])
        wait_for(lambda: calls() > before, "the command to look again")
        wait_for_waiting(client, names[-1], consumers=1)
        client.rpush(names[100], "m")
        assert waiter.reply()[2] == b"m"
        assert calls() - before < 50
