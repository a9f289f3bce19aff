"""The Python clients.

`Queue` and `AsyncQueue` are a native client of pressure 0.15: they work in Redis directly, without a server.
`JobQueue` and `AsyncJobQueue` use the jobs of a queue through a pressure-server,
and `LogQueue` and `AsyncLogQueue` the offsets and groups of a log.

The modules in `sync/` are generated from those in `aio/`, by `make sync-client`.
"""

from pressure_server.client.aio.jobs import AsyncJob, AsyncJobQueue
from pressure_server.client.aio.logs import AsyncGroup, AsyncLogQueue
from pressure_server.client.aio.queue import AsyncQueue
from pressure_server.client.replies import (
    GroupInfo,
    JobInfo,
    JobNotReservedError,
    LogMessage,
    Outcome,
    PeekedJob,
    QueueEmptyError,
)
from pressure_server.client.sync.jobs import Job, JobQueue
from pressure_server.client.sync.logs import Group, LogQueue
from pressure_server.client.sync.queue import Queue
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
