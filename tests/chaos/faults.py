"""Faults: break parts of the stand as planned, and repair them."""

import asyncio
import contextlib
import math
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta

from redis.crc import key_slot

from tests.chaos import plan
from tests.chaos.backends import ClusterBackend, FailoverBackend, SingleBackend
from tests.chaos.causes import Incident
from tests.chaos.consumers import OWN
from tests.chaos.hang_ups import HangUps
from tests.chaos.messages import flags_of, name_of
from tests.chaos.once import LOG_PREFIX, ONCE_PREFIX
from tests.chaos.plan import Fault, Kind, Target
from tests.chaos.ring_clients import RING
from tests.chaos.stand import Proxy, Stand
from tests.support.cluster import Cluster
from tests.support.faults import (
    SCRIPTS_FLUSHED,
    SUBSCRIBERS_DISCONNECTED,
    BackendFault,
    hanging,
    stopped,
)
from tests.support.network import Cuts
from tests.support.nodes import Engine
from tests.support.programs import Client, Valkey
from tests.support.relay import Relay
from tests.support.sharded import PLACEMENT
from tests.support.waiters import packed

_PREFIX = b"__pressure__:"
_NEVER_SENT = b"0.0:forged"
_BURST = 200
_POLL_INTERVAL = 0.01
# For how many seconds a lossy network loses all packets, and then none.
_LOSS = (0.02, 0.3)


class Faults:
    """Does the planned faults. `done` lists those that have been repaired."""

    def __init__(self, stand: Stand, hang_ups: HangUps, is_acknowledged: Callable[[bytes], bool]) -> None:
        """`is_acknowledged` tells of a message's name whether it would be lost if it were stolen."""
        self.done: list[Incident] = []
        self._stand = stand
        self._hang_ups = hang_ups
        self._is_acknowledged = is_acknowledged
        # A target is not broken again before it has been repaired.
        self._locks: dict[tuple[Target, int], asyncio.Lock] = {}
        self._stay_is_over = asyncio.Event()

    async def all(self, faults: Sequence[Fault]) -> None:
        """Do the faults as planned. Return when everything is repaired."""
        async with asyncio.TaskGroup() as overlapping:
            for fault in faults:
                await asyncio.sleep(fault.pause)
                lock = self._lock(fault)
                await lock.acquire()
                doing = overlapping.create_task(self._do(fault, lock))
                if not fault.overlaps:
                    await asyncio.wait((doing,))

    async def stay(self, kind: Kind | None, seed: int) -> None:
        """Do a fault of this kind, if any, at the first server. Return when it has been repaired."""
        if kind is not None:
            fault = Fault(kind, place=0, pause=0.0, seconds=math.inf, overlaps=True, seed=seed)
            lock = self._lock(fault)
            await lock.acquire()
            await self._do(fault, lock)

    def end_stay(self) -> None:
        """Let the fault that stays be repaired."""
        self._stay_is_over.set()

    async def _last(self, fault: Fault) -> None:
        """Return when it is time to repair the fault."""
        if math.isinf(fault.seconds):
            await self._stay_is_over.wait()
        else:
            await asyncio.sleep(fault.seconds)

    def _log(self, incident: Incident) -> None:
        """Append the incident to a file, with the time of day as in the servers' logs."""
        seconds = incident.ended - incident.began
        began = datetime.now() - timedelta(seconds=seconds)
        with (self._stand.folder / "faults.txt").open("a") as file:
            file.write(f"{began:%H:%M:%S.%f} {seconds:6.2f} s  {incident.kind.name} {incident.proxy}\n")

    def _lock(self, fault: Fault) -> asyncio.Lock:
        place = 0 if fault.kind.target is Target.BACKEND else fault.place
        return self._locks.setdefault((fault.kind.target, place), asyncio.Lock())

    async def _do(self, fault: Fault, lock: asyncio.Lock) -> None:
        began = time.monotonic()
        try:
            await _ACTIONS[fault.kind](self, fault, random.Random(fault.seed))
        finally:
            lock.release()
        proxy = "" if fault.kind.target is Target.BACKEND else self._proxy(fault).name
        incident = Incident(fault.kind, proxy, began, time.monotonic())
        self.done.append(incident)
        self._log(incident)

    def _proxy(self, fault: Fault) -> Proxy:
        return self._stand.proxies[fault.place]

    async def _end_proxy(self, fault: Fault, _chance: random.Random) -> None:
        proxy = self._proxy(fault)
        await proxy.end(signal.SIGTERM if fault.kind is plan.PROXY_ENDED else signal.SIGKILL)
        await self._last(fault)
        await proxy.start()

    async def _break_worker(self, fault: Fault, chance: random.Random) -> None:
        """Kill or stop one of the processes of a server. The supervisor starts another if it dies."""
        workers = self._proxy(fault).workers
        if not workers:
            return  # the last one has died, and the next one has not started
        worker = chance.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL if fault.kind is plan.WORKER_KILLED else signal.SIGSTOP)
            await self._last(fault)
            os.kill(worker, signal.SIGCONT)

    async def _stop_proxy(self, fault: Fault, _chance: random.Random) -> None:
        async with _in_a_thread(stopped(self._proxy(fault).process)):
            await self._last(fault)

    @property
    def _valkey(self) -> Valkey:
        assert isinstance(self._stand.backend, SingleBackend)
        return self._stand.backend.valkey

    async def _break_backend(self, fault: Fault, _chance: random.Random) -> None:
        async with _in_a_thread(_BACKEND_FAULTS[fault.kind](self._valkey)):
            await self._last(fault)

    async def _break_cluster(self, fault: Fault, chance: random.Random) -> None:
        backend = self._stand.backend
        assert isinstance(backend, ClusterBackend)
        await _CLUSTER_FAULTS[fault.kind](backend.cluster, fault.seconds, chance)

    async def _cut_node(self, fault: Fault, chance: random.Random) -> None:
        """Cut the power of a node. A master starts as a replica, after another one has taken its place."""
        backend = self._failover_backend
        if fault.kind is plan.MASTER_CUT:
            node = await backend.cut_a_master(chance)
        else:
            node = await backend.replica(chance)
            node.cut_power(chance)
        await self._last(fault)
        await node.start()
        await backend.wait_until_healed()

    async def _partition(self, fault: Fault, chance: random.Random) -> None:
        cuts = self._some_cuts(chance)
        async with self._cut(cuts):
            await self._last(fault)
        await self._failover_backend.wait_until_healed()

    async def _lose_packets(self, fault: Fault, chance: random.Random) -> None:
        """Cut connections again and again, so shortly that TCP sends again what was lost."""
        cuts, until = self._some_cuts(chance), time.monotonic() + fault.seconds
        while time.monotonic() < until:
            async with self._cut(cuts):
                await asyncio.sleep(chance.uniform(*_LOSS))
            await asyncio.sleep(chance.uniform(*_LOSS))
        await self._failover_backend.wait_until_healed()

    @property
    def _failover_backend(self) -> FailoverBackend:
        assert isinstance(self._stand.backend, FailoverBackend)
        return self._stand.backend

    def _some_cuts(self, chance: random.Random) -> Cuts:
        """Return cuts of a node from some or all of the others and the proxies, in one direction or both."""
        node = chance.choice(self._failover_backend.machines)
        proxies = [proxy.machine for proxy in self._stand.proxies if proxy.machine is not None]
        others = [machine for machine in self._failover_backend.network.machines if machine is not node]
        far = chance.choice(
            (others, [one for one in others if one not in proxies], proxies, [chance.choice(others)])
        )
        ways = chance.choice(((True,), (False,), (True, False)))
        return [(node, other) if out else (other, node) for other in far for out in ways]

    @asynccontextmanager
    async def _cut(self, cuts: Cuts) -> AsyncIterator[None]:
        network = self._failover_backend.network
        await asyncio.to_thread(network.cut, cuts)
        try:
            yield
        finally:
            await asyncio.to_thread(network.heal, cuts)

    async def _lose_shards(self, fault: Fault, chance: random.Random) -> None:
        """Kill a master and its replica, so that nobody has the queues of its shards."""
        backend = self._stand.backend
        assert isinstance(backend, ClusterBackend)
        master = chance.choice(await backend.cluster.masters())
        nodes = [master, *await backend.cluster.replicas_of(master)]
        for node in nodes:
            node.kill()
        await self._last(fault)
        for node in nodes:
            await node.start()
        await backend.wait_until_healed()

    async def _hang_up(self, fault: Fault, chance: random.Random) -> None:
        """Let clients send and close while the backend is stopped, so that no reply is on its way."""
        async with self._hang_ups.prepared(fault.place), _in_a_thread(hanging(self._valkey)):
            await self._hang_ups.send_and_close(fault.seconds, chance)

    async def _break_line(self, fault: Fault, chance: random.Random) -> None:
        proxy = self._proxy(fault)
        relay = proxy.backend_relay if fault.kind.target is Target.BACKEND_LINE else proxy.client_relay
        try:
            _LINE_FAULTS[fault.kind](relay, chance)
            await self._last(fault)
        finally:
            relay.heal()

    async def _send_garbage(self, fault: Fault, chance: random.Random) -> None:
        """Send parts of some garbage. The clients close without reading."""
        garbage = chance.choice(_GARBAGE) + chance.randbytes(chance.randrange(20_000))
        proxy = self._proxy(fault)
        for end in sorted(chance.sample(range(len(garbage)), min(5, len(garbage)))):
            for port in (proxy.port, proxy.memcached_port, proxy.beanstalk_port):
                await _send_and_close(port, garbage[:end])

    async def _burst(self, fault: Fault, _chance: random.Random) -> None:
        """Open many connections at once. Half of their clients wait on a queue without puts."""
        requests = [packed("PING"), packed("BLPOP", "nobody-puts-here", 60)]
        port = self._proxy(fault).port
        await asyncio.gather(*(_send_and_close(port, requests[n % 2]) for n in range(_BURST)))

    async def _sabotage(self, fault: Fault, _chance: random.Random) -> None:
        """Change the first queue that has a message, directly in the backend."""
        harm = _HARM_TO_LOGS.get(fault.kind)

        def act() -> bool:
            with self._valkey.client() as control:
                if harm is not None:
                    return harm(control)
                return any(_harm(control, key, fault.kind, self._is_acknowledged) for key in _queues(control))

        while not await asyncio.to_thread(act):  # noqa: ASYNC110 -- the backend sends no event
            await asyncio.sleep(_POLL_INTERVAL)


async def _send_and_close(port: int, data: bytes) -> None:
    with contextlib.suppress(OSError), socket.socket() as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(1):
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, data)


@asynccontextmanager
async def _in_a_thread(fault: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Begin and end a fault without blocking the loop."""
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, fault)
        try:
            yield
        finally:
            await asyncio.to_thread(stack.close)


def _queues(control: Client) -> list[bytes]:
    """Return the keys of queues that may be harmed.

    They are not the ring, nor queues of which every message is counted, nor those of reliable consumers,
    which may have read the messages.
    """
    bases = [key.removesuffix(b":bound") for key in control.keys(_PREFIX + b"*:bound")]
    others = tuple(_PREFIX + prefix.encode() for prefix in (ONCE_PREFIX, LOG_PREFIX, RING))
    return [base for base in bases if not base.startswith(others) and b"}" + OWN.encode() not in base]


def _harm(control: Client, key: bytes, kind: Kind, is_acknowledged: Callable[[bytes], bool]) -> bool:
    """Steal, forge or copy a message. Return False if the queue has none that will do."""
    oldest = control.lindex(key, -1)
    if kind is plan.STOLEN:
        # Others would not be lost.
        will_do = oldest is not None and is_acknowledged(oldest.partition(b":")[0])
        return will_do and bool(control.lrem(key, -1, oldest))
    if kind is plan.FORGED:
        return bool(control.lpushx(key, _NEVER_SENT))
    if b"{" in key:
        return False  # a reliable consumer may move both copies to its queue, and remove them as one
    # If one of two equal messages has flags, either may be delivered with them.
    return oldest is not None and not flags_of(name_of(oldest)) and bool(control.lpushx(key, oldest))


def _copy_in(control: Client, pattern: bytes) -> bool:
    """Put the oldest message of a list again. Return False if all are empty."""
    for key in control.keys(_PREFIX + pattern + b":bound"):
        oldest = control.lindex(key.removesuffix(b":bound"), -1)
        if oldest is not None and control.lpushx(key.removesuffix(b":bound"), oldest):
            return True
    return False


def _steal_from_group(control: Client) -> bool:
    """Delete a ready job of a group, with all that is noted of it. Return False if there is none."""
    for key in control.keys(_PREFIX + LOG_PREFIX.encode() + b"*+*:ext:ready"):
        base = key.removesuffix(b":ext:ready")
        for job, _ in control.zpopmin(key):
            control.hdel(base + b":ext:jobs", job, job + b":")
            control.zrem(base + b":ext:offsets", job)
            return True
    return False


_HARM_TO_LOGS: dict[Kind, Callable[[Client], bool]] = {
    plan.COPIED_ONCE: lambda control: _copy_in(control, ONCE_PREFIX.encode() + b"*"),
    plan.COPIED_IN_LOG: lambda control: _copy_in(control, LOG_PREFIX.encode() + b"*"),
    plan.STOLEN_FROM_GROUP: _steal_from_group,
}


async def _move_slot(cluster: Cluster, seconds: float, chance: random.Random) -> None:
    """Move the slot of a shard to another master. For `seconds`, each of the two has some of its keys."""
    # A failover that is not over would make one of the two a replica in the middle of the move.
    await cluster.wait_until_agreed()
    slot = key_slot(chance.choice(PLACEMENT.prefixes))
    source = await cluster.master_of(slot)
    target = chance.choice([node for node in await cluster.masters() if node is not source])
    if cluster.engine is Engine.VALKEY:
        await cluster.move_atomically(slot, target)
        return
    move = await cluster.legacy_move(slot, target)
    async with cluster.without_failovers():
        await move.begin()
        keys = await move.keys_left()
        if keys:
            await move.migrate(*chance.sample(keys, chance.randint(1, len(keys))))
        await asyncio.sleep(seconds)
        await move.migrate()
        await move.finish()


async def _fail_over(cluster: Cluster, _seconds: float, chance: random.Random) -> None:
    """Let a replica take the place of a master that is well. A master that has died may have none yet."""
    await cluster.fail_over(chance.choice(await cluster.replicas()))


_CLUSTER_FAULTS: dict[Kind, Callable[[Cluster, float, random.Random], Awaitable[None]]] = {
    plan.SLOT_MOVED: _move_slot,
    plan.FAILED_OVER: _fail_over,
}

# The beginnings of garbage.
_GARBAGE = (
    b"",
    b"*4294967295\r\n",
    b"*3\r\n$4\r\nSADD\r\n$999999999\r\n",
    b"*-7\r\n$x\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"*2\r\n$5\r\nBLPOP\r\n",
    b"set nobody-takes-this 0 0 999999999\r\n",
    b"\x80\x01\x00\x03",
    b"put 0 0 1 4294967295\r\n",
)


_LINE_FAULTS: dict[Kind, Callable[[Relay, random.Random], None]] = {
    **dict.fromkeys(
        (plan.BACKEND_CUT, plan.CLIENTS_CUT),
        lambda relay, chance: relay.cut(reset=chance.random() < 0.5),
    ),
    **dict.fromkeys(
        (plan.BACKEND_HALF_CUT, plan.CLIENTS_HALF_CUT),
        lambda relay, chance: relay.cut_after(chance.choice((1, 2, 5, 20, 100, 1000, 10000))),
    ),
    **dict.fromkeys(
        (plan.BACKEND_STALLED, plan.BACKEND_SILENT, plan.CLIENTS_STALLED),
        lambda relay, _: relay.stall(),
    ),
    **dict.fromkeys(
        (plan.BACKEND_SLOW, plan.CLIENTS_SLOW),
        lambda relay, chance: relay.slow(chance.uniform(0.001, 0.2), chance.uniform(1e4, 1e6)),
    ),
    **dict.fromkeys(
        (plan.BACKEND_REFUSED, plan.BACKEND_GONE, plan.CLIENTS_REFUSED),
        lambda relay, _: relay.refuse(),
    ),
}


@contextmanager
def _without_power(valkey: Valkey) -> Iterator[None]:
    """Cut the power of the backend, and start it again at the end of the block."""
    valkey.cut_power(random.Random())
    try:
        yield
    finally:
        valkey.start()


_BACKEND_FAULTS: dict[Kind, BackendFault] = {
    plan.POWER_CUT: _without_power,
    plan.LONG_POWER_CUT: _without_power,
    plan.BACKEND_STOPPED: hanging,
    plan.BACKEND_HANGS: hanging,
    plan.CLIENTS_KILLED: SUBSCRIBERS_DISCONNECTED,
    plan.SCRIPTS_FLUSHED: SCRIPTS_FLUSHED,
}

_ACTIONS: dict[Kind, Callable[[Faults, Fault, random.Random], Awaitable[None]]] = {
    **dict.fromkeys((plan.PROXY_KILLED, plan.PROXY_DEAD, plan.PROXY_ENDED), Faults._end_proxy),
    **dict.fromkeys((plan.PROXY_STOPPED, plan.PROXY_ZOMBIE), Faults._stop_proxy),
    **dict.fromkeys(_BACKEND_FAULTS, Faults._break_backend),
    **dict.fromkeys(_CLUSTER_FAULTS, Faults._break_cluster),
    **dict.fromkeys((plan.MASTER_CUT, plan.REPLICA_CUT), Faults._cut_node),
    plan.PARTITION: Faults._partition,
    plan.LOSSY: Faults._lose_packets,
    plan.SHARDS_LOST: Faults._lose_shards,
    **dict.fromkeys(plan.KINDS_OF_WORKERS, Faults._break_worker),
    plan.CLIENTS_HANG_UP: Faults._hang_up,
    **dict.fromkeys(_LINE_FAULTS, Faults._break_line),
    plan.GARBAGE: Faults._send_garbage,
    plan.BURST: Faults._burst,
    **dict.fromkeys((*plan.SABOTAGE, *plan.SABOTAGE_OF_LOGS), Faults._sabotage),
}
