"""The stage: a server with its backend, and queues of all kinds that are filled again before each case."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hiredis

from tests.standstill.cases import Case, Size, queue
from tests.standstill.watch import Watch, Worst
from tests.support.programs import Client, Server, Valkey
from tests.support.waiters import packed

# In bytes: what the server may buffer for its clients.
BUFFERED = 256 << 20
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the reply's beginning, how long it took, the waits of others, and more memory."""

    case: Case
    reply: str
    seconds: float
    worst: Worst
    memory: int

    @property
    def pause(self) -> float:
        return max(self.worst.ping, self.worst.put_and_take)


class Stage:
    """A server, its backend and the clients that watch."""

    def __init__(self, folder: Path, size: Size, workers: int) -> None:
        self.size = size
        self.valkey = Valkey(folder)
        options = [
            "--backend",
            self.valkey.url,
            "--max-buffered-bytes",
            str(BUFFERED),
            "--slowlog-slower-than",
            "-1",
        ]
        options += ["--max-message-bytes", str(max(size.message, 64 << 10))]
        options += ["--workers", str(workers), "--backend-timeout", "60s"]
        self.server = Server(folder / "log", *options, new_process=True)
        self.client: Client = self.server.client(socket_timeout=_TIMEOUT)
        self._watch: Watch | None = None

    @property
    def processes(self) -> list[int]:
        """The processes that serve clients."""
        main = self.server.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [int(child) for child in children] or [main]

    def watch(self) -> None:
        self._watch = Watch.start(self.server.port, self.processes, self.valkey.process.pid)

    def prepare(self, case: Case) -> None:
        """Fill the queues that the case uses."""
        client, size = self.client, self.size
        client.delete("destination", "dead")
        if case.command.name in (
            "keys",
            "scan",
            "pressure.list",
            "dbsize",
            "randomkey",
            "flushdb",
            "flushall",
        ):
            with client.pipeline(transaction=False) as pipe:
                for number in range(size.queues):
                    pipe.sadd(b"%d" % number + b"a" * (number % 64), "x")
                for number in range(8):
                    pipe.sadd(b"%d" % number + b"a" * (size.message // 32), "x")
                pipe.execute()
        if not case.kind:
            return
        if case.kind == "fat":
            self._fill(b"fat", 8, b"a" * (size.message // 8))
            return
        name = b"log" if case.kind == "group" else case.kind.encode()
        kind = name.decode()
        if client.exists(name):
            # An earlier case may have closed it, or made jobs of its messages.
            about = dict(client.execute_command("PRESSURE.INFO", name))
            if about[b"closed"] or about[b"type"].decode() != kind:
                client.delete(name)
        if not client.exists(name):
            client.execute_command("PRESSURE.CREATE", name, "TYPE", kind)
        if case.kind == "group" and not client.exists(queue("group")):
            client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
        self._fill(name, size.queued, b"")

    def _fill(self, name: bytes, count: int, text: bytes) -> None:
        if self.client.llen(name) >= count // 2:
            return
        for first in range(0, count, 1000):
            messages = [b"%d" % number + text for number in range(first, min(first + 1000, count))]
            self.client.rpush(name, *messages)

    def play(self, case: Case) -> Outcome:
        """Send the request of a case, and read its reply, while the other clients go on."""
        request = packed(*case.words())
        if case.times:
            request = packed("MULTI") + request * case.times + packed("EXEC")
        before = self._memory("VmRSS")
        for process in self.processes:
            Path(f"/proc/{process}/clear_refs").write_text("5")  # resets VmHWM
        if self._watch is not None:
            self._watch.take()
        began = time.monotonic()
        reply = self._ask(request, case.times + 2 if case.times else 1)
        seconds = time.monotonic() - began
        worst = self._watch.take() if self._watch is not None else Worst()
        return Outcome(case, reply, seconds, worst, max(0, self._memory("VmHWM") - before))

    def _ask(self, request: bytes, replies: int) -> str:
        """Return the last reply."""
        reader, reply = hiredis.Reader(), False
        with socket.create_connection(("127.0.0.1", self.server.port), _TIMEOUT) as connected:
            try:
                connected.sendall(request)
                while replies:
                    if (reply := reader.gets()) is not False:
                        replies -= 1
                        continue
                    data = connected.recv(1 << 20)
                    if not data:
                        return "closed"
                    reader.feed(data)
            except ConnectionError:
                return "closed"
            except TimeoutError:
                return "no reply"
        return repr(reply)[:60] if not isinstance(reply, list) else f"{len(reply)} items"

    def _memory(self, field: str) -> int:
        total = 0
        for process in self.processes:
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self.client.close()
        self.server.stop()
        self.valkey.stop()


@contextmanager
def staged(folder: Path, size: Size, workers: int = 1) -> Iterator[Stage]:
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder, size, workers)
    try:
        yield stage
    finally:
        stage.stop()
