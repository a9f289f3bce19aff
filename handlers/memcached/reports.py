"""Reports on memcached's clients, for `stats`: each process of the server reports on its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from handlers.memcached.session import Counts, MemcachedSession
from pressure_server.net.clients import Clients
from pressure_server.net.workers import sum_fields


def report(clients: Clients, counts: Counts, reset: bool) -> Counts:
    """Return the counts of a listener, and the open reads; if `reset` is set, set the counts to 0 before."""
    if reset:
        counts.reset()
    found = [one for one in clients.connected if isinstance(one, MemcachedSession)]
    return replace(counts, opened=Counter(queue for one in found for queue in one.open_reads))


async def report_on_all(client: MemcachedSession, *, reset: bool = False) -> Counts:
    """Return the sum of the reports of all processes of the server."""
    found: list[Counts] = await client.context.workers.reports(client.report, reset)
    return sum_fields(Counts, found)
