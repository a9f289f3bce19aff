"""Commands about the server and the connection, and statistics."""

import os
import time
from urllib.parse import quote

from handlers.memcached.arguments import number_of
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, ERROR, OK, statistics
from handlers.memcached.session import MemcachedSession, report_on_all
from handlers.memcached.table import FOLLOWED_VERSION, QUEUE, command, queue_command
from pressure_server import __version__
from pressure_server.errors import PressureError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Line

# Queue names are percent-encoded but for these bytes: Redis clients may give a queue any name, which would
# break a line of the reply. python-memcached also stops reading at other characters than ASCII.
_VISIBLE = bytes(set(range(ord("!"), ord("~") + 1)) - {ord("%")})
# Limits the reply: monitoring asks every few seconds, and each queue takes about ten lines.
_MAX_QUEUES = 1000
# Statistics about memcached's memory and connections: empty here.
_NOT_HERE = {"items", "slabs", "sizes", "conns", "cachedump", "detail"}


@command("version [<word>*]", needs="nothing")
def version(client: MemcachedSession, _request: Request) -> None:
    """Returns the version of memcached that the server follows; stats has the server's own."""
    client.reply(f"VERSION {FOLLOWED_VERSION}\r\n".encode())


@command("verbosity <level>", needs="nothing")
def verbosity(client: MemcachedSession, request: Request) -> None:
    """Does nothing; use --log-level."""
    number_of(request.words[1])
    client.reply(b"" if request.is_quiet else OK)


@command("quit [<word>*]", needs="nothing")
def quit_(client: MemcachedSession, _request: Request) -> None:
    """Closes the connection."""
    client.acknowledge_pops()
    client.close_when_replied()


@command("mn [<word>*]", needs="nothing")
def mn(client: MemcachedSession, _request: Request) -> None:
    """Returns MN: the replies to all earlier commands have come."""
    client.reply(b"MN\r\n")


@command("ready", needs="nothing")
def ready(client: MemcachedSession, _request: Request) -> None:
    """Returns OK if the server is ready for new clients."""
    client.context.check_readiness()
    client.reply(OK)


@command("stats [<about>] [<more>*]", needs="read")
async def stats(client: MemcachedSession, request: Request) -> bytes:
    """Returns the server's statistics, and in mode queue also the statistics of each queue."""
    about = request.words[1].decode("utf-8", "replace") if len(request.words) > 1 else ""
    if about == "reset":
        await report_on_all(client, reset=True)
        return b"RESET\r\n"
    if about == "settings":
        return statistics((await _settings(client)).items())
    if about:
        return END if about in _NOT_HERE else ERROR
    items: list[tuple[str, object]] = list((await _server(client)).items())
    if client.options.mode == QUEUE:
        queues = await _queues(client)
        for name, of_queue in (("curr_items", "items"), ("total_items", "total_items"), ("bytes", "bytes")):
            items.append((name, sum(one[of_queue] for one in queues.values())))
        items += [(f"queue_{name}_{what}", n) for name, one in queues.items() for what, n in one.items()]
    return statistics(items)


@queue_command("dump_stats", needs="read")
async def dump_stats(client: MemcachedSession, _request: Request) -> bytes:
    """Returns each queue's statistics, grouped by queue."""
    lines: list[str] = []
    for name, numbers in (await _queues(client)).items():
        lines += [f"queue '{name}' {{", *(f"  {what}={n}" for what, n in numbers.items()), "}"]
    return "".join(f"{line}\r\n" for line in lines).encode() + END


async def _server(client: MemcachedSession) -> dict[str, object]:
    totals, counts = await client.context.workers.totals(), await report_on_all(client)
    return {
        "pid": os.getpid(),
        "uptime": int(time.time() - client.context.started),
        "time": int(time.time()),
        "version": FOLLOWED_VERSION,
        "pressure_server": __version__,
        "pointer_size": 64,
        "rusage_user": f"{totals.user_seconds:.6f}",
        "rusage_system": f"{totals.system_seconds:.6f}",
        "max_connections": totals.max_clients,
        "curr_connections": totals.connected,
        "total_connections": totals.accepted + totals.rejected,
        "rejected_connections": totals.rejected,
        "cmd_get": counts.gets,
        "cmd_set": counts.sets,
        "cmd_peek": counts.peeks,
        "cmd_touch": counts.touches,
        "cmd_flush": counts.flushes,
        "get_hits": counts.hits,
        "get_misses": counts.gets - counts.hits,
        "threads": 1,
    }


async def _settings(client: MemcachedSession) -> dict[str, object]:
    settings = client.context.settings
    return {
        "mode": client.options.mode,
        "flush_all": "yes" if client.options.flush_all else "no",
        "maxconns": (await client.context.workers.totals()).max_clients,
        "item_size_max": settings.max_message_bytes,
        "idle_timeout": f"{settings.idle_timeout:g}",
        "cas_enabled": "yes",
        "flush_enabled": "yes" if client.options.flush_all else "no",
        "auth_enabled_ascii": "no" if client.clients.access.users.initial.rights else "yes",
    }


async def _queues(client: MemcachedSession) -> dict[str, dict[str, int]]:
    """Return statistics by queue, for up to _MAX_QUEUES queues that the user may see."""
    names = sorted(filter(client.user.may_access, (await client.database.sample_queues())[0]))[:_MAX_QUEUES]
    opened = (await report_on_all(client)).opened
    waiting = await client.context.workers.waiting(client.database.database_number, names)
    found: dict[str, dict[str, int]] = {}
    for name, about in zip(names, await client.database.run_each(verbs.INFO, names), strict=True):
        if isinstance(about, PressureError):
            continue
        size = max(0, about.produced_bytes - about.consumed_bytes)
        # kestrel's names, in its order.
        found[quote(name, safe=_VISIBLE)] = {
            "items": about.length,
            "bytes": size,
            "total_items": about.produced,
            "mem_items": about.length,
            "mem_bytes": size,
            "waiters": waiting[name][Line.CONSUMERS],
            "open_transactions": opened[name],
            "bound": about.bound,
            "closed": about.is_closed,
        }
    return found
