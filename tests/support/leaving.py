"""Run the cells of the matrix in tests/faults/test_leaving.py.

A cell is a command that takes messages, a way to leave and a moment. All cells of one way and one moment run
together: each command has its own queues, and several clients send it.
"""

import contextlib
import random
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis
import redis

from tests.support.faults import stopped
from tests.support.guards import Authority
from tests.support.hostile import settled
from tests.support.ledger import Event, Ledger
from tests.support.programs import TIMEOUT, Client, Server, Valkey, records, wait_for
from tests.support.waiters import Connection, packed, replies_in

SMALL, LARGE = 12, 100_000
# Timeouts of commands, in seconds: the first ends during a test, the second does not.
SHORT, LONG = 0.1, 60
_MESSAGE = re.compile(rb"([qrg]):(\d{6}):.*", re.DOTALL)
_VALUE = re.compile(rb"VALUE \S+ \d+ (\d+)[^\r]*\r\n")


@dataclass(frozen=True)
class Taker:
    """Commands that one client sends together, separated by semicolons and repeated `times` times.

    Queues {q} and {r} have messages, {m} and {z} are empty. {own} is a message that no other client names.
    {t} is a timeout. A client takes at most `takes` messages from a queue.
    """

    commands: str
    takes: int = 1
    waits: bool = False
    moves: bool = False
    opens: bool = False
    memcached: bool = False
    times: int = 1

    def __str__(self) -> str:
        name = self.commands if self.times == 1 else f"({self.commands})x{self.times}"
        return f"memcached {name}" if self.memcached else name


@dataclass(frozen=True)
class Way:
    """How a client leaves: `action` is a method of Leaver or of Group.

    With `reads`, the client reads every reply until the server closes; with `quits`, it sends QUIT first. It
    sends `data` (for RESP, for memcached) before it leaves.
    """

    name: str
    action: str
    reads: bool = False
    quits: bool = False
    resp_only: bool = False
    times_out: bool = False
    idles: bool = False
    data: tuple[bytes, bytes] | None = None


@dataclass(frozen=True)
class Moment:
    """When a client leaves: `steps` are methods of Group. A message has `size` bytes.

    The client sends `before` (for RESP, for memcached) before the taker. With `may_lose`, a reply may already
    be on its way, so a client that does not read loses its messages. With `one_by_one`, clients leave one
    after the other, so the server puts back the messages of each by itself.
    """

    name: str
    steps: str
    before: tuple[str, str] = ("", "")
    waits: bool = False
    size: int = SMALL
    may_lose: bool = False
    one_by_one: bool = False

    @property
    def stops_server(self) -> bool:
        return "stop_server" in self.steps


def fits(taker: Taker, way: Way, moment: Moment) -> bool:
    """Return whether the three can be combined."""
    has_timeout = "{t}" in taker.commands * taker.waits + moment.before[0]
    return not (
        (moment.waits and not taker.waits)
        # These commands do not wait for a queue to exist.
        or (moment.waits and "create" not in moment.steps and taker.commands.startswith("PRESSURE"))
        # Clients of memcached cannot be killed by name.
        or (way.resp_only and taker.memcached)
        # At these moments, the reply comes before the timeout.
        or (way.times_out and (not has_timeout or moment.name in ("at once", "unread")))
        # A stopped server closes no idle client, and no server one with an open read.
        or (way.idles and (moment.stops_server or taker.opens))
        # Messages in the kernel's buffers are lost: tests/faults/test_last_hop.py tests that.
        or (moment.name == "unread" and not way.reads)
    )


class Tally(Counter[str]):
    """The sums of ledgers.

    `disordered` counts queues out of order, `wrong` queues with wrong statistics, `stuck` call records left.
    """

    def is_clean(self, may_lose: int = 0) -> bool:
        """Return whether nothing went wrong, and at most `may_lose` messages were lost."""
        wrong = ("doubled", "strange", "disordered", "wrong", "stuck")
        return self["lost"] <= may_lose and not any(self[what] for what in wrong)

    def __str__(self) -> str:
        return ", ".join(f"{what} {count}" for what, count in self.items())


class Place:
    """A backend with three servers.

    `other` takes puts while `server` is stopped, and `impatient` closes idle clients.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        certificate, key = self.authority.issue("server")
        self._contexts = {
            "tls": self.authority.client_context(),
            "tls 1.2": self.authority.client_context(),
        }
        self._contexts["tls 1.2"].maximum_version = ssl.TLSVersion.TLSv1_2
        self.backend = Valkey(folder)
        self._folder = folder
        self._options = [
            "--backend", self.backend.url, "--backend-timeout", "30", "--backend-grace", "30",
            "--listen", "memcached://127.0.0.1:0", "--listen", "resps://127.0.0.1:0",
            "--listen", "memcacheds://127.0.0.1:0",
            "--tls-certificate", str(certificate), "--tls-key", str(key),
        ]  # fmt: skip
        self.server = self._start("patient")
        self.other = self._start("other")
        self.impatient = self._start("impatient", "--idle-timeout", "1")
        self.direct: Client = self.backend.client()
        self.groups = 0

    def _start(self, name: str, *options: str) -> Server:
        listen = [
            "--listen", f"resp+unix://{self._folder}/{name}.resp",
            "--listen", f"memcached+unix://{self._folder}/{name}.memcached",
        ]  # fmt: skip
        return Server(self._folder / f"{name}.log", *self._options, *listen, *options)

    def connect(self, server: Server, transport: str, *, memcached: bool, size: int) -> socket.socket:
        scheme = "memcached" if memcached else "resp"
        connected = socket.socket(socket.AF_UNIX if transport == "unix" else socket.AF_INET)
        connected.settimeout(TIMEOUT)
        if size == LARGE:
            # Replies must not fit into the kernel's buffers.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        if transport == "unix":
            connected.connect(str(server.log_file.with_suffix(f".{scheme}")))
            return connected
        context = self._contexts.get(transport)
        connected.connect(("127.0.0.1", server.port_of(f"{scheme}s" if context else scheme)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            return context.wrap_socket(connected, server_hostname="localhost")
        return connected

    def close(self) -> None:
        self.direct.close()
        for server in (self.server, self.other, self.impatient):
            server.stop()
        self.backend.stop()


class Leaver(Connection):
    """A client that leaves. `received` is the stream that it has read."""

    def __init__(self, connected: socket.socket, *, memcached: bool) -> None:
        super().__init__(connected)
        self.memcached = memcached
        self.received = b""
        self.id = 0
        self.socket.sendall(b"version\r\n" if memcached else packed("CLIENT", "ID"))
        reply = self.socket.recv(1000)
        if not memcached:
            self.id = int(reply[1:])

    def close(self) -> None:
        """Read the bytes that have arrived, and close (FIN)."""
        self.read_now()
        super().close()

    def reset(self) -> None:
        """Read the bytes that have arrived, and close with an RST."""
        self.read_now()
        super().reset()

    def half_close(self) -> None:
        """Send no more (FIN), and read on."""
        # The shutdown of ssl would also end the decryption.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_WR)

    @contextlib.contextmanager
    def _unblocked(self) -> Iterator[None]:
        self.socket.setblocking(False)
        with contextlib.suppress(
            BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, ConnectionError
        ):
            yield
        self.socket.settimeout(TIMEOUT)

    def send_some(self, data: bytes) -> None:
        """Send the bytes that the socket accepts without blocking."""
        with self._unblocked():
            while data:
                data = data[self.socket.send(data) :]

    def read_now(self) -> None:
        """Read the bytes that have arrived."""
        with self._unblocked():
            while more := self.socket.recv(1 << 20):
                self.received += more

    def read_to_the_end(self) -> None:
        """Read until the server closes. Raises TimeoutError."""
        pieces = [self.received]
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while more := self.socket.recv(1 << 20):
                pieces.append(more)
        self.socket.close()
        self.received = b"".join(pieces)

    def messages(self) -> list[bytes]:
        """Return the messages in complete replies."""
        if self.memcached:
            return list(_in_values(self.received))
        reader = hiredis.Reader()
        reader.feed(self.received)
        return list(_flat(replies_in(reader)))


def _in_values(received: bytes) -> Iterator[bytes]:
    position = 0
    while found := _VALUE.search(received, position):
        position = found.end() + int(found[1])
        if received[position : position + 2] == b"\r\n":
            yield received[found.end() : position]


def _flat(reply: Any) -> Iterator[bytes]:
    if isinstance(reply, list):
        for element in reply:
            yield from _flat(element)
    elif isinstance(reply, bytes):
        yield reply


class Cell:
    """A taker in a group, with its own queues and clients."""

    def __init__(self, taker: Taker, number: str, count: int, moment: Moment) -> None:
        self.taker = taker
        # Each open read is put back by itself. A transaction does not pass through the queue's lane, so the
        # messages of an earlier one may be put back before a later one ends.
        self._apart = moment.one_by_one or taker.opens or taker.commands.startswith("MULTI")
        self.names = {role: f"{number}:{role}" for role in "qrmzg"}
        self.clients: list[Leaver] = []
        each = taker.takes * count
        counts = {
            "q": each,
            "r": each if "{r}" in taker.commands else 0,
            "g": count if moment.before[0] else 0,
        }
        padding = b"." * (moment.size - SMALL)
        self.put = {
            role: [b"%s:%06d:%s" % (role.encode(), n, padding) for n in range(most)]
            for role, most in counts.items()
            if most
        }

    def request(self, client: int, before: str, timeout: float) -> bytes:
        """Return the requests of client number `client`; `timeout` is in seconds."""
        seconds, own = str(timeout), self.put["q"][client].decode()
        if self.taker.memcached:
            seconds = str(int(timeout * 1000))
        words = {**self.names, "own": own, "t": seconds}
        lines = ([before] if before else []) + [self.taker.commands] * self.taker.times
        commands = [c.strip().format(**words) for line in lines for c in line.split(";")]
        if self.taker.memcached:
            return b"".join(command.encode() + b"\r\n" for command in commands)
        return b"".join(packed(*command.split()) for command in commands)

    def tally(self, queued: dict[str, list[bytes]], figures: dict[str, tuple[int, int, int]]) -> Tally:
        """Compare the messages put with the messages that clients have read and that queues hold.

        `figures` has the length of each queue and the numbers of messages produced and consumed.
        """
        ledger = Ledger()
        for role, messages in self.put.items():
            ledger.put(messages, Event(queue=role))
        tally = Tally(cells=1, clients=len(self.clients), messages=ledger.sent)
        for client in self.clients:
            for message in client.messages():
                # A message that was moved or only opened is still in a queue.
                if (found := _MESSAGE.fullmatch(message)) and (
                    found[1] == b"g" or not (self.taker.moves or self.taker.opens)
                ):
                    ledger.receive([message])
                    tally["read"] += 1
        for role, messages in queued.items():
            before = len(ledger.disordered)
            ledger.receive(messages, Event(f"queue {role}"))
            # The messages put back for one client are always in order.
            breaks = len(ledger.disordered) - before if role in self.put else 0
            # On a busy machine, the server may notice one client of twenty after the others.
            most = len(self.clients) - 1 if self._apart else len(self.clients) // 20
            tally["disordered"] += breaks > most
            length, produced, consumed = figures[role]
            tally["wrong"] += not length == produced - consumed == len(messages)
        tally["lost"] = len(ledger.lost())
        tally["doubled"] = sum(len(one.receipts) - 1 for one in ledger.doubled())
        tally["strange"] = len(ledger.strange)
        return tally


class Group:
    """Cells of one way and one moment, over one transport, with `count` clients each."""

    def __init__(
        self, place: Place, transport: str, way: Way, moment: Moment, takers: Iterable[Taker], count: int
    ) -> None:
        place.groups += 1
        self.place = place
        self.transport = transport
        self.way = way
        self.moment = moment
        self.server = place.impatient if way.idles else place.server
        self.cells = [
            Cell(taker, f"{place.groups}.{number}", count, moment)
            for number, taker in enumerate(takers)
            if fits(taker, way, moment)
        ]
        self.count = count
        self.chance = random.Random(place.groups)
        self._killed = 0

    def may_lose(self, taker: Taker, clients: int) -> int:
        """Return how many messages may be lost: one client of twenty may close too late to be noticed."""
        if self.way.reads or not self.moment.may_lose:
            return 0
        return -(-clients // 20) * taker.takes

    def run(self) -> dict[Taker, Tally]:
        """Run all steps, and return a tally for each taker."""
        with ExitStack() as stack:
            self._backend_stops = stack.enter_context(ExitStack())
            self._server_stops = stack.enter_context(ExitStack())
            self.client: Client = stack.enter_context(self.server.client())
            self.killer: Client = stack.enter_context(self.server.client()).connection_pool.get_connection()
            self.killer.send_command("PING")
            self.killer.read_response()
            self._others = self._info("connected_clients")
            try:
                self._connect()
                for step in self.moment.steps.split():
                    getattr(self, step)()
                self._end()
                return self._count()
            finally:
                for leaver in self._leavers():
                    leaver.socket.close()

    def _leavers(self) -> Iterator[Leaver]:
        for cell in self.cells:
            yield from cell.clients

    def _info(self, name: str) -> int:
        return int(self.client.info("clients")[name])

    def _connect(self) -> None:
        for cell in self.cells:
            memcached, size = cell.taker.memcached, self.moment.size
            for _ in range(self.count):
                connected = self.place.connect(self.server, self.transport, memcached=memcached, size=size)
                cell.clients.append(Leaver(connected, memcached=memcached))

    # The steps of moments.

    def create(self) -> None:
        """Create the queues without messages."""
        with self.client.pipeline(transaction=False) as pipeline:
            for cell in self.cells:
                for role in "qrmg":
                    pipeline.execute_command("PRESSURE.CREATE", cell.names[role])
            pipeline.execute()

    def put(self) -> None:
        """Put all messages."""
        server = self.place.other if self.moment.stops_server else self.server
        with server.client() as client, client.pipeline(transaction=False) as pipeline:
            for cell in self.cells:
                for role in cell.put:
                    for first in range(0, len(cell.put[role]), 50):
                        pipeline.rpush(cell.names[role], *cell.put[role][first : first + 50])
            pipeline.execute()

    def send(self) -> None:
        """Let each client send its commands."""
        for cell in self.cells:
            before = self.moment.before[cell.taker.memcached]
            for number, leaver in enumerate(cell.clients):
                leaver.socket.sendall(cell.request(number, before, SHORT if self.way.times_out else LONG))

    def leave(self) -> None:
        """Let each client leave."""
        way = self.way
        if way.times_out or way.idles:
            getattr(self, way.action)()
            return
        for leaver in self._leavers():
            if way.data is not None:
                leaver.send_some(way.data[leaver.memcached])
            if way.action == "kill":
                self.killer.send_command("CLIENT", "KILL", "ID", leaver.id)
                self._killed += 1
            elif way.action:
                getattr(leaver, way.action)()
        if not self.moment.stops_server:
            self._await_kills()

    def let_time_out(self) -> None:
        """Wait until the timeout of the commands has passed."""
        time.sleep(1.5 * SHORT)  # the backend may be stopped, so no reply shows that the timeout has passed

    def be_idle(self) -> None:
        """Return when the server has closed a client that connected later."""
        with self.place.connect(self.server, "tcp", memcached=False, size=SMALL) as witness:
            assert witness.recv(1) == b""
        # The test's own connection may have been idle for as long.
        self.client.connection_pool.disconnect()

    def seen(self) -> None:
        """Return when the server has read everything that was sent before."""
        for _ in range(2):
            self.client.ping()

    def waiting(self) -> None:
        """Return when all clients wait."""
        if not self.way.times_out:
            count = sum(len(cell.clients) for cell in self.cells)
            wait_for(lambda: self._info("blocked_clients") == count, f"{count} clients to wait")

    def answered(self) -> None:
        """Return when the server takes no more messages: it has answered all, or replies are not read."""

        def lengths() -> list[Any]:
            self.client.ping()
            with self.place.direct.pipeline(transaction=False) as pipeline:
                for cell in self.cells:
                    pipeline.llen(f"__pressure__:{cell.names['q']}")
                return list(pipeline.execute())

        settled(lengths, 15)

    def stop_backend(self) -> None:
        self._backend_stops.enter_context(stopped(self.place.backend.process))

    def continue_backend(self) -> None:
        """Let the backend go on, and wait until it has answered the server, which may be stopped."""
        self._backend_stops.close()
        for _ in range(2):
            self.place.direct.ping()

    def stop_server(self) -> None:
        self._server_stops.enter_context(stopped(self.server.process))

    def stop_server_soon(self) -> None:
        """Stop the server after at most 2 ms."""
        time.sleep(0.002 * self.chance.random())  # the moment is the fault to be tried
        self.stop_server()

    def continue_server(self) -> None:
        self._server_stops.close()

    # After the steps.

    def _await_kills(self) -> None:
        for _ in range(self._killed):
            with contextlib.suppress(hiredis.ReplyError):
                self.killer.read_response()
        self._killed = 0

    def _end(self) -> None:
        """Return when all clients are gone, and nothing is in flight for them."""
        self._await_kills()
        if self.way.idles:
            self._wait_until_gone()
        if self.way.reads:
            for leaver in self._leavers():
                if self.way.quits:
                    leaver.send_some(b"quit\r\n" if leaver.memcached else packed("QUIT"))
                leaver.read_to_the_end()
        self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        wait_for(lambda: self._info("connected_clients") <= self._others, "the clients to be gone")

    def _count(self) -> dict[Taker, Tally]:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self._records(), "no call record to be left", TIMEOUT / 2)
        left = self._records()
        tallies: dict[Taker, Tally] = {}
        for cell in self.cells:
            with self.place.direct.pipeline(transaction=False) as pipeline:
                for role in "qrmg":
                    pipeline.lrange(f"__pressure__:{cell.names[role]}", 0, -1)
                queued = {role: found[::-1] for role, found in zip("qrmg", pipeline.execute(), strict=True)}
            with self.client.pipeline(transaction=False) as pipeline:
                for role in "qrmg":
                    pipeline.execute_command("PRESSURE.INFO", cell.names[role])
                replies = pipeline.execute(raise_on_error=False)
                figures = {role: _figures(found) for role, found in zip("qrmg", replies, strict=True)}
            tally = cell.tally(queued, figures)
            names = [f":{name}".encode() for name in cell.names.values()]
            tally["stuck"] = sum(name in record for record in left for name in names)
            tallies.setdefault(cell.taker, Tally()).update(tally)
        self.client.delete(*(cell.names[role] for cell in self.cells for role in "qrmg"))
        return tallies

    def _records(self) -> list[bytes]:
        return list(records(self.place.direct).values())


def _figures(found: Any) -> tuple[int, int, int]:
    """Return a queue's length and its numbers of messages produced and consumed, from PRESSURE.INFO."""
    if isinstance(found, redis.ResponseError):
        return 0, 0, 0  # there is no such queue
    about = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    return about[b"length"], about[b"produced_messages"], about[b"consumed_messages"]
