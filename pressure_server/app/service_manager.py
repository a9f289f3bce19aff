"""Notifications for the service manager (systemd, `Type=notify`): ready, reload, stopping, watchdog.

The protocol is that of sd_notify(3). Without NOTIFY_SOCKET in the environment, nothing is sent.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping

logger = logging.getLogger(__name__)

# Seconds by which startup may last longer than TimeoutStartSec, and between the requests for them.
_STARTUP_EXTENSION = 60.0
_EXTEND_EVERY = 15.0
# The event loop stands still during a send, so a full socket must not block it for long.
_SEND_TIMEOUT = 1.0


class ServiceManager:
    """The service manager that the environment names. Without one, the methods do nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with an @ for its first byte, which is zero.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_interval = _watchdog_seconds(environment) / 2
        self._has_failed = False
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def starting(self) -> None:
        """Ask for more time until `ready`, and report the event loop as alive until `close`."""
        if self._address:
            lines = "STATUS=starting", _extension(_STARTUP_EXTENSION)
            self._starting = asyncio.create_task(self._repeat(_EXTEND_EVERY, *lines))
            if self._watchdog_interval:
                self._watching = asyncio.create_task(self._repeat(self._watchdog_interval, "WATCHDOG=1"))

    def ready(self, status: str) -> None:
        """Report that clients can connect. `status` is one line for the operator."""
        _cancel(self._starting)
        self._send("READY=1", f"STATUS={status}")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Report the beginning and the end of a reload."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self._send("READY=1")

    def stopping(self, seconds: float) -> None:
        """Report that the server stops, which may take that long."""
        _cancel(self._starting)
        self._send("STOPPING=1", "STATUS=stopping", _extension(seconds))

    def close(self) -> None:
        """Stop the periodic messages."""
        _cancel(self._starting)
        _cancel(self._watching)

    async def _repeat(self, seconds: float, *lines: str) -> None:
        while True:
            self._send(*lines)
            await asyncio.sleep(seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_TIMEOUT)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            # One warning is enough: the watchdog sends several messages a minute.
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            logger.log(level, "cannot send %s to the service manager (NOTIFY_SOCKET): %s", lines[0], error)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the time within which the service manager expects a message; 0 if it expects none from us."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}"


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
