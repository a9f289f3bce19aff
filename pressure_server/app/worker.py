"""A worker: one process of a server with --workers. Its supervisor starts it, and tells it what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

import uvloop
from setproctitle import setproctitle

from pressure_server.app import log_output
from pressure_server.app.server import Server
from pressure_server.app.workers.assignment import Assignment
from pressure_server.app.workers.channel import ALIVE, WORK, Channel
from pressure_server.errors import BackendError, StartError
from pressure_server.net.listener import SettingsError

logger = logging.getLogger(__name__)


async def work(supervisor: socket.socket) -> int:
    """Serve as the supervisor says over this socket, until it has gone or sends SIGTERM; return a status."""
    assigned: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
    server: Server | None = None

    async def answer(question: str, arguments: tuple[Any, ...]) -> Any:
        if question == WORK:
            assigned.set_result(arguments[0])
        elif question == ALIVE:
            return True
        elif server is not None:
            return await server.answer(question, arguments)
        return None

    channel = await Channel.over(supervisor, answer)
    ended = asyncio.create_task(channel.closed.wait())
    ended.add_done_callback(lambda _: assigned.cancel())
    try:
        assignment = await assigned
    except asyncio.CancelledError:
        return 1
    settings = assignment.settings
    log_output.configure(settings.log_level, settings.log_format, assignment.number)
    setproctitle(f"pressure-server: worker {assignment.number}")
    try:
        server = Server(settings, assignment, channel)
        ended.add_done_callback(lambda _: server.stop())
        await server.run()
    except (StartError, SettingsError, BackendError) as error:
        logger.error("cannot start: %s", error)
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(work(socket.socket(fileno=int(sys.argv[1])))))
