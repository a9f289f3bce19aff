"""Commands on the server: INFO (see info.py), COMMAND, CONFIG, ACL, slow log, latencies, MONITOR, memory."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import accumulate
from math import inf
from time import time_ns
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import integer_of, number_between
from handlers.resp.commands.info import info_text, shown_name
from handlers.resp.parser import Words
from handlers.resp.replies import OK, Text, too_many_arguments
from handlers.resp.session import Caller, TransactionCaller
from handlers.resp.table import COMMANDS, Command, command_docs, command_info, dispatch, help_of
from pressure_server.backend.replica_waits import Deadline
from pressure_server.errors import CommandError
from pressure_server.net.command_statistics import upper_limit
from pressure_server.queues.operations.wait import Unblocking
from pressure_server.text import Glob
from pressure_server.words import count_from_zero, integer_from, syntax_error

command = partial(table.command, group="server")
container = partial(table.container, group="server")

# The most names in COMMAND INFO: each adds a description to the reply, even if it is repeated.
_MAX_NAMES = 1000
_MAX_PARAMETERS = 64
_SLOW_SHOWN = 10
_MICROSECONDS = 1_000_000
# Redis's default: how many items of a collection the backend measures.
_SAMPLES = 5

_milliseconds = number_between(-(2**63), 2**63 - 1, "timeout is not an integer or out of range")


@command("TIME", needs="nothing", flags="fast")
async def time(_client: Caller, _words: Words) -> list[bytes]:
    """Returns the server's time: seconds, and microseconds."""
    seconds, nanoseconds = divmod(time_ns(), 10**9)
    return [b"%d" % seconds, b"%d" % (nanoseconds // 1000)]


@command("ROLE", needs="nothing", flags="fast")
async def role(_client: Caller, _words: Words) -> list[object]:
    """Returns master, 0 and no replicas: to a client, a pressure-server is a master. `INFO backend` describes
    the backend.
    """
    return [b"master", 0, []]


@command("WAIT numreplicas timeout", needs="nothing", flags="blocking")
async def wait(client: Caller, words: Words) -> int:
    """Waits until `numreplicas` replicas of the backend have stored all puts and gets of the client, up to
    `timeout` milliseconds (0: forever). Returns how many have; in a cluster, the lowest of all shards. With
    `--durability replica:N`, every reply waits for them.
    """
    replicas, timeout = max(0, integer_of(words[1])), _milliseconds(words[2])
    if timeout < 0:
        raise CommandError("ERR timeout is negative")
    broker = client.session.context.broker
    if isinstance(client, TransactionCaller):
        return await broker.wait_for_replicas(replicas, Deadline(_now()))
    waiter = _ReplicaWaiter(Deadline(_now() + (timeout / 1000 or inf)))
    client.begin_wait(waiter, ())
    try:
        found = await broker.wait_for_replicas(replicas, waiter.deadline)
    finally:
        client.end_wait(waiter)
    if found < replicas and waiter.unblocking is not None:
        unblocked = waiter.unblocking.take_effect()
        if unblocked is not None:
            raise unblocked
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()


class _ReplicaWaiter:
    """A client that waits for replicas."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.unblocking: Unblocking | None = None

    def unblock(self, unblocking: Unblocking) -> None:
        """See owners.Waiter."""
        self.unblocking = unblocking
        self.deadline.at = _now()


@command("INFO [section [section ...]]", needs="read")
async def info(client: Caller, words: Words) -> Text:
    """Describes the server, its backend and the queues."""
    return Text((await info_text(client.session, words[1:])).encode())


@command("COMMAND [subcommand [argument ...]]", needs="nothing")
def command_(client: Caller, words: Words) -> Coroutine[Any, Any, Any] | None:
    """Describes the commands."""
    return dispatch(client, words) if len(words) > 1 else command_info_(client, [b"COMMAND", b"INFO"])


def _named(names: list[bytes]) -> list[Command | None]:
    """Return the commands and subcommands of these names, None for unknown ones; all if there are none."""
    found: list[Command | None] = [] if names else list(COMMANDS.values())
    for name in names:
        first, _, sub = name.upper().partition(b"|")
        entry = COMMANDS.get(first)
        found.append(entry.subcommands.get(sub) if entry is not None and sub else entry)
    return found


@command("COMMAND|COUNT", needs="nothing")
async def command_count(_client: Caller, _words: Words) -> int:
    """Returns the number of commands."""
    return len(COMMANDS)


@command("COMMAND|INFO [command-name [command-name ...]]", needs="nothing")
async def command_info_(_client: Caller, words: Words) -> list[object]:
    """Returns the arity, flags and key positions of commands."""
    if len(words) > _MAX_NAMES:
        raise CommandError(f"ERR too many command names: at most {_MAX_NAMES}")
    return [command_info(entry) if entry is not None else None for entry in _named(words[2:])]


@command("COMMAND|DOCS [command-name [command-name ...]]", needs="nothing")
async def command_docs_(_client: Caller, words: Words) -> dict[bytes, object]:
    """Returns the documentation of commands."""
    named = _named(words[2:])
    return {entry.name.encode(): command_docs(entry) for entry in named if entry is not None}


@command("COMMAND|LIST", needs="nothing")
async def command_list(_client: Caller, _words: Words) -> list[bytes]:
    """Lists the names of the commands."""
    # FILTERBY is not supported.
    return [entry.name.encode() for entry in COMMANDS.values()]


@command("COMMAND|GETKEYS command argument [argument ...]", needs="nothing")
async def command_getkeys(_client: Caller, words: Words) -> list[bytes]:
    """Returns the keys of a command."""
    # Unlike Redis, reject an invalid numkeys, as the command itself does.
    described = words[2:]
    entry = COMMANDS.get(described[0].upper())
    if entry is not None and entry.subcommands and len(described) > 1:
        entry = entry.subcommands.get(described[1].upper())
    if entry is None:
        raise CommandError("ERR Invalid command specified")
    if not entry.accepts(len(described)):
        raise CommandError("ERR Invalid number of arguments specified for command")
    if not entry.names_queues:
        raise CommandError("ERR The command has no key arguments")
    try:
        return entry.queues_of(described)
    except CommandError:
        raise CommandError("ERR Invalid arguments specified for command") from None


@command("COMMAND|HELP", needs="nothing")
async def command_help(_client: Caller, _words: Words) -> list[str]:
    """Lists the subcommands."""
    return help_of("COMMAND")


container("CONFIG", "Shows the configuration of the server.")


@command("CONFIG|GET parameter [parameter ...]", needs="administer")
async def config_get(client: Caller, words: Words) -> dict[bytes, bytes]:
    """Returns the parameters whose names match one of the patterns."""
    settings, slow_log = client.session.context.settings, client.session.clients.slow_log
    slow = slow_log.threshold * _MICROSECONDS
    parameters = {
        "appendonly": "yes" if settings.is_embedded else "no",
        "maxclients": str((await client.session.context.workers.totals()).max_clients),
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "proto-max-bulk-len": str(settings.max_message_bytes),
        "save": "",
        "slowlog-log-slower-than": "-1" if slow == inf else f"{slow:.0f}",
        "slowlog-max-len": str(slow_log.length),
        "tcp-keepalive": f"{settings.tcp_keepalive:g}",
        "timeout": f"{settings.idle_timeout:g}",
    }
    if len(words) > _MAX_PARAMETERS:
        raise CommandError(f"ERR too many parameters: at most {_MAX_PARAMETERS}")
    found: dict[bytes, bytes] = {}
    for word in words[2:]:
        pattern = Glob(word.lower())
        await asyncio.sleep(0)  # a long one takes milliseconds
        for name, value in parameters.items():
            if pattern.matches(name.encode()):
                # Return an exact name in the spelling of the request.
                found[word if word.lower() == name.encode() else name.encode()] = value.encode()
    return found


@command("CONFIG|RESETSTAT", needs="administer", flags="admin")
async def config_resetstat(client: Caller, _words: Words) -> str:
    """Sets the statistics of commands, errors, latencies and connections to zero."""
    # The statistics of queues stay: the backend has them.
    await client.session.context.workers.reset_statistics()
    return OK


container("ACL", "Shows the users.")


@command("ACL|WHOAMI", needs="nothing")
async def acl_whoami(client: Caller, _words: Words) -> bytes:
    """Returns the name of this connection's user."""
    return client.session.user_name.encode()


@command("ACL|USERS", needs="administer", flags="admin")
async def acl_users(client: Caller, _words: Words) -> list[bytes]:
    """Lists the names of the users."""
    return [name.encode() for name in sorted(client.session.clients.access.users.by_name)]


@command("ACL|LIST", needs="administer", flags="admin")
async def acl_list(client: Caller, _words: Words) -> list[bytes]:
    """Lists the users with their queues and rights, without passwords."""
    # Hashes of passwords are hidden, as they would help to guess passwords.
    lines = []
    for name, user in sorted(client.session.clients.access.users.by_name.items()):
        words = ["user", name, "on", "nopass" if user.needs_no_password else "#(hidden)"]
        words += [f"~{pattern}" for pattern in user.queues] + [f"+{right}" for right in sorted(user.rights)]
        lines.append(" ".join(words).encode())
    return lines


container("SLOWLOG", "Shows the commands that took long.")


@command("SLOWLOG|GET [count]", needs="administer", flags="admin")
async def slowlog_get(client: Caller, words: Words) -> list[object]:
    """Returns the latest slow commands, latest first: 10, or count; -1 returns all."""
    if len(words) > 3:
        raise too_many_arguments(words)
    count = _SLOW_SHOWN if len(words) == 2 else integer_from(words[2])
    if count is None or count < -1:
        raise CommandError("ERR count should be greater than or equal to -1")
    kept = client.session.clients.slow_log.length
    found = await client.session.context.workers.slow_commands(kept if count == -1 else min(count, kept))
    return [
        [
            one.number,
            int(one.ended),
            int(one.seconds * _MICROSECONDS),
            one.words,
            one.address.encode(),
            one.client_name.encode(),
        ]
        for one in found
    ]


@command("SLOWLOG|LEN", needs="administer", flags="admin")
async def slowlog_len(client: Caller, _words: Words) -> int:
    """Returns the number of slow commands that are kept."""
    session = client.session
    return len(await session.context.workers.slow_commands(session.clients.slow_log.length))


@command("SLOWLOG|RESET", needs="administer", flags="admin")
async def slowlog_reset(client: Caller, _words: Words) -> str:
    """Removes all slow commands."""
    await client.session.context.workers.reset_slow_log()
    return OK


container("LATENCY", "Shows the latencies of commands.")


@command("LATENCY|LATEST", needs="administer", flags="admin")
async def latency_latest(_client: Caller, _words: Words) -> list[object]:
    """Returns no events: the server has no latency monitor. See SLOWLOG."""
    # redis_exporter asks for it at each scrape.
    return []


@command("LATENCY|HISTOGRAM [command [command ...]]", needs="administer", flags="admin")
async def latency_histogram(client: Caller, words: Words) -> dict[bytes, object]:
    """Returns how many measured calls of commands took up to a time, in microseconds."""
    # The name of a container means all its subcommands.
    wanted = {word.lower().decode("utf-8", "replace") for word in words[2:]}
    return {
        shown_name(one).encode(): {
            b"calls": sum(one.latencies),
            b"histogram_usec": _cumulative(one.latencies),
        }
        for one in await client.session.context.workers.statistics()
        if any(one.latencies)
        and (not wanted or {shown_name(one), shown_name(one).partition("|")[0]} & wanted)
    }


def _cumulative(latencies: list[int]) -> dict[int, int]:
    """Return for the upper limit of each bucket that is not empty how many calls took no longer."""
    calls = enumerate(zip(latencies, accumulate(latencies), strict=True))
    return {round(upper_limit(bucket) * _MICROSECONDS): total for bucket, (count, total) in calls if count}


@command("MONITOR", needs="administer", flags="admin")
async def monitor(client: Caller, _words: Words) -> str:
    """Shows the commands that clients of any protocol send, without logins, until the connection ends."""
    # RESET ends it; a second MONITOR has no effect.
    if client is not client.session:
        raise CommandError("ERR MONITOR isn't allowed for DENY BLOCKING client")
    client.session.clients.monitor(client.session)
    return OK


container("MEMORY", "Shows the memory of queues and of the server.")


@command("MEMORY|USAGE key [SAMPLES count]", needs="read", flags="readonly")
async def memory_usage(client: Caller, words: Words) -> int | None:
    """Returns the bytes that the queue takes in the backend; nil if there is no such queue."""
    # The backend measures `count` items of each key, 0 for all.
    samples = _SAMPLES
    if len(words) > 3:
        if words[3].upper() != b"SAMPLES" or len(words) != 5:
            raise syntax_error()
        samples = count_from_zero(words[4])
    return await client.session.database.shard_of(words[2]).keys.stored_bytes_of(words[2], samples)


@command("MEMORY|STATS", needs="administer", flags="admin")
async def memory_stats(client: Caller, _words: Words) -> dict[bytes, object]:
    """Returns the memory of this server, in bytes."""
    totals = await client.session.context.workers.totals()
    return {
        b"peak.allocated": totals.peak_bytes,
        b"total.allocated": totals.resident_bytes,
        b"clients.normal": totals.buffered_bytes,
        b"clients.limit": totals.max_buffered_bytes,
        b"clients.throttled": totals.throttled,
        b"clients.evicted": totals.evicted,
    }


table.container("OBJECT", "Tells when a queue was used.", group="generic")


@table.command("OBJECT|IDLETIME key", group="generic", needs="read", flags="readonly")
async def object_idletime(client: Caller, words: Words) -> int | None:
    """Returns the seconds since a client or a server used the queue; nil if there is no such queue."""
    # Servers use a queue that a put created when they look whether it has expired.
    return await client.session.database.shard_of(words[2]).keys.idle_seconds_of(words[2])
