"""One worker in Python: the job client beside BLPOP, and Celery beside Celery over Redis.

`python -m benchmarks.python_workers [--rounds N]`. Celery is measured if `make test-applications` has
installed it.
"""

import argparse
import os
import subprocess
import time
from collections.abc import Callable

import redis

from benchmarks.results import Samples
from benchmarks.subjects import ours, redis_server
from pressure_server.client import JobQueue
from tests.support.paths import ROOT

_APPLICATIONS = ROOT / "build/applications/python/bin"
_JOBS, _TASKS = 2_000, 2_000


def _fill(client: redis.Redis, queue: str) -> None:
    pipeline = client.pipeline(transaction=False)
    for _ in range(_JOBS):
        pipeline.rpush(queue, b"x" * 100)
    pipeline.execute()


def _pop(port: int, queue: str) -> None:
    with redis.Redis(port=port, socket_timeout=None, single_connection_client=True) as client:
        for _ in range(_JOBS):
            client.blpop([queue])


def _reserve(port: int, queue: str) -> None:
    with JobQueue(queue, f"redis://127.0.0.1:{port}") as jobs:
        for _ in range(_JOBS):
            with jobs.reserve():
                pass


def _loop(port: int, queue: str) -> None:
    with JobQueue(queue, f"redis://127.0.0.1:{port}") as jobs:
        assert sum(1 for _ in jobs.jobs(timeout=0)) == _JOBS


_WORKERS: dict[str, Callable[[int, str], None]] = {"BLPOP": _pop, "with reserve": _reserve, "for jobs": _loop}


def _measure_client(samples: Samples, port: int) -> None:
    with redis.Redis(port=port) as client:
        for queue in ("fifo", "jobs"):
            if queue == "jobs" and not client.exists(queue):
                client.execute_command("PRESSURE.CREATE", queue, "TYPE", "JOBS")
            for name, work in _WORKERS.items():
                _fill(client, queue)
                began = time.perf_counter()
                work(port, queue)
                samples.add(queue, name, _JOBS / (time.perf_counter() - began))


def _celery_rate(broker: str) -> float:
    scripts = ROOT / "tests/applications/scripts"
    environment = {**os.environ, "PYTHONPATH": f"{scripts}:{ROOT}", "BROKER": broker, "TASKS": str(_TASKS)}
    subprocess.run([_APPLICATIONS / "python", "-m", "celery_rate_app"], env=environment, check=True)
    command = [
        str(_APPLICATIONS / "celery"), "--quiet", "--app", "celery_rate_app", "worker",
        "--pool", "solo", "--loglevel", "ERROR",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=null, text=True) as worker:
        assert worker.stdout is not None
        try:
            return next(float(line.split()[1]) for line in worker.stdout if line.startswith("rate "))
        finally:
            worker.kill()


def main() -> None:
    """Print the medians of all rounds, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    samples = Samples()
    with ours() as server, redis_server() as plain:
        for _ in range(rounds):
            _measure_client(samples, server.port)
            if (_APPLICATIONS / "celery").exists():
                samples.add("celery", "redis", _celery_rate(f"redis://127.0.0.1:{plain.port}/0"))
                samples.add("celery", "ours", _celery_rate(f"pressure://127.0.0.1:{server.port}"))
    for thing, base in (("fifo", "BLPOP"), ("jobs", "BLPOP"), ("celery", "redis")):
        for column in samples.of(thing):
            rate, ratio = samples.median(thing, column), samples.ratio(thing, column, base)
            print(f"{thing}, {column}: {rate:.0f} a second, {ratio:.2f} x {base}")


if __name__ == "__main__":
    main()
