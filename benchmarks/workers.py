"""Workers that wait over the same tubes, and a job at a time: `python -m benchmarks.workers`.

Prints the server's processor time and memory for the wait, its processor time for each job, and the time
until a worker has the job.
"""

import argparse
import select
import socket
import statistics
import time
from contextlib import ExitStack

from benchmarks.crowd import allow_files, resident_kib
from benchmarks.processor import processor_time
from benchmarks.subjects import Server, beanstalk_address, ours

_PATIENCE = 10.0


def main() -> None:
    """Measure, and print the figures."""
    arguments = _arguments()
    allow_files(arguments.workers)
    listen = ("--listen", "beanstalk://127.0.0.1:0")
    with ours(*listen, "--max-clients", str(arguments.workers + 100)) as server, ExitStack() as stack:
        before, began = resident_kib(server), processor_time(server.pid).total
        workers = [_connected(server, stack) for _ in range(arguments.workers)]
        for worker in workers:
            watched = b"".join(b"watch tube-%d\r\n" % number for number in range(1, arguments.tubes))
            worker.sendall(watched + b"reserve\r\n")
        _settle(server)
        print(f"{arguments.workers} workers wait over {arguments.tubes} tubes")
        print(f"  processor time to begin: {(processor_time(server.pid).total - began) * 1000:.0f} ms")
        print(f"  memory: {(resident_kib(server) - before) / 1024:.1f} MiB")
        _measure_jobs(server, stack, workers, min(arguments.jobs, arguments.workers))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tubes", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=200)
    return parser.parse_args()


def _connected(server: Server, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(beanstalk_address(server), _PATIENCE))


def _settle(server: Server) -> None:
    """Return when the server has been idle for a while."""
    used = -1.0
    while (now := processor_time(server.pid).total) != used:
        used = now
        time.sleep(0.5)


def _measure_jobs(server: Server, stack: ExitStack, workers: list[socket.socket], jobs: int) -> None:
    """Put one job after the other into the first tube; each goes to another worker."""
    producer = _connected(server, stack)
    poll = select.epoll()
    by_number = {worker.fileno(): worker for worker in workers}
    for worker in workers:
        while select.select([worker], [], [], 0)[0]:
            worker.recv(1 << 16)  # the replies to `watch`
        poll.register(worker, select.EPOLLIN)
    began, times = processor_time(server.pid).total, list[float]()
    for _ in range(jobs):
        put = time.perf_counter()
        producer.sendall(b"put 0 0 60 1\r\nx\r\n")
        ready = poll.poll(_PATIENCE)
        times.append(time.perf_counter() - put)
        if len(ready) != 1:
            raise RuntimeError(f"{len(ready)} workers got a job instead of 1")
        poll.unregister(ready[0][0])
        by_number[ready[0][0]].recv(1 << 16)
        producer.recv(1 << 16)
    _settle(server)
    used = (processor_time(server.pid).total - began) / jobs
    print(f"  processor time for a job: {used * 1000:.2f} ms")
    median, longest = statistics.median(times) * 1000, max(times) * 1000
    print(f"  until a worker has it: median {median:.2f} ms, at most {longest:.1f} ms")


if __name__ == "__main__":
    main()
