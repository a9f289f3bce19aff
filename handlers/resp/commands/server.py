"""Commands on the server: INFO (see info.py), COMMAND, CONFIG GET, TIME; and ACL, which shows the users."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from math import inf
from time import time_ns
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import integer_of
from handlers.resp.commands.info import info_text
from handlers.resp.parser import Words
from handlers.resp.replies import OK, Text
from handlers.resp.session import Caller, TransactionCaller
from handlers.resp.table import COMMANDS, Command, command_docs, command_info, dispatch, help_of
from pressure_server.backend.replica_waits import Deadline
from pressure_server.errors import CommandError
from pressure_server.queues.operations.wait import Unblocking
from pressure_server.text import Glob
from pressure_server.words import integer_from

command = partial(table.command, group="server")
container = partial(table.container, group="server")

# The most names in COMMAND INFO: each adds a description to the reply, even if it is repeated.
_MAX_NAMES = 1000
_MAX_PARAMETERS = 64


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
    replicas, timeout = max(0, integer_of(words[1])), _milliseconds_of(words[2])
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


def _milliseconds_of(word: bytes) -> int:
    milliseconds = integer_from(word)
    if milliseconds is None:
        raise CommandError("ERR timeout is not an integer or out of range")
    if milliseconds < 0:
        raise CommandError("ERR timeout is negative")
    return milliseconds


@command("INFO [section [section ...]]", needs="read")
async def info(client: Caller, words: Words) -> Text:
    """Describes the server, its backend and the queues."""
    return Text((await info_text(client.session, words[1:])).encode())


@command("COMMAND [subcommand [argument ...]]", needs="nothing")
def command_(client: Caller, words: Words) -> Coroutine[Any, Any, Any] | None:
    """Describes the commands."""
    return dispatch(client, words) if len(words) > 1 else _all_commands()


async def _all_commands() -> list[object]:
    return [command_info(entry) for entry in COMMANDS.values()]


def _find(name: bytes) -> Command | None:
    first, _, sub = name.upper().partition(b"|")
    entry = COMMANDS.get(first)
    return entry.subcommands.get(sub) if entry is not None and sub else entry


@command("COMMAND|COUNT", needs="nothing")
async def command_count(_client: Caller, _words: Words) -> int:
    """Returns the number of commands."""
    return len(COMMANDS)


@command("COMMAND|INFO [command-name [command-name ...]]", needs="nothing")
async def command_info_(_client: Caller, words: Words) -> list[object]:
    """Returns the arity, flags and key positions of commands."""
    if len(words) == 2:
        return await _all_commands()
    if len(words) > _MAX_NAMES:
        raise CommandError(f"ERR too many command names: at most {_MAX_NAMES}")
    found = [_find(name) for name in words[2:]]
    return [command_info(entry) if entry is not None else None for entry in found]


@command("COMMAND|DOCS [command-name [command-name ...]]", needs="nothing")
async def command_docs_(_client: Caller, words: Words) -> dict[bytes, object]:
    """Returns the documentation of commands."""
    specs = [_find(name) for name in words[2:]] if len(words) > 2 else list(COMMANDS.values())
    return {entry.name.encode(): command_docs(entry) for entry in specs if entry is not None}


@command("COMMAND|LIST", needs="nothing")
async def command_list(_client: Caller, _words: Words) -> list[bytes]:
    """Lists the names of the commands."""
    # FILTERBY is not supported.
    return [entry.name.encode() for entry in COMMANDS.values()]


@command("COMMAND|GETKEYS command argument [argument ...]", needs="nothing")
async def command_getkeys(_client: Caller, words: Words) -> list[bytes]:
    """Returns the keys of a command."""
    # Unlike Redis, reject an invalid numkeys, as the command itself does.
    entry = COMMANDS.get(words[2].upper())
    if entry is None:
        raise CommandError("ERR Invalid command specified")
    if not entry.accepts(len(words) - 2):
        raise CommandError("ERR Invalid number of arguments specified for command")
    described = words[2:]
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


def _microseconds(seconds: float) -> str:
    """Return a limit of the slow log in microseconds; -1 if there is none, as in Redis."""
    return "-1" if seconds == inf else f"{seconds * 1_000_000:.0f}"


container("CONFIG", "Shows the configuration of the server.")


@command("CONFIG|GET parameter [parameter ...]", needs="administer")
async def config_get(client: Caller, words: Words) -> dict[bytes, bytes]:
    """Returns the parameters whose names match one of the patterns."""
    settings = client.session.context.settings
    parameters = {
        "appendonly": "yes" if settings.is_embedded else "no",
        "maxclients": str((await client.session.context.workers.totals()).max_clients),
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "proto-max-bulk-len": str(settings.max_message_bytes),
        "save": "",
        "slowlog-log-slower-than": _microseconds(client.session.clients.slow_log.threshold),
        "slowlog-max-len": str(client.session.clients.slow_log.length),
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
