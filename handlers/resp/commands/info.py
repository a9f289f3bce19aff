"""INFO: Redis's sections and format, for monitoring tools, and the sections Backend, Limits and Queues."""

import os
import platform
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import quote

from handlers.resp.session import RespSession
from handlers.resp.table import FOLLOWED_VERSION, PROTOCOL
from pressure_server import __version__
from pressure_server.compiled import variant
from pressure_server.errors import PressureError
from pressure_server.net.command_statistics import CommandStatistics
from pressure_server.net.workers import Waiting
from pressure_server.queues.database import Database
from pressure_server.queues.names import QUEUES
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.upkeep import stored_bytes

# Monitoring calls INFO every few seconds. So a scan of limited length finds the queues of each database, and
# at most this many are listed.
_QUEUE_LINES = 128

_MICROSECONDS = 1_000_000
# Characters that would break the format. Codes of errors can come from the backend.
_NOT_IN_CODES = re.compile(r"[^A-Za-z0-9_.-]")
_Fields = dict[str, object]
_ALL = {b"all", b"everything"}
# Sections that only `all`, `everything` or their own names select, as in Redis.
_NOT_BY_DEFAULT = {b"commandstats", b"latencystats"}


async def _databases(client: RespSession) -> list[Database]:
    """Return the databases that clients of this server have used, by number."""
    context = client.context
    return [await context.broker.database(number) for number in await context.workers.databases()]


async def _some_queues(client: RespSession, database: Database) -> tuple[list[bytes], bool]:
    """Return queues that the user may use, and whether the scan has seen all queues."""
    names, complete = await database.sample_queues()
    return list(filter(client.user.may_access, names)), complete


async def _keyspace(client: RespSession) -> _Fields:
    fields: _Fields = {}
    for database in await _databases(client):
        names, _complete = await _some_queues(client, database)
        if names:
            fields[f"db{database.database_number}"] = f"keys={len(names)},expires=0,avg_ttl=0"
    return fields


async def _queues(client: RespSession) -> _Fields:
    """Return a line for each queue. Queues of the selected database come first."""
    lines: _Fields = {}
    is_complete, room = True, _QUEUE_LINES
    for database in sorted(await _databases(client), key=lambda database: database is not client.database):
        names, complete = await _some_queues(client, database)
        is_complete = is_complete and complete and len(names) <= room
        listed = sorted(names)[:room]
        room -= len(listed)
        prefix = "" if database is client.database else f"db{database.database_number}_"
        waiting = await client.context.workers.waiting(database.database_number, listed)
        for name, about in zip(listed, await database.run_each(verbs.INFO, listed), strict=True):
            if not isinstance(about, PressureError):
                line = ",".join(_fields_of(client, database, name, about, waiting[name]))
                lines[f"{prefix}queue_{quote(name, safe='')}"] = line
    return {"queues_listed": _QUEUE_LINES - room, "queues_complete": int(is_complete), **lines}


def _fields_of(
    client: RespSession, database: Database, name: bytes, about: QueueInfo, waiting: Waiting
) -> Iterator[str]:
    yield f"length={about.length},bound={about.bound},closed={about.is_closed}"
    yield f"produced={about.produced},produced_bytes={about.produced_bytes}"
    yield f"consumed={about.consumed},consumed_bytes={about.consumed_bytes}"
    yield f"waiting_producers={waiting[Line.PRODUCERS]},waiting_consumers={waiting[Line.CONSUMERS]}"
    survey = client.context.survey
    surveyed = survey and survey.queues.get((database.database_number, name))
    if surveyed:
        yield f"oldest_seconds={surveyed.age if about.length else 0:.0f}"
    kind = about.type.decode()
    yield f"type={kind}"
    if about.ack:
        yield f"ack={about.ack.decode()}"
    if about.ack or kind not in ("fifo", "log"):
        yield f"ready={about.ready},delayed={about.delayed},reserved={about.reserved},buried={about.buried}"
        yield f"paused_ms={about.paused}"


def shown_name(statistics: CommandStatistics) -> str:
    """Return the command's name. If it is not a RESP command, the name begins with its protocol."""
    return statistics.name if statistics.protocol == PROTOCOL else f"{statistics.protocol}.{statistics.name}"


async def _commandstats(client: RespSession) -> _Fields:
    """Return the calls of each command. `usec` is the time of the measured ones."""
    fields: _Fields = {}
    for one in await client.context.workers.statistics():
        microseconds, measured = one.seconds * _MICROSECONDS, sum(one.latencies)
        fields[f"cmdstat_{shown_name(one)}"] = (
            f"calls={one.calls},usec={microseconds:.0f},usec_per_call={microseconds / (measured or 1):.2f},"
            f"rejected_calls={one.rejected},failed_calls={one.failed}"
        )
    return fields


async def _errors_by_code(client: RespSession) -> Counter[str]:
    """Return how many commands of all protocols got each error."""
    errors: Counter[str] = Counter()
    for one in await client.context.workers.statistics():
        errors.update({_NOT_IN_CODES.sub("_", code): count for code, count in one.errors.items()})
    return errors


async def _errorstats(client: RespSession) -> _Fields:
    errors = await _errors_by_code(client)
    return {f"errorstat_{code}": f"count={count}" for code, count in sorted(errors.items())}


async def _latencystats(client: RespSession) -> _Fields:
    """Return percentiles of the latency of each command that has been measured."""
    return {
        f"latency_percentiles_usec_{shown_name(one)}": ",".join(
            f"p{percent:g}={one.percentile(percent / 100) * _MICROSECONDS:.3f}" for percent in (50, 99, 99.9)
        )
        for one in await client.context.workers.statistics()
        if any(one.latencies)
    }


async def _server(client: RespSession) -> _Fields:
    up = int(time.time() - client.context.started)
    return {
        "redis_version": FOLLOWED_VERSION,
        "redis_mode": "standalone",
        "pressure_server_version": __version__,
        "pressure_server_code": variant(),
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
    totals = await client.context.workers.totals()
    return {
        "connected_clients": totals.connected,
        "maxclients": totals.max_clients,
        "blocked_clients": totals.blocked,
        "throttled_clients": totals.throttled,
        "waiting_operations": totals.waiting_operations,
        "max_waiting": totals.max_waiting,
    }


async def _memory(client: RespSession) -> _Fields:
    totals = await client.context.workers.totals()
    peak, used = totals.peak_bytes, totals.resident_bytes
    return {
        "used_memory": used,
        "used_memory_human": f"{used / 2**20:.2f}M",
        "used_memory_rss": used,
        "used_memory_peak": peak,
        "used_memory_peak_human": f"{peak / 2**20:.2f}M",
        "buffered_bytes": totals.buffered_bytes,
        "max_buffered_bytes": totals.max_buffered_bytes,
        "maxmemory": 0,
        "maxmemory_human": "0B",
        "maxmemory_policy": "noeviction",
    }


async def _stats(client: RespSession) -> _Fields:
    totals = await client.context.workers.totals()
    return {
        "total_connections_received": totals.accepted + totals.rejected,
        "total_commands_processed": totals.commands,
        "instantaneous_ops_per_sec": totals.commands_per_second,
        "rejected_connections": totals.rejected,
        "total_error_replies": (await _errors_by_code(client)).total(),
        "acl_access_denied_auth": totals.failed_logins,
        "acl_access_denied_cmd": totals.refused_commands,
        "acl_access_denied_key": totals.refused_queues,
        "evicted_clients": totals.evicted,
    }


async def _cpu(client: RespSession) -> _Fields:
    totals = await client.context.workers.totals()
    return {"used_cpu_sys": f"{totals.system_seconds:.6f}", "used_cpu_user": f"{totals.user_seconds:.6f}"}


async def _backend(client: RespSession) -> _Fields:
    broker = client.context.broker
    numbered = enumerate(zip(broker.default_database.shards, broker.why_not_ready(), strict=True))
    shards = {
        f"shard_{number}": f"prefix={shard.prefix.decode()},node={shard.route},"
        f"status={'down' if reason else 'up'},lost_calls={shard.call_statistics.lost}"
        for number, (shard, reason) in numbered
    }
    return {
        "backend_url": broker.address,
        "backend_database": broker.address.database,
        "backend_link_status": "up" if broker.is_up else "down",
        "backend_version": broker.version,
        "identity": broker.identity,
        "other_servers": client.database.peer_count,
        "prefix": client.context.settings.prefix,
        **(shards if len(shards) > 1 else {}),
    }


async def _limits(client: RespSession) -> _Fields:
    broker, shards = client.context.broker, client.database.reachable_shards
    policy = broker.policy
    return {
        "queues": sum([await shard.keys.command(b"SCARD", shard.prefix + QUEUES) for shard in shards]),
        "max_queues": policy.max_queues,
        "default_bound": policy.create_bound or 0,
        "default_max_bytes": policy.max_bytes,
        "stored_bytes": await stored_bytes(broker),
        "max_stored_bytes": policy.max_stored_bytes,
    }


_SECTIONS: dict[str, _Fields | Callable[[RespSession], Awaitable[_Fields]]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": {"loading": 0},
    "Stats": _stats,
    "Replication": {"role": "master", "connected_slaves": 0},
    "CPU": _cpu,
    "Commandstats": _commandstats,
    "Errorstats": _errorstats,
    "Latencystats": _latencystats,
    "Cluster": {"cluster_enabled": 0},
    "Keyspace": _keyspace,
    "Backend": _backend,
    "Limits": _limits,
    "Queues": _queues,
}
_DEFAULT = {title.lower().encode() for title in _SECTIONS} - _NOT_BY_DEFAULT


async def info_text(client: RespSession, wanted: list[bytes]) -> str:
    """Return the wanted sections, or the default ones if `wanted` is empty.

    Sections that need the backend are empty while it is down. If a shard of a cluster is away, its queues are
    not counted.
    """
    names = {name.lower() for name in wanted} or {b"default"}
    if b"default" in names:
        names |= _DEFAULT
    blocks: list[str] = []
    for title, section in _SECTIONS.items():
        if not names & _ALL and title.lower().encode() not in names:
            continue
        try:
            fields = section if isinstance(section, dict) else await section(client)
        except PressureError:
            fields = {}
        blocks.append("".join([f"# {title}\r\n", *(f"{name}:{value}\r\n" for name, value in fields.items())]))
    return "\r\n".join(blocks)
