"""The Python clients.

`Queue` and `AsyncQueue` are a native client of pressure 0.15: they work in Redis directly, without a server.
`JobQueue` and `AsyncJobQueue` use the jobs of a queue through a pressure-server,
and `LogQueue` and `AsyncLogQueue` the offsets and groups of a log.

An asyncio client is the implementation; the synchronous one beside it runs its coroutines: synchronous.py.
"""

from pressure_server.client.jobs import AsyncJob, AsyncJobQueue, Job, JobQueue
from pressure_server.client.logs import AsyncGroup, AsyncLogQueue, Group, LogQueue
from pressure_server.client.queue import AsyncQueue, Queue
from pressure_server.client.replies import (
    GroupInfo,
    JobInfo,
    JobNotReservedError,
    LogMessage,
    Outcome,
    PeekedJob,
    QueueEmptyError,
)
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
