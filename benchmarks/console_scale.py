"""The console with very many queues and clients: `python -m benchmarks.console_scale`.

Prints the time to the first event of the overview and its size, the server's memory and processor time, and
the latency of PING, which shows for how long the event loop is blocked. Other programs on the machine make
latencies longer, so they are measured without consoles, too.
"""

import argparse
import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.client import Client
from benchmarks.crowd import allow_files, connect, resident_kib
from benchmarks.processor import processor_time
from benchmarks.subjects import Server, ours

_BATCH = 1000
_PING_SECONDS = 0.01
# Each console has another order, which the server sorts for itself.
_CONSOLES = (
    "/api/overview/events?sort=messages&order=down",
    "/api/overview/events?sort=name&filter=9",
    "/api/clients/events?sort=idle&order=down",
)
_FIRST = "/api/overview/events?sort=age&order=down"


def main() -> None:
    """Measure, and print the figures."""
    arguments = _arguments()
    allow_files(arguments.clients + arguments.clients // 10)
    most = str(arguments.clients + 100)
    with ours("--http", "http://127.0.0.1:0", "--max-clients", most) as server, ExitStack() as clients:
        connect(server, range(arguments.clients), clients)
        before = resident_kib(server)
        began = time.perf_counter()
        _put(server, arguments.queues)
        print(f"{arguments.queues} queues put in {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        _await_survey(server, arguments.queues)
        print(f"first look at all of them: {time.perf_counter() - began:.1f} s later")
        with_queues = resident_kib(server)
        print(f"memory of the server: {before / 1024:.0f} MiB, with queues {with_queues / 1024:.0f} MiB")
        _measure(server, "without consoles", arguments.seconds)
        seconds, size = _first_event(server, _FIRST)
        print(f"first event of the overview: {seconds * 1000:.0f} ms, {size / 1024:.1f} KiB")
        with _consoles(server):
            _measure(server, f"with {len(_CONSOLES)} consoles", arguments.seconds)
            print(f"memory of the server with consoles: {resident_kib(server) / 1024:.0f} MiB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each measurement of latencies")
    return parser.parse_args()


def _put(server: Server, count: int) -> None:
    """Put a message into each of many queues; some queues get more."""
    with Client(server.port) as client:
        for numbers in _batches(count):
            for number in numbers:
                client.send("SADD", f"queue:{number:06}", *range(1 + number % 7))
            for _ in numbers:
                client.reply()


def _batches(count: int) -> Iterator[range]:
    for first in range(0, count, _BATCH):
        yield range(first, min(first + _BATCH, count))


def _await_survey(server: Server, count: int) -> None:
    while b'"matching": %d,' % count not in _event(server, "/api/overview/events"):
        time.sleep(0.5)


def _event(server: Server, path: str) -> bytes:
    """Return the first event of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().readline()
    finally:
        connection.close()


def _first_event(server: Server, path: str) -> tuple[float, int]:
    began = time.perf_counter()
    event = _event(server, path)
    return time.perf_counter() - began, len(event)


def _measure(server: Server, what: str, seconds: float) -> None:
    """Print the latency of PING, and the processor time of the server and of its backend."""
    ours_before, store_before = processor_time(server.pid), processor_time(server.backend.pid)
    began, found = time.perf_counter(), []
    with Client(server.port) as client:
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            client("PING")
            found.append((time.perf_counter() - sent) * 1000)
            time.sleep(_PING_SECONDS)
    found.sort()
    passed = time.perf_counter() - began
    used = (processor_time(server.pid).total - ours_before.total) / passed
    store = (processor_time(server.backend.pid).total - store_before.total) / passed
    print(
        f"{what}: PING median {statistics.median(found):.2f} ms, "
        f"99 % {found[int(len(found) * 0.99)]:.1f} ms, "
        f"99.9 % {found[int(len(found) * 0.999)]:.1f} ms, most {found[-1]:.1f} ms; "
        f"server {used:.1%} and backend {store:.1%} of a processor"
    )


@contextmanager
def _consoles(server: Server) -> Iterator[None]:
    """Keep consoles open until the block ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=_watch, args=(server, path, stop)) for path in _CONSOLES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _watch(server: Server, path: str, stop: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    while not stop.is_set():
        response.readline()
    connection.close()


if __name__ == "__main__":
    main()
