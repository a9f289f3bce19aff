"""INFO: Redis's sections and format, for monitoring tools, and the sections Backend, Limits and Queues."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from handlers.resp.client import RespClient
from handlers.resp.version import FOLLOWED_VERSION
from pressure_server import __version__
from pressure_server.errors import PressureError
from pressure_server.queues.names import queues_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.storage_limit import stored_bytes

# Monitoring calls INFO every few seconds. So a scan of limited length finds the queues, and at most this many
# are listed.
_QUEUE_LINES = 128

_Fields = dict[str, object]


async def _server(client: RespClient) -> _Fields:
    up = int(time.time() - client.context.started)
    return {
        "redis_version": FOLLOWED_VERSION,
        "redis_mode": "standalone",
        "pressure_server_version": __version__,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": 64,
        "multiplexing_api": "uvloop",
        "process_id": os.getpid(),
        "run_id": client.context.broker.identity,
        "tcp_port": next((listen.port for listen in client.context.listening if listen.port), 0),
        "server_time_usec": time.time_ns() // 1000,
        "uptime_in_seconds": up,
        "uptime_in_days": up // 86400,
        "python_version": platform.python_version(),
    }


async def _clients(client: RespClient) -> _Fields:
    return {
        "connected_clients": len(client.clients.connected),
        "maxclients": client.clients.max_clients,
        "blocked_clients": sum(connected.is_waiting for connected in client.clients.connected),
        "throttled_clients": client.clients.memory.throttled,
        "waiting_operations": len(client.context.broker.waiters),
        "max_waiting": client.context.broker.waiters.limit,
    }


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _memory(client: RespClient) -> _Fields:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used = _resident_bytes()
    return {
        "used_memory": used,
        "used_memory_human": f"{used / 2**20:.2f}M",
        "used_memory_rss": used,
        "used_memory_peak": peak,
        "used_memory_peak_human": f"{peak / 2**20:.2f}M",
        "buffered_bytes": client.clients.memory.held,
        "max_buffered_bytes": client.clients.memory.limit,
        "maxmemory": 0,
        "maxmemory_human": "0B",
        "maxmemory_policy": "noeviction",
    }


async def _persistence(_client: RespClient) -> _Fields:
    return {"loading": 0}


async def _stats(client: RespClient) -> _Fields:
    clients = client.clients
    return {
        "total_connections_received": clients.accepted + clients.rejected,
        "total_commands_processed": clients.commands,
        "instantaneous_ops_per_sec": clients.commands_per_second,
        "rejected_connections": clients.rejected,
        "acl_access_denied_auth": clients.access.logins.denied,
        "acl_access_denied_cmd": clients.access.refused["cmd"],
        "acl_access_denied_key": clients.access.refused["key"],
        "evicted_clients": clients.memory.evicted,
    }


async def _replication(_client: RespClient) -> _Fields:
    return {"role": "master", "connected_slaves": 0}


async def _cpu(_client: RespClient) -> _Fields:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"used_cpu_sys": f"{usage.ru_stime:.6f}", "used_cpu_user": f"{usage.ru_utime:.6f}"}


async def _cluster(_client: RespClient) -> _Fields:
    return {"cluster_enabled": 0}


async def _backend(client: RespClient) -> _Fields:
    broker = client.context.broker
    return {
        "backend_url": broker.address,
        "backend_database": broker.address.database,
        "backend_link_status": "up" if broker.is_up else "down",
        "backend_version": broker.version,
        "identity": broker.identity,
        "other_servers": client.connection.database.peer_count,
        "prefix": client.context.settings.prefix,
    }


async def _limits(client: RespClient) -> _Fields:
    broker, database = client.context.broker, client.connection.database
    policy = broker.policy
    return {
        "queues": await database.command(b"SCARD", queues_key(database.prefix)),
        "max_queues": policy.max_queues,
        "default_bound": policy.create_bound or 0,
        "default_max_bytes": policy.max_bytes,
        "stored_bytes": await stored_bytes(broker),
        "max_stored_bytes": policy.max_stored_bytes,
    }


async def _some_queues(client: RespClient) -> tuple[list[bytes], bool]:
    """Return queues that the user may use, and whether the scan has seen all queues."""
    names, complete = await client.database.sample_queues()
    return list(filter(client.user.may_access, names)), complete


async def _keyspace(client: RespClient) -> _Fields:
    names, _complete = await _some_queues(client)
    return {f"db{client.database.database_number}": f"keys={len(names)},expires=0,avg_ttl=0"} if names else {}


async def _queues(client: RespClient) -> _Fields:
    names, complete = await _some_queues(client)
    fields: _Fields = {
        "queues_listed": min(len(names), _QUEUE_LINES),
        "queues_complete": int(complete and len(names) <= _QUEUE_LINES),
    }
    for name in sorted(names)[:_QUEUE_LINES]:
        try:
            about = (await client.database.run(verbs.INFO, name))[0]
        except PressureError:
            continue
        fields[f"queue_{quote(name, safe='')}"] = (
            f"length={about[1]},bound={about[0]},closed={about[2]},"
            f"produced={about[7]},produced_bytes={about[8]},consumed={about[9]},consumed_bytes={about[10]}"
        )
    return fields


_SECTIONS: dict[str, Callable[[RespClient], Awaitable[_Fields]]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Stats": _stats,
    "Replication": _replication,
    "CPU": _cpu,
    "Cluster": _cluster,
    "Keyspace": _keyspace,
    "Backend": _backend,
    "Limits": _limits,
    "Queues": _queues,
}
_ALL = {b"all", b"everything", b"default"}


async def info_text(client: RespClient, wanted: list[bytes]) -> str:
    """Return the wanted sections, or all if `wanted` is empty.

    Sections that need the backend are empty while it is down.
    """
    names = {name.lower() for name in wanted}
    blocks: list[str] = []
    for title, fields_of in _SECTIONS.items():
        if names and not names & _ALL and title.lower().encode() not in names:
            continue
        try:
            fields = await fields_of(client)
        except PressureError:
            fields = {}
        blocks.append("".join([f"# {title}\r\n", *(f"{name}:{value}\r\n" for name, value in fields.items())]))
    return "\r\n".join(blocks)
