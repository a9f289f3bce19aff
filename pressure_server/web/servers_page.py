"""The page of servers: the processes of this server, its peers, and the shards of the backend."""

from typing import Any

from aiohttp import web

from pressure_server.text import printable
from pressure_server.web.http_requests import CONTEXT

# The totals of a process that are shown as they are.
_AS_THEY_ARE = (
    "connected", "blocked", "throttled", "commands_per_second", "buffered_bytes", "resident_bytes",
)  # fmt: skip


async def servers_view(request: web.Request) -> dict[str, Any]:
    """Return the processes of this server, the other servers, and the shards."""
    server = request.app[CONTEXT].server
    broker, processes = server.broker, await server.workers.processes()
    role = "server" if len(processes) == 1 else "worker"
    shards = zip(broker.default_database.shards, broker.why_not_ready(), strict=True)
    return {
        "processes": [
            {
                "name": name,
                "role": "supervisor" if role == "worker" and name == broker.identity else role,
                **{figure: getattr(totals, figure) for figure in _AS_THEY_ARE},
                "seconds": round(totals.user_seconds + totals.system_seconds),
            }
            for name, totals in processes.items()
        ],
        "peers": [peer._asdict() for peer in broker.peers if peer.name not in processes],
        "shards": [
            {
                "number": number,
                "prefix": printable(shard.prefix),
                "node": str(shard.route),
                "not_ready": "" if reason is None else str(reason),
                "lost_calls": shard.call_statistics.lost,
            }
            for number, (shard, reason) in enumerate(shards)
        ],
    }
