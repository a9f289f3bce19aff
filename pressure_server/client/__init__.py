"""The Python clients.

`Queue` and `AsyncQueue` are a native client of pressure 0.15: they work in Redis directly, without a server.
`JobQueue` and `AsyncJobQueue` use the jobs of a queue through a pressure-server.
"""

from pressure_server.client.aio import AsyncQueue
from pressure_server.client.aio_jobs import AsyncJob, AsyncJobQueue
from pressure_server.client.job_requests import JobInfo, JobNotReservedError, PeekedJob
from pressure_server.client.steps import QueueEmptyError
from pressure_server.client.sync import Queue
from pressure_server.client.sync_jobs import Job, JobQueue
from pressure_server.errors import (
    BackendError,
    DeniedError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueNameError,
    QueueTypeError,
    StoppingError,
    WaitLimitError,
)

__all__ = [
    "AsyncJob",
    "AsyncJobQueue",
    "AsyncQueue",
    "BackendError",
    "DeniedError",
    "Job",
    "JobInfo",
    "JobNotReservedError",
    "JobQueue",
    "PeekedJob",
    "PressureError",
    "Queue",
    "QueueAlreadyExistsError",
    "QueueClosedError",
    "QueueDoesNotExistError",
    "QueueEmptyError",
    "QueueFullError",
    "QueueInUseError",
    "QueueNameError",
    "QueueTypeError",
    "StoppingError",
    "WaitLimitError",
]
