"""INFO: Redis's sections and format, for monitoring tools, and the sections Backend, Limits and Queues."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable

from handlers.resp.commands.info_queues import keyspace_fields, queue_fields
from handlers.resp.commands.info_statistics import (
    command_fields,
    error_fields,
    errors_by_code,
    latency_fields,
)
from handlers.resp.commands.process_memory import peak_bytes, resident_bytes
from handlers.resp.session import RespSession
from handlers.resp.version import FOLLOWED_VERSION
from pressure_server import __version__
from pressure_server.errors import PressureError
from pressure_server.queues.names import queues_key
from pressure_server.queues.storage_limit import stored_bytes

_Fields = dict[str, object]


async def _server(client: RespSession) -> _Fields:
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


async def _clients(client: RespSession) -> _Fields:
    return {
        "connected_clients": len(client.clients.connected),
        "maxclients": client.clients.max_clients,
        "blocked_clients": sum(connected.is_waiting for connected in client.clients.connected),
        "throttled_clients": client.clients.memory.throttled,
        "waiting_operations": len(client.context.broker.waiters),
        "max_waiting": client.context.broker.waiters.limit,
    }


async def _memory(client: RespSession) -> _Fields:
    peak, used = peak_bytes(), resident_bytes()
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


async def _persistence(_client: RespSession) -> _Fields:
    return {"loading": 0}


async def _stats(client: RespSession) -> _Fields:
    clients = client.clients
    return {
        "total_connections_received": clients.accepted + clients.rejected,
        "total_commands_processed": clients.commands,
        "instantaneous_ops_per_sec": clients.commands_per_second,
        "rejected_connections": clients.rejected,
        "total_error_replies": errors_by_code().total(),
        "acl_access_denied_auth": clients.access.logins.denied,
        "acl_access_denied_cmd": clients.access.refused["cmd"],
        "acl_access_denied_key": clients.access.refused["key"],
        "evicted_clients": clients.memory.evicted,
    }


async def _replication(_client: RespSession) -> _Fields:
    return {"role": "master", "connected_slaves": 0}


async def _cpu(_client: RespSession) -> _Fields:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"used_cpu_sys": f"{usage.ru_stime:.6f}", "used_cpu_user": f"{usage.ru_utime:.6f}"}


async def _cluster(_client: RespSession) -> _Fields:
    return {"cluster_enabled": 0}


async def _backend(client: RespSession) -> _Fields:
    broker = client.context.broker
    return {
        "backend_url": broker.address,
        "backend_database": broker.address.database,
        "backend_link_status": "up" if broker.is_up else "down",
        "backend_version": broker.version,
        "identity": broker.identity,
        "other_servers": client.session.database.peer_count,
        "prefix": client.context.settings.prefix,
    }


async def _limits(client: RespSession) -> _Fields:
    broker, database = client.context.broker, client.session.database
    policy = broker.policy
    return {
        "queues": await database.command(b"SCARD", queues_key(database.prefix)),
        "max_queues": policy.max_queues,
        "default_bound": policy.create_bound or 0,
        "default_max_bytes": policy.max_bytes,
        "stored_bytes": await stored_bytes(broker),
        "max_stored_bytes": policy.max_stored_bytes,
    }


async def _commandstats(_client: RespSession) -> _Fields:
    return command_fields()


async def _errorstats(_client: RespSession) -> _Fields:
    return error_fields()


async def _latencystats(_client: RespSession) -> _Fields:
    return latency_fields()


_SECTIONS: dict[str, Callable[[RespSession], Awaitable[_Fields]]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Stats": _stats,
    "Replication": _replication,
    "CPU": _cpu,
    "Commandstats": _commandstats,
    "Errorstats": _errorstats,
    "Latencystats": _latencystats,
    "Cluster": _cluster,
    "Keyspace": keyspace_fields,
    "Backend": _backend,
    "Limits": _limits,
    "Queues": queue_fields,
}
_ALL = {b"all", b"everything"}
# Sections that only `all`, `everything` or their own names select, as in Redis.
_NOT_BY_DEFAULT = {b"commandstats", b"latencystats"}
_DEFAULT = {title.lower().encode() for title in _SECTIONS} - _NOT_BY_DEFAULT


async def info_text(client: RespSession, wanted: list[bytes]) -> str:
    """Return the wanted sections, or the default ones if `wanted` is empty.

    Sections that need the backend are empty while it is down.
    """
    names = {name.lower() for name in wanted} or {b"default"}
    if b"default" in names:
        names |= _DEFAULT
    blocks: list[str] = []
    for title, fields_of in _SECTIONS.items():
        if not names & _ALL and title.lower().encode() not in names:
            continue
        try:
            fields = await fields_of(client)
        except PressureError:
            fields = {}
        blocks.append("".join([f"# {title}\r\n", *(f"{name}:{value}\r\n" for name, value in fields.items())]))
    return "\r\n".join(blocks)
