"""A load generator for the beanstalk protocol: `python -m benchmarks.beanstalk_load HOST:PORT`.

A producer sends puts; a worker sends reserves, and then deletes the jobs that it has received. Every reply is
checked. The job number n is put into the tube n modulo the number of tubes, and each worker watches its share
of the tubes, so that no reserve waits.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.load import Dialogue, Duration, Write, converse, unexpected
from benchmarks.plan import BenchmarkError

BODY = 64
_TUBE = b"bench-%d"
# Seconds: longer than a measurement, so that no reservation runs out.
_TTR = 3600


@dataclass(frozen=True)
class JobLoad:
    """How many jobs are put or done, by how many connections, with how many requests in flight on each."""

    connections: int
    pipeline: int
    tubes: int
    jobs: int


def put(address: tuple[str, int], load: JobLoad) -> Duration:
    """Put the jobs. With more than one tube, a `use` is sent before each put, and not counted."""
    writes = iter(list(_puts(load)))
    return converse(address, [_producer(writes) for _ in range(load.connections)])


def work(address: tuple[str, int], load: JobLoad, *, delete: bool = True) -> Duration:
    """Reserve the jobs that `put` has put, and delete them unless `delete` is False."""
    groups = min(load.connections, load.tubes)
    left = [_Left(load, group, groups) for group in range(groups)]
    workers = [
        _worker(left[number % groups], load.pipeline, delete=delete) for number in range(load.connections)
    ]
    return converse(address, workers)


def _puts(load: JobLoad) -> Iterator[Write]:
    """Yield all writes of the producers."""
    for first in range(0, load.jobs, load.pipeline):
        numbers = range(first, min(first + load.pipeline, load.jobs))
        if load.tubes > 1 or first < load.connections * load.pipeline:  # the first write of each connection
            requests = [_use(number % load.tubes) + _put(number) for number in numbers]
        else:
            requests = [_put(number) for number in numbers]
        data = b"".join(requests)
        yield Write(data, len(numbers) + data.count(b"use "))


def _use(tube: int) -> bytes:
    return b"use %b\r\n" % (_TUBE % tube)


def _put(number: int) -> bytes:
    return b"put 1024 0 %d %d\r\n%0*d\r\n" % (_TTR, BODY, BODY, number)


def _producer(writes: Iterator[Write]) -> Dialogue:
    for write in writes:
        replies = yield write
        if replies.count(b"INSERTED ") + replies.count(b"USING ") != write.lines:
            raise unexpected(replies)


class _Left:
    """The tubes that some workers watch, and how many jobs of them are left to reserve."""

    def __init__(self, load: JobLoad, group: int, groups: int) -> None:
        self.tubes = range(group, load.tubes, groups)
        self.jobs = sum(len(range(tube, load.jobs, load.tubes)) for tube in self.tubes)

    def take(self, most: int) -> int:
        """Return how many jobs to reserve now, at most `most`."""
        count = min(most, self.jobs)
        self.jobs -= count
        return count


def _worker(left: _Left, pipeline: int, *, delete: bool) -> Dialogue:
    yield from _watch(left.tubes)
    job = re.compile(rb"RESERVED (\d+) %d\r\n\d{%d}\r\n" % (BODY, BODY))
    while count := left.take(pipeline):
        replies = yield Write(b"reserve\r\n" * count, 2 * count)
        ids = job.findall(replies)
        if len(ids) != count:
            raise unexpected(replies)
        if delete:
            replies = yield Write(b"delete %b\r\n" % b"\r\ndelete ".join(ids), count)
            if replies != b"DELETED\r\n" * count:
                raise unexpected(replies)


def _watch(tubes: range) -> Dialogue:
    """Watch the tubes, and not the default tube. All requests are in one write."""
    requests = [b"watch %b\r\n" % (_TUBE % tube) for tube in tubes] + [b"ignore default\r\n"]
    replies = yield Write(b"".join(requests), len(requests))
    if replies.count(b"WATCHING ") != len(requests):
        raise unexpected(replies)


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
