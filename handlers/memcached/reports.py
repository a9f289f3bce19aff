"""Reports on memcached's clients, for `stats`: each process of the server reports on its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from handlers.memcached.session import Counts, MemcachedSession
from pressure_server.net.clients import Clients
from pressure_server.net.workers import sum_fields


@dataclass(frozen=True)
class Report:
    """The counts of commands of one listener, and how many messages clients have opened, by queue."""

    counts: Counts
    opened: Counter[bytes]


class Reporter:
    """Reports on the clients of one process. `counts` has the counts of one listener."""

    def __init__(self, clients: Clients, counts: Counts) -> None:
        self._clients = clients
        self._counts = counts

    def report(self, reset: bool) -> Report:
        """Return a report; if `reset` is set, set the counts to 0 before."""
        if reset:
            self._counts.reset()
        found = [one for one in self._clients.connected if isinstance(one, MemcachedSession)]
        return Report(self._counts, Counter(queue for one in found for queue in one.open_reads))


async def report_on_all(client: MemcachedSession, *, reset: bool = False) -> Report:
    """Return the report of all processes of the server; if `reset` is set, set the counts to 0 before."""
    found: list[Report] = await client.context.workers.reports(client.report, reset)
    return Report(
        sum_fields(Counts, [one.counts for one in found]), sum((one.opened for one in found), Counter())
    )
