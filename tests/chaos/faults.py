"""Faults: doing what the plan says to the stand, and mending it again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from datetime import datetime, timedelta

from tests.chaos import plan
from tests.chaos.causes import Incident
from tests.chaos.consumers import OWN
from tests.chaos.hang_ups import HangUps
from tests.chaos.messages import flags_of, name_of
from tests.chaos.plan import Fault, Kind, Target
from tests.chaos.stand import Proxy, Stand
from tests.support.faults import (
    SCRIPTS_FLUSHED,
    SUBSCRIBERS_DISCONNECTED,
    BackendFault,
    hanging,
    killed,
    stopped,
)
from tests.support.programs import Client
from tests.support.relay import Relay
from tests.support.waiters import packed

_PREFIX = b"__pressure__:"
_NEVER_SENT = b"0.0:forged"
_BURST = 200
_AGAIN = 0.01


class Faults:
    """Does faults; `done` are those that have been mended again."""

    def __init__(self, stand: Stand, hang_ups: HangUps) -> None:
        self.done: list[Incident] = []
        self._stand = stand
        self._hang_ups = hang_ups
        # What is broken is not broken again before it has been mended.
        self._locks: dict[tuple[Target, int], asyncio.Lock] = {}

    async def all(self, faults: Sequence[Fault]) -> None:
        """One after the other, as planned; returns when all is mended."""
        async with asyncio.TaskGroup() as overlapping:
            for fault in faults:
                await asyncio.sleep(fault.pause)
                lock = self._lock(fault)
                await lock.acquire()
                doing = overlapping.create_task(self._do(fault, lock))
                if not fault.overlaps:
                    await asyncio.wait((doing,))

    def _note(self, incident: Incident) -> None:
        """In a file, with the time of day, as the logs have it."""
        seconds = incident.ended - incident.began
        began = datetime.now() - timedelta(seconds=seconds)
        with self._stand.file_of_faults.open("a") as file:
            file.write(f"{began:%H:%M:%S.%f} {seconds:6.2f} s  {incident.kind.name} {incident.proxy}\n")

    def _lock(self, fault: Fault) -> asyncio.Lock:
        place = 0 if fault.kind.target is Target.BACKEND else fault.place
        return self._locks.setdefault((fault.kind.target, place), asyncio.Lock())

    async def _do(self, fault: Fault, lock: asyncio.Lock) -> None:
        began = time.monotonic()
        try:
            await _WAYS[fault.kind](self, fault, random.Random(fault.seed))
        finally:
            lock.release()
        proxy = "" if fault.kind.target is Target.BACKEND else self._proxy(fault).name
        incident = Incident(fault.kind, proxy, began, time.monotonic())
        self.done.append(incident)
        self._note(incident)

    def _proxy(self, fault: Fault) -> Proxy:
        return self._stand.proxies[fault.place]

    async def _end_proxy(self, fault: Fault, _chance: random.Random) -> None:
        proxy = self._proxy(fault)
        await proxy.end(signal.SIGTERM if fault.kind is plan.PROXY_ENDED else signal.SIGKILL)
        await asyncio.sleep(fault.seconds)
        await proxy.start()

    async def _stop_proxy(self, fault: Fault, _chance: random.Random) -> None:
        async with _in_a_thread(stopped(self._proxy(fault).process)):
            await asyncio.sleep(fault.seconds)

    async def _break_backend(self, fault: Fault, _chance: random.Random) -> None:
        async with _in_a_thread(_BACKEND_FAULTS[fault.kind](self._stand.backend)):
            await asyncio.sleep(fault.seconds)

    async def _hang_up(self, fault: Fault, chance: random.Random) -> None:
        """Let clients send and close while the backend stands still, so no reply can be on its way."""
        async with self._hang_ups.prepared(fault.place), _in_a_thread(hanging(self._stand.backend)):
            await self._hang_ups.send_and_close(fault.seconds, chance)

    def _relay(self, fault: Fault) -> Relay:
        proxy = self._proxy(fault)
        return proxy.behind if fault.kind.target is Target.BACKEND_LINE else proxy.before

    @asynccontextmanager
    async def _trouble(self, fault: Fault) -> AsyncIterator[Relay]:
        """The relay, in whatever state the block brings it, until the fault's time is over."""
        relay = self._relay(fault)
        try:
            yield relay
            await asyncio.sleep(fault.seconds)
        finally:
            relay.heal()

    async def _cut(self, fault: Fault, chance: random.Random) -> None:
        self._relay(fault).cut(reset=chance.random() < 0.5)

    async def _half_cut(self, fault: Fault, chance: random.Random) -> None:
        async with self._trouble(fault) as relay:
            relay.cut_after(chance.choice((1, 2, 5, 20, 100, 1000, 10000)))

    async def _stall(self, fault: Fault, _chance: random.Random) -> None:
        async with self._trouble(fault) as relay:
            relay.stall()

    async def _slow(self, fault: Fault, chance: random.Random) -> None:
        async with self._trouble(fault) as relay:
            relay.slow(chance.uniform(0.001, 0.2), chance.uniform(1e4, 1e6))

    async def _refuse(self, fault: Fault, _chance: random.Random) -> None:
        async with self._trouble(fault) as relay:
            relay.refuse()

    async def _send_garbage(self, fault: Fault, chance: random.Random) -> None:
        """From strangers that do not even stay for the answer."""
        junk = chance.choice(_JUNK) + chance.randbytes(chance.randrange(20_000))
        proxy = self._proxy(fault)
        for cut in sorted(chance.sample(range(len(junk)), min(5, len(junk)))):
            for port in (proxy.port, proxy.memcached_port):
                await self._say(port, junk[:cut])

    async def _burst(self, fault: Fault, _chance: random.Random) -> None:
        """As many at once, half of which wait for something that never comes."""
        words = [packed("PING"), packed("BLPOP", "nobody-puts-here", 60)]
        await asyncio.gather(*(self._say(self._proxy(fault).port, words[n % 2]) for n in range(_BURST)))

    async def _say(self, port: int, data: bytes) -> None:
        with contextlib.suppress(OSError), socket.socket() as stranger:
            stranger.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(1):
                await loop.sock_connect(stranger, ("127.0.0.1", port))
                await loop.sock_sendall(stranger, data)

    async def _sabotage(self, fault: Fault, _chance: random.Random) -> None:
        """Behind everybody's back, on the first queue that has a message."""
        while not await self._control_a_message(fault.kind):  # noqa: ASYNC110 -- the backend tells us of none
            await asyncio.sleep(_AGAIN)

    async def _control_a_message(self, kind: Kind) -> bool:
        def act() -> bool:
            with self._stand.backend.client() as control:
                return any(_harm(control, key, kind) for key in _queues(control))

        return await asyncio.to_thread(act)


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
    """Keys of queues; not of those with what has been received already."""
    bases = [key.removesuffix(b":bound") for key in control.keys(_PREFIX + b"*:bound")]
    return [base for base in bases if not base.startswith(_PREFIX + OWN.encode())]


def _harm(control: Client, key: bytes, kind: Kind) -> bool:
    """Whether there was a message to do it to."""
    if kind is plan.STOLEN:
        return control.rpop(key) is not None
    if kind is plan.FORGED:
        return bool(control.lpushx(key, _NEVER_SENT))
    oldest = control.lindex(key, -1)
    # Of equal messages, of which one has flags, either may come with them.
    return oldest is not None and not flags_of(name_of(oldest)) and bool(control.lpushx(key, oldest))


# What junk begins with.
_JUNK = (
    b"",
    b"*4294967295\r\n",
    b"*3\r\n$4\r\nSADD\r\n$999999999\r\n",
    b"*-7\r\n$x\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"*2\r\n$5\r\nBLPOP\r\n",
    b"set nobody-takes-this 0 0 999999999\r\n",
    b"\x80\x01\x00\x03",
)

_BACKEND_FAULTS: dict[Kind, BackendFault] = {
    plan.BACKEND_KILLED: killed,
    plan.BACKEND_AWAY: killed,
    plan.BACKEND_STOPPED: hanging,
    plan.BACKEND_HANGS: hanging,
    plan.CLIENTS_KILLED: SUBSCRIBERS_DISCONNECTED,
    plan.SCRIPTS_FLUSHED: SCRIPTS_FLUSHED,
}

_WAYS: dict[Kind, Callable[[Faults, Fault, random.Random], Awaitable[None]]] = {
    plan.PROXY_KILLED: Faults._end_proxy,
    plan.PROXY_DEAD: Faults._end_proxy,
    plan.PROXY_ENDED: Faults._end_proxy,
    plan.PROXY_STOPPED: Faults._stop_proxy,
    plan.PROXY_ZOMBIE: Faults._stop_proxy,
    **dict.fromkeys(_BACKEND_FAULTS, Faults._break_backend),
    plan.CLIENTS_HANG_UP: Faults._hang_up,
    plan.BACKEND_CUT: Faults._cut,
    plan.BACKEND_HALF_CUT: Faults._half_cut,
    plan.BACKEND_STALLED: Faults._stall,
    plan.BACKEND_SILENT: Faults._stall,
    plan.BACKEND_SLOW: Faults._slow,
    plan.BACKEND_REFUSED: Faults._refuse,
    plan.BACKEND_GONE: Faults._refuse,
    plan.CLIENTS_CUT: Faults._cut,
    plan.CLIENTS_HALF_CUT: Faults._half_cut,
    plan.CLIENTS_STALLED: Faults._stall,
    plan.CLIENTS_SLOW: Faults._slow,
    plan.CLIENTS_REFUSED: Faults._refuse,
    plan.GARBAGE: Faults._send_garbage,
    plan.BURST: Faults._burst,
    plan.STOLEN: Faults._sabotage,
    plan.COPIED: Faults._sabotage,
    plan.FORGED: Faults._sabotage,
}
