"""Beanstalk clients: producers, workers, worker processes that are killed, and a client that kicks."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.beanstalk import Job, JobReader, packed
from tests.chaos.consumers import Consumer
from tests.chaos.journal import Journal
from tests.chaos.messages import message
from tests.chaos.producers import Producer, Put
from tests.chaos.redis_workers import TTRS
from tests.chaos.workers import DELETE, MAX_PRIORITY, Held, JobConsumer, Worker
from tests.support.waiters import Words

# The longest time between two kicks, and between two worker processes, in seconds.
_KICK_INTERVAL = 0.5
_PROCESS_INTERVAL = 1.5
# Seconds for which a worker process lives after its first reply, at most.
_LIFE = 0.2
# Sends the second argument to the port in the first, and prints the replies.
_PROCESS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.argv[2].encode())
while data := connection.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
"""


class Putter(Producer):
    """Puts with random priorities, times to run, and delays. A full queue refuses these puts at once."""

    batches = (1, 1, 5, 20)

    def _puts(self, count: int) -> list[Put]:
        puts: list[Put] = []
        tube = ""
        for _ in range(count):
            if not tube or self.chance.random() < 0.3:
                tube = self.chance.choice(self.queues)
                puts.append((("use", tube), []))
            ttr = self.chance.choice(TTRS)
            priority = self.chance.choice((0, 1024, self.chance.randrange(MAX_PRIORITY), 2**32 - 1))
            delay = self.chance.choice((0, 0, 0, 0, 1))
            name = self.sender.new_job(tube, ttr)
            puts.append((("put", priority, delay, ttr, message(name)), [name]))
        return puts


@dataclass
class BeanstalkWorker(Worker):
    """Reserves from one tube or several, one command or several in one write."""

    async def _reserve(self, most: int) -> list[Held]:
        since = time.monotonic()
        watch = _watch(self.queues)
        wait = self.chance.choice((0, 1))
        reserves: list[Words] = [("reserve-with-timeout", wait), *[("reserve-with-timeout", 0)] * (most - 1)]
        replies = await self.caller.ask(*watch, *reserves, waits=wait)
        held: list[Held] = []
        for reply in replies:
            if isinstance(reply, Job):
                held += self._hold(reply.id, reply.data, since)
        return held

    def _words(self, event: str, job: Held) -> Words:
        priority = self.chance.randrange(MAX_PRIORITY)
        match event:
            case "release":
                return ("release", job.id, priority, 0)
            case "release later":
                return ("release", job.id, priority, 1)
            case "bury":
                return ("bury", job.id, priority)
            case "touch":
                return ("touch", job.id)
            case _:
                return (DELETE, job.id)


def _watch(tubes: Sequence[str]) -> list[Words]:
    """Return the commands that make these the watched tubes of a connection."""
    return [*(("watch", tube) for tube in tubes), ("ignore", "default")]


class MortalWorker(JobConsumer):
    """Runs a process that reserves jobs, and kills it by SIGKILL; then the next one."""

    async def round(self) -> bool:
        await asyncio.sleep(self.chance.uniform(0, _PROCESS_INTERVAL))
        await self._run(self.chance.choice((1, 5, 20)))
        return True

    async def _run(self, count: int) -> None:
        requests = [*_watch(self.queues), *[("reserve-with-timeout", 1)] * count]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _PROCESS,
            str(self.caller.target.beanstalk_port), b"".join(map(packed, requests)),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        since = time.monotonic()
        reader = JobReader()
        try:
            reader.feed(await process.stdout.read(1 << 16))
            await asyncio.sleep(self.chance.uniform(0, _LIFE))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        reader.feed(await process.stdout.read())
        while (reply := reader.gets()) is not False:
            if isinstance(reply, Job) and self._hold(reply.id, reply.data, since):
                self._count("left by kill -9", 1)


@dataclass
class Kicker(Consumer):
    """Kicks buried jobs, by number or by id. Without buried jobs, `kick` would kick delayed ones."""

    journal: Journal

    async def round(self) -> bool:
        await asyncio.sleep(self.chance.uniform(0, _KICK_INTERVAL))
        for tube in self.queues:
            replies = await self.caller.ask(("use", tube), ("peek-buried",))
            buried = replies[1] if len(replies) > 1 else None
            if isinstance(buried, Job):
                await self._kick(tube, buried)
        return True

    async def _kick(self, tube: str, buried: Job) -> None:
        kick: Words = ("kick", self.chance.randint(1, 50))
        if self.chance.random() < 0.3:
            kick = ("kick-job", buried.id)
        replies: list[Any] = await self.caller.ask(("use", tube), kick)
        if len(replies) > 1 and isinstance(replies[1], bytes):
            _, _, count = replies[1].partition(b" ")
            self.journal.jobs["kicked"] += int(count or replies[1] == b"KICKED")
