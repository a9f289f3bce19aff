"""Reports on beanstalk's clients and their tubes, for `stats`, `stats-tube` and `list-tubes`.

Each process of the server reports on its own clients; the commands put the reports together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from handlers.beanstalk.listener_state import ListenerState
from handlers.beanstalk.session import DEFAULT_TUBE, BeanstalkSession
from pressure_server.net.clients import Clients
from pressure_server.net.workers import sum_fields


@dataclass(frozen=True)
class TubeReport:
    """Clients that use and watch a tube; counts of commands.

    `pauses` has for how many seconds the tube was paused last through each process.
    """

    using: int
    watching: int
    commands: Counter[str]
    pauses: tuple[int, ...]


@dataclass(frozen=True)
class ServerReport:
    """Clients, the tubes that they use or watch, and counts of commands."""

    connections: int
    producers: int
    workers: int
    waiting: int
    commands: Counter[str]
    tubes: tuple[bytes, ...]


def report(clients: Clients, listener: ListenerState, tube: bytes | None) -> TubeReport | ServerReport:
    """Return a report on a tube, or on all, with the counts of one listener."""
    found = [one for one in clients.connected if isinstance(one, BeanstalkSession)]
    if tube is not None:
        return TubeReport(
            using=sum(one.used == tube for one in found),
            watching=sum(tube in one.watched for one in found),
            commands=listener.of_tube(tube),
            pauses=(listener.pauses.get(tube, 0),),
        )
    return ServerReport(
        connections=len(found),
        producers=sum(one.is_producer for one in found),
        workers=sum(one.is_worker for one in found),
        waiting=sum(one.is_waiting for one in found),
        commands=listener.commands,
        # As in beanstalkd, the default tube exists.
        tubes=tuple({DEFAULT_TUBE}.union(*({one.used, *one.watched} for one in found))),
    )


async def report_on_tube(client: BeanstalkSession, tube: bytes) -> TubeReport:
    """Return the report on a tube of all processes of the server."""
    found: list[TubeReport] = await client.context.workers.reports(client.listener.report, tube)
    return sum_fields(TubeReport, found)


async def report_on_all(client: BeanstalkSession) -> ServerReport:
    """Return the report on all beanstalk clients of the server. Its `tubes` may have a tube several times."""
    found: list[ServerReport] = await client.context.workers.reports(client.listener.report, None)
    return sum_fields(ServerReport, found)


async def is_in_use(client: BeanstalkSession, tube: bytes) -> bool:
    """Return whether a client of the server uses or watches the tube. As in beanstalkd, it then exists."""
    report = await report_on_tube(client, tube)
    return tube == DEFAULT_TUBE or bool(report.using or report.watching)
