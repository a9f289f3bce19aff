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
class Report:
    """What clients do and have done, on one tube or on all.

    `counts` are by the names that stats-tube and stats have for clients, and by commands. `tubes` are those
    that clients use or watch, some several times. `pauses` has for how many seconds the tube was paused last
    through each process.
    """

    counts: Counter[str]
    tubes: tuple[bytes, ...] = ()
    pauses: tuple[int, ...] = ()


def report(clients: Clients, listener: ListenerState, tube: bytes | None) -> Report:
    """Return a report on a tube, or on all, with the counts of one listener."""
    found = [one for one in clients.connected if isinstance(one, BeanstalkSession)]
    if tube is not None:
        using, watching = sum(one.used == tube for one in found), sum(tube in one.watched for one in found)
        counts = Counter({"current-using": using, "current-watching": watching})
        return Report(counts + listener.of_tube(tube), pauses=(listener.pauses.get(tube, 0),))
    counts = Counter(
        {
            "current-connections": len(found),
            "current-producers": sum(one.is_producer for one in found),
            "current-workers": sum(one.is_worker for one in found),
            "current-waiting": sum(one.is_waiting for one in found),
        }
    )
    # As in beanstalkd, the default tube exists.
    tubes = {DEFAULT_TUBE}.union(*({one.used, *one.watched} for one in found))
    return Report(counts + listener.commands, tubes=tuple(tubes))


async def report_on(client: BeanstalkSession, tube: bytes | None = None) -> Report:
    """Return the report of all processes of the server on a tube, or on all."""
    found: list[Report] = await client.context.workers.reports(client.listener.report, tube)
    return sum_fields(Report, found)


async def is_in_use(client: BeanstalkSession, tube: bytes) -> bool:
    """Return whether a client of the server uses or watches the tube. As in beanstalkd, it then exists."""
    counts = (await report_on(client, tube)).counts
    return tube == DEFAULT_TUBE or bool(counts["current-using"] or counts["current-watching"])
