"""A load generator for the beanstalk protocol: `python -m benchmarks.beanstalk_load HOST:PORT`.

A producer sends puts; a worker sends reserves, and then deletes the jobs that it has received. Every reply is
checked. The job number n is put into the tube n modulo the number of tubes, and each worker watches its share
of the tubes, so that no reserve waits.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.load import Clients, Dialogue, Duration, Write, unexpected

BODY = 64
_PRIORITY = 1024
# Seconds: longer than a measurement, so that no reservation runs out.
_TTR = 3600
_RESERVED = re.compile(rb"RESERVED (\d+) %d\r\n\d{%d}\r\n" % (BODY, BODY))


@dataclass(frozen=True)
class JobLoad:
    """How many jobs are put or done, by how many connections, with how many requests in flight on each."""

    connections: int
    pipeline: int
    tubes: int
    jobs: int


def put(address: tuple[str, int], load: JobLoad) -> Duration:
    """Put the jobs. With more than one tube, each put is sent with a `use`, which is not counted."""
    writes = iter(list(_puts(load)))
    with Clients(address, load.connections) as clients:
        clients.converse(_use_first_tube() for _ in range(load.connections))
        return clients.converse(_producer(writes) for _ in range(load.connections))


def work(address: tuple[str, int], load: JobLoad) -> Duration:
    """Reserve and delete the jobs that `put` has put."""
    with watching(address, load) as workers:
        return workers.converse(_each_share(load, _worker))


@contextmanager
def reserved(address: tuple[str, int], load: JobLoad) -> Iterator[None]:
    """Reserve the jobs that `put` has put, until the block ends."""
    with watching(address, load) as workers:
        workers.converse(_each_share(load, _reserver))
        yield


@contextmanager
def watching(address: tuple[str, int], load: JobLoad) -> Iterator[Clients]:
    """Connect clients that watch the tubes of the load, each of them its share."""
    with Clients(address, load.connections) as clients:
        clients.converse(_each_share(load, _watch))
        yield clients


class _Share:
    """Tubes that some of the workers watch, and the number of jobs in them that are not reserved."""

    def __init__(self, load: JobLoad, tubes: range) -> None:
        self.pipeline = load.pipeline
        self.tubes = tubes
        self.jobs = sum(len(range(tube, load.jobs, load.tubes)) for tube in tubes)

    def take(self) -> int:
        """Return how many jobs a worker reserves now; 0 if none is left."""
        count = min(self.pipeline, self.jobs)
        self.jobs -= count
        return count


def _each_share(load: JobLoad, dialogue: Callable[[_Share], Dialogue]) -> Iterator[Dialogue]:
    """Yield the dialogue of each worker. Workers share a tube only if there are more of them than tubes."""
    count = min(load.connections, load.tubes)
    shares = [_Share(load, range(first, load.tubes, count)) for first in range(count)]
    for number in range(load.connections):
        yield dialogue(shares[number % count])


def _puts(load: JobLoad) -> Iterator[Write]:
    """Yield the writes of all producers."""
    for first in range(0, load.jobs, load.pipeline):
        numbers = range(first, min(first + load.pipeline, load.jobs))
        if load.tubes == 1:
            yield Write(b"".join(map(_put, numbers)), len(numbers))
        else:
            pairs = (_use(number % load.tubes) + _put(number) for number in numbers)
            yield Write(b"".join(pairs), 2 * len(numbers))


def _use(tube: int) -> bytes:
    return b"use %b\r\n" % _name(tube)


def _name(tube: int) -> bytes:
    return b"bench-%d" % tube


def _put(number: int) -> bytes:
    return b"put %d 0 %d %d\r\n%0*d\r\n" % (_PRIORITY, _TTR, BODY, BODY, number)


def _use_first_tube() -> Dialogue:
    replies = yield Write(_use(0), 1)
    if not replies.startswith(b"USING "):
        raise unexpected(replies)


def _producer(writes: Iterator[Write]) -> Dialogue:
    for write in writes:
        replies = yield write
        if replies.count(b"INSERTED ") + replies.count(b"USING ") != write.lines:
            raise unexpected(replies)


def _watch(share: _Share) -> Dialogue:
    """Watch the tubes, and not the default tube."""
    requests = [b"watch %b\r\n" % _name(tube) for tube in share.tubes] + [b"ignore default\r\n"]
    replies = yield Write(b"".join(requests), len(requests))
    if replies.count(b"WATCHING ") != len(requests):
        raise unexpected(replies)


def _worker(share: _Share) -> Dialogue:
    while count := share.take():
        ids = yield from _reserve(count)
        replies = yield Write(b"delete %b\r\n" % b"\r\ndelete ".join(ids), count)
        if replies != b"DELETED\r\n" * count:
            raise unexpected(replies)


def _reserver(share: _Share) -> Dialogue:
    while count := share.take():
        yield from _reserve(count)


def _reserve(count: int) -> Generator[Write, bytes, list[bytes]]:
    """Reserve jobs, and return their ids."""
    replies = yield Write(b"reserve\r\n" * count, 2 * count)
    ids = _RESERVED.findall(replies)
    if len(ids) != count:
        raise unexpected(replies)
    return ids


def main() -> None:
    """Run the load that the command line describes, and print jobs per second."""
    arguments = _arguments()
    load = JobLoad(arguments.connections, arguments.pipeline, arguments.tubes, arguments.jobs)
    if arguments.what in ("put", "both"):
        _print("put", load, put(arguments.address, load))
    if arguments.what in ("work", "both"):
        _print("reserve + delete", load, work(arguments.address, load))


def _print(what: str, load: JobLoad, taken: Duration) -> None:
    print(
        f"{what}: {load.jobs / taken.seconds:,.0f} jobs/s "
        f"(generator: {taken.generator / taken.seconds:.0%} of a core, "
        f"{taken.generator / load.jobs * 1e6:.1f} µs a job)",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beanstalk_load", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("address", metavar="HOST:PORT", type=_address, help="a server of the protocol")
    parser.add_argument("--connections", type=_positive, default=50)
    parser.add_argument("--pipeline", type=_positive, default=1, help="requests in flight on each connection")
    parser.add_argument("--tubes", type=_positive, default=1)
    parser.add_argument("--jobs", type=_positive, default=40_000)
    parser.add_argument(
        "--what",
        choices=("put", "work", "both"),
        default="both",
        help="work: reserve and delete the jobs of a put with the same numbers of tubes and jobs",
    )
    return parser.parse_args()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise argparse.ArgumentTypeError("must be HOST:PORT")
    return host or "127.0.0.1", int(port)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


if __name__ == "__main__":
    main()
