"""A worker: one process of a server with --workers. Its supervisor starts it, and tells it what to do."""

import logging
import socket
import sys

import uvloop
from setproctitle import setproctitle

from pressure_server.app import log_output
from pressure_server.app.server import Server
from pressure_server.app.workers.channel import WORK, Assignment, Channel, ChannelClosedError
from pressure_server.errors import BackendError, StartError
from pressure_server.net.listener import SettingsError

logger = logging.getLogger(__name__)


async def work(supervisor: socket.socket) -> int:
    """Serve as the supervisor says over this socket, until it has gone or sends SIGTERM; return a status."""
    channel = await Channel.over(supervisor)
    try:
        assignment: Assignment = await channel.ask(WORK)
        settings = assignment.settings
        log_output.configure(settings.log_level, settings.log_format, assignment.number)
        setproctitle(f"pressure-server: worker {assignment.number}")
        server = Server(settings, assignment, channel)
        channel.closed.add_done_callback(lambda _: server.stop())
        await server.run()
    except ChannelClosedError:
        return 1
    except (StartError, SettingsError, BackendError) as error:
        logger.error("cannot start: %s", error)
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(work(socket.socket(fileno=int(sys.argv[1])))))
