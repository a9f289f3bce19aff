"""The Python clients.

`Queue` and `AsyncQueue` are a native client of pressure 0.15: they work in Redis directly, without a server.
`JobQueue` and `AsyncJobQueue` use the jobs of a queue through a pressure-server,
and `LogQueue` and `AsyncLogQueue` the offsets and groups of a log.
"""

from pressure_server.client.aio import AsyncQueue
from pressure_server.client.aio_jobs import AsyncJob, AsyncJobQueue
from pressure_server.client.aio_logs import AsyncGroup, AsyncLogQueue
from pressure_server.client.job_requests import JobInfo, JobNotReservedError, PeekedJob
from pressure_server.client.log_requests import GroupInfo, LogMessage, Outcome
from pressure_server.client.steps import QueueEmptyError
from pressure_server.client.sync import Queue
from pressure_server.client.sync_jobs import Job, JobQueue
from pressure_server.client.sync_logs import Group, LogQueue
from pressure_server.errors import (
    BackendError,
    DeniedError,
    GroupDoesNotExistError,
    OffsetAheadError,
    OffsetGoneError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueNameError,
    QueueTypeError,
    StoppingError,
    TransactionIdError,
    WaitLimitError,
)

__all__ = [
    "AsyncGroup",
    "AsyncJob",
    "AsyncJobQueue",
    "AsyncLogQueue",
    "AsyncQueue",
    "BackendError",
    "DeniedError",
    "Group",
    "GroupDoesNotExistError",
    "GroupInfo",
    "Job",
    "JobInfo",
    "JobNotReservedError",
    "JobQueue",
    "LogMessage",
    "LogQueue",
    "OffsetAheadError",
    "OffsetGoneError",
    "Outcome",
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
    "TransactionIdError",
    "WaitLimitError",
]
