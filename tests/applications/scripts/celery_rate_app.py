"""Celery for benchmarks/python_workers.py: tasks that do nothing, and a worker's rate."""

import os
import sys
import time

from celery import Celery

import pressure_server.client.kombu  # noqa: F401 # it registers the transport

TASKS = int(os.environ["TASKS"])
app = Celery("celery_rate_app", broker=os.environ["BROKER"])
app.conf.task_acks_late = True
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 1
times: list[float] = []


@app.task(name="run")
def run(number: int) -> None:
    """Print the rate when all tasks are done."""
    times.append(time.perf_counter())
    if len(times) == TASKS:
        print("rate", (TASKS - 1) / (times[-1] - times[0]), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for number in range(TASKS):
            run.apply_async((number,), producer=producer)
