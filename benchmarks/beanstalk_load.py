"""A load generator for the beanstalk protocol: `python -m benchmarks.beanstalk_load HOST:PORT`.

A producer sends puts; a worker sends reserves, and then deletes the jobs that it has received. Every reply is
checked. In a case, queues are tubes and requests are jobs. The job n is put into the tube n modulo the number
of tubes, and each worker watches its share of the tubes, so that no reserve waits.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.load import Clients, Dialogue, Duration, Share, Write, unexpected
from benchmarks.plan import Case, Load

BODY = 64
TUBE = b"bench-%d"
_PRIORITY = 1024
_PUT, _WORK = "put", "reserve + delete"
# Seconds: longer than a measurement, so that no reservation runs out.
_TTR = 3600
_RESERVED = re.compile(rb"RESERVED (\d+) %d\r\n\d{%d}\r\n" % (BODY, BODY))
# Runs the load of a case once, and returns how long it took.
Run = Callable[[], Duration]


@contextmanager
def producers(address: tuple[str, int], case: Case) -> Iterator[Run]:
    """Connect producers, and yield the function that puts the jobs.

    With more than one tube, each put is sent with a `use`, which is not counted.
    """
    writes = iter(list(_puts(case)))
    with Clients(address, case.load.clients) as clients:
        clients.converse(_use_first_tube() for _ in range(case.load.clients))
        yield lambda: clients.converse(_producer(writes) for _ in range(case.load.clients))


@contextmanager
def workers(address: tuple[str, int], case: Case, *, delete: bool = True) -> Iterator[Run]:
    """Connect workers, and yield the function that reserves and deletes the jobs that were put.

    Without `delete` the jobs stay reserved until the block ends.
    """
    with Clients(address, case.load.clients) as clients:
        clients.converse(_watch(tubes) for tubes in _shares(case))
        yield lambda: clients.converse(_worker(share, delete=delete) for share in _shares(case))


class _Tubes(Share):
    """Tubes that one or more workers watch, and the jobs in them."""

    def __init__(self, case: Case, tubes: range) -> None:
        jobs = sum(len(range(tube, case.load.requests, case.queues)) for tube in tubes)
        super().__init__(jobs, case.load.pipeline)
        self.tubes = tubes


def _shares(case: Case) -> Iterator[_Tubes]:
    """Yield the tubes of each worker. Workers share tubes only if there are more of them than tubes."""
    count = min(case.load.clients, case.queues)
    shares = [_Tubes(case, range(first, case.queues, count)) for first in range(count)]
    for number in range(case.load.clients):
        yield shares[number % count]


def _puts(case: Case) -> Iterator[Write]:
    """Yield the writes of all producers."""
    for first in range(0, case.load.requests, case.load.pipeline):
        numbers = range(first, min(first + case.load.pipeline, case.load.requests))
        if case.queues == 1:
            yield Write(b"".join(map(_put, numbers)), len(numbers))
        else:
            pairs = (_use(number % case.queues) + _put(number) for number in numbers)
            yield Write(b"".join(pairs), 2 * len(numbers))


def _use(tube: int) -> bytes:
    return b"use %b\r\n" % (TUBE % tube)


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


def _watch(watched: _Tubes) -> Dialogue:
    """Watch the tubes, and not the default tube."""
    requests = [b"watch %b\r\n" % (TUBE % tube) for tube in watched.tubes] + [b"ignore default\r\n"]
    replies = yield Write(b"".join(requests), len(requests))
    if replies.count(b"WATCHING ") != len(requests):
        raise unexpected(replies)


def _worker(share: Share, *, delete: bool) -> Dialogue:
    while count := share.take():
        replies = yield Write(b"reserve\r\n" * count, 2 * count)
        ids = _RESERVED.findall(replies)
        if len(ids) != count:
            raise unexpected(replies)
        if delete:
            replies = yield Write(b"delete %b\r\n" % b"\r\ndelete ".join(ids), count)
            if replies != b"DELETED\r\n" * count:
                raise unexpected(replies)


def main() -> None:
    """Run the load that the command line describes, and print jobs per second."""
    arguments = _arguments()
    case = Case(arguments.tubes, Load(arguments.connections, arguments.pipeline, arguments.jobs))
    steps = {"put": [_PUT], "work": [_WORK], "both": [_PUT, _WORK]}
    for step in steps[arguments.what]:
        with (producers if step == _PUT else workers)(arguments.address, case) as run:
            _print(step, arguments.jobs, run())


def _print(what: str, jobs: int, taken: Duration) -> None:
    print(
        f"{what}: {jobs / taken.seconds:,.0f} jobs/s "
        f"(generator: {taken.generator / taken.seconds:.0%} of a core, "
        f"{taken.generator / jobs * 1e6:.1f} µs a job)",
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
