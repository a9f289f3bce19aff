"""Reports on beanstalk's clients and their tubes, for `stats`, `stats-tube` and `list-tubes`.

Each process of the server reports on its own clients; the commands put the reports together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from handlers.beanstalk.listener_state import Statistics
from handlers.beanstalk.session import DEFAULT_TUBE, BeanstalkSession
from pressure_server.net.clients import Clients


@dataclass(frozen=True)
class TubeReport:
    """Clients that use and watch a tube; counts of commands.

    `pause` is for how many seconds the tube was paused last through this process.
    """

    using: int
    watching: int
    commands: Counter[str]
    pause: int


@dataclass(frozen=True)
class ServerReport:
    """Clients, the tubes that they use or watch, and counts of commands."""

    connections: int
    producers: int
    workers: int
    waiting: int
    commands: Counter[str]
    tubes: frozenset[bytes]


class Reporter:
    """Reports on the clients of one process. `statistics` has the counts of one listener."""

    def __init__(self, clients: Clients, statistics: Statistics) -> None:
        self._clients = clients
        self._statistics = statistics

    def report(self, tube: bytes | None) -> TubeReport | ServerReport:
        """Return a report on a tube, or on all."""
        found = [one for one in self._clients.connected if isinstance(one, BeanstalkSession)]
        return self._on_all(found) if tube is None else self._on_tube(tube, found)

    def _on_tube(self, tube: bytes, clients: list[BeanstalkSession]) -> TubeReport:
        return TubeReport(
            using=sum(one.used == tube for one in clients),
            watching=sum(tube in one.watched for one in clients),
            commands=self._statistics.of_tube(tube),
            pause=self._statistics.pauses.get(tube, 0),
        )

    def _on_all(self, clients: list[BeanstalkSession]) -> ServerReport:
        return ServerReport(
            connections=len(clients),
            producers=sum(one.is_producer for one in clients),
            workers=sum(one.is_worker for one in clients),
            waiting=sum(one.is_waiting for one in clients),
            commands=self._statistics.commands,
            tubes=frozenset().union(*({one.used, *one.watched} for one in clients)),
        )


async def report_on_tube(client: BeanstalkSession, tube: bytes) -> TubeReport:
    """Return the report on a tube of all processes of the server."""
    found: list[TubeReport] = await client.context.workers.reports(client.report, tube)
    return TubeReport(
        using=sum(one.using for one in found),
        watching=sum(one.watching for one in found),
        commands=sum((one.commands for one in found), Counter()),
        pause=max((one.pause for one in found), default=0),
    )


async def report_on_all(client: BeanstalkSession) -> ServerReport:
    """Return the report on all beanstalk clients of the server. As in beanstalkd, the default tube exists."""
    found: list[ServerReport] = await client.context.workers.reports(client.report, None)
    return ServerReport(
        connections=sum(one.connections for one in found),
        producers=sum(one.producers for one in found),
        workers=sum(one.workers for one in found),
        waiting=sum(one.waiting for one in found),
        commands=sum((one.commands for one in found), Counter()),
        tubes=frozenset({DEFAULT_TUBE}).union(*(one.tubes for one in found)),
    )


async def is_in_use(client: BeanstalkSession, tube: bytes) -> bool:
    """Return whether a client of the server uses or watches the tube. As in beanstalkd, it then exists."""
    report = await report_on_tube(client, tube)
    return tube == DEFAULT_TUBE or bool(report.using or report.watching)
