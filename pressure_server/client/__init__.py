"""A native client of pressure 0.15: `Queue` and `AsyncQueue` work in Redis directly, without a server."""

from pressure_server.client.aio import AsyncQueue
from pressure_server.client.steps import QueueEmptyError
from pressure_server.client.sync import Queue
from pressure_server.errors import (
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueNameError,
)

__all__ = [
    "AsyncQueue",
    "PressureError",
    "Queue",
    "QueueAlreadyExistsError",
    "QueueClosedError",
    "QueueDoesNotExistError",
    "QueueEmptyError",
    "QueueFullError",
    "QueueInUseError",
    "QueueNameError",
]
