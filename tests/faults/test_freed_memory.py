"""Memory that the server must free without Python's garbage collector, which looks every 50 000 objects.

The collector counts objects, not their bytes: a few reference cycles with messages of 8 MB are hundreds of
megabytes. The server of these tests runs without a collector, and reports what only that would free.
"""

import gzip
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.measures import MB, memory, reset_peak
from tests.support.programs import TIMEOUT, Client, Server, Valkey, join, wait_for
from tests.support.protocols import LISTEN
from tests.support.waiters import Waiter, create, wait_for_blocked

MESSAGE = 8 * MB
LARGE = bytes(MESSAGE)
ROUNDS = 5
# What freed memory may leave behind in the heap.
ROUGHLY = 40 * MB
HTTP_CLIENTS = 30

# Python runs this module at its start. SIGUSR2 writes the classes of the server's objects, and the sizes of
# large bytes, in reference cycles that nothing else refers to.
_NO_COLLECTOR = """
import gc, json, os, signal, sys

gc.disable()

def report(*_):
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [type(one).__name__ for one in gc.garbage
             if type(one).__module__.startswith(("pressure_server", "handlers"))]
    found += [len(one) for other in gc.garbage for one in gc.get_referents(other)
              if isinstance(one, (bytes, bytearray, str)) and len(one) > 100_000]
    gc.garbage.clear()
    gc.collect()
    with open("REPORT.new", "w") as file:
        json.dump(found, file)
    os.rename("REPORT.new", "REPORT")

if "serve" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, report)
"""


class Uncollected(Server):
    """A server without a garbage collector."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._report = folder / "report"
        (folder / "sitecustomize.py").write_text(_NO_COLLECTOR.replace("REPORT", str(self._report)))
        super().__init__(folder / "log", *arguments, environment={"PYTHONPATH": str(folder)})

    def cycles(self) -> list[Any]:
        """Return what is in reference cycles that nothing else refers to, and free it."""
        self._report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        wait_for(self._report.exists, "the report")
        found: list[Any] = json.loads(self._report.read_text())
        return found


@pytest.fixture(scope="module")
def uncollected(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uncollected]:
    server = Uncollected(
        tmp_path_factory.mktemp("uncollected"),
        *("--backend", shared_backend.url, "--max-message-bytes", str(MESSAGE)),
        *("--max-buffered-bytes", str(64 * MB), "--role-timeout", "0.1", "--http", "http://127.0.0.1:0"),
        *LISTEN,
    )
    yield server
    server.end_well()


Way = Callable[[Server, Client], None]


def _words(command: str) -> list[str | bytes]:
    """Return the words of a command, in which L and M are messages of 8 and of one MB."""
    return [{"L": LARGE, "M": LARGE[:MB]}.get(word, word) for word in command.split()]


def _in_short(reply: Any) -> Any:
    """Return a reply with L for the large message, and `error` for an error."""
    if isinstance(reply, list):
        return [_in_short(part) for part in reply]
    if isinstance(reply, Exception):
        return "error"
    return "L" if reply == LARGE else reply


def _sends(commands: str, last: object) -> Way:
    """Return a way that sends commands, the last of which has this reply."""

    def send(server: Server, _client: Client) -> None:
        with Waiter(server.port) as waiter:
            reply = [waiter(*_words(command)) for command in commands.split("; ")][-1]
        assert _in_short(reply) == last

    return send


def _abandons(command: str) -> Way:
    """Return a way that abandons a command that waits."""

    def abandon(server: Server, client: Client) -> None:
        client.rpush("source", LARGE)
        create(client, "full", "BOUND", 1)
        client.rpush("full", "m")
        with Waiter(server.port) as waiter:
            waiter.send(*_words(command))
            wait_for_blocked(client, 1)
        wait_for_blocked(client, 0)

    return abandon


def _served(server: Server, client: Client) -> None:
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "a", "b", 0)
        wait_for_blocked(client, 1)
        client.rpush("b", LARGE)
        assert waiter.reply() == [b"b", LARGE]


def _undelivered(server: Server, client: Client) -> None:
    client.rpush("q", LARGE)
    with Waiter(server.port) as waiter:
        waiter.send("LPOP", "q")
        wait_for(lambda: client.llen("q") == 0, "the message to be taken")
        waiter.reset()
    wait_for(lambda: client.llen("q") == 1, "the message to be put back")


def _reserved(server: Server, client: Client) -> None:
    create(client, "jobs")
    client.execute_command("PRESSURE.PUT", "jobs", LARGE)
    with Waiter(server.port) as waiter:
        assert waiter("PRESSURE.RESERVE", "jobs", "none")[2] == LARGE
    assert client.execute_command("PRESSURE.RESERVE", "jobs", "TIMEOUT", 10)[2] == LARGE


def _memcached(server: Server, _client: Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port_of("memcached")), TIMEOUT) as connected:
        connected.sendall(b"set q 0 0 %d\r\n%b\r\n" % (MESSAGE, LARGE))
        assert connected.recv(100) == b"STORED\r\n"
        connected.sendall(b"get q/open\r\n")
        assert connected.recv(10).startswith(b"VALUE")


_WAYS: dict[str, Way] = {
    "a transaction": _sends(
        "MULTI; RPUSH q L; SMEMBERS q; LPOP q; BLPOP q 0; EXEC", [1, ["L"], "L", None]
    ),
    "a transaction whose commands fail": _sends(
        "PRESSURE.CREATE q; PRESSURE.CLOSE q; MULTI; RPUSH q L; SMOVE none q L; EXEC", ["error", 0]
    ),
    "a transaction on a watched queue": _sends("WATCH q; RPUSH q m; MULTI; RPUSH q L; EXEC", None),
    "a put that waits and is abandoned": _abandons("RPUSH full L"),
    "a put of several messages that is abandoned": _abandons("SADD full M L"),
    "a move that waits and is abandoned": _abandons("BLMOVE source full LEFT RIGHT 0"),
    "a get that waits and is abandoned": _abandons("BLPOP a b 0"),
    "a result that is stored": _sends("SADD s L; SUNIONSTORE d s none; SINTERSTORE d s d", 1),
    "a result that is refused": _sends("SADD s L m; PRESSURE.CREATE f BOUND 1; SUNIONSTORE f s", "error"),
    "a get that is served": _served,
    "a message that is put back": _undelivered,
    "a job whose client leaves": _reserved,
    "a client of memcached that leaves": _memcached,
}  # fmt: skip
# Ways that leave no client behind, for a measurement of the memory.
_LASTING = (
    "a transaction",
    "a transaction on a watched queue",
    "a put that waits and is abandoned",
    "a result that is stored",
)


@pytest.mark.parametrize("way", _WAYS)
def test_messages_are_in_no_reference_cycle(uncollected: Uncollected, backend: Valkey, way: str) -> None:
    with uncollected.client() as client:
        uncollected.cycles()
        _WAYS[way](uncollected, client)
        client.flushall()
        assert uncollected.cycles() == []


@pytest.mark.slow
def test_memory_stays_flat_without_a_collector(uncollected: Uncollected, backend: Valkey) -> None:
    used: list[int] = []
    with uncollected.client() as client:
        for _ in range(ROUNDS):
            for way in _LASTING:
                _WAYS[way](uncollected, client)
                client.flushall()
            used.append(memory(uncollected))
    print("MB after each round:", *(size // MB for size in used))
    assert used[-1] < used[0] + ROUGHLY


_HEAD = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_BODY = bytes(5_000_000)
_BOMB = gzip.compress(bytes(100 * MB))
_ATTACKS = {
    "bodies": (_HEAD + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY, b" 413 "),
    "chunked bodies": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(_BODY) + _BODY, b" 413 "),
    "bodies that are no JSON": (_HEAD + b"Content-Length: 4000000\r\n\r\n" + _BODY[:4_000_000], b" 413 "),
    "compressed bodies": (
        _HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB) + _BOMB,
        b" 415 ",
    ),
    "fields of a head": (_HEAD + b"X: %b\r\n" % (b"x" * 8000) * 120, b" 431 "),
    "pipelined requests": (
        b"POST /api/login HTTP/1.1\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n{}"
        + (b"GET / HTTP/1.1\r\nX: %b\r\n\r\n" % (b"x" * 8000)) * 300,
        b"",
    ),
}


@pytest.mark.parametrize("attack", _ATTACKS)
def test_requests_before_the_login_take_little_memory(uncollected: Uncollected, attack: str) -> None:
    request, status = _ATTACKS[attack]
    replies: list[bytes] = []

    def send() -> None:
        reply = b""
        with (
            suppress(ConnectionError, TimeoutError),
            socket.create_connection(("127.0.0.1", uncollected.port_of("http")), TIMEOUT) as connected,
        ):
            with suppress(ConnectionError):
                connected.sendall(request)
            reply = connected.recv(1 << 16)
        replies.append(reply)

    uncollected.cycles()
    reset_peak(uncollected)
    before = memory(uncollected)
    threads = [threading.Thread(target=send, daemon=True) for _ in range(HTTP_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread, 2 * TIMEOUT)
    peak, after = memory(uncollected, "VmHWM"), memory(uncollected)
    print(f"{attack}: {before // MB} → {peak // MB} → {after // MB} MB")
    assert all(status in reply or not reply for reply in replies)
    assert peak - before < ROUGHLY
    assert not [one for one in uncollected.cycles() if isinstance(one, int)]
