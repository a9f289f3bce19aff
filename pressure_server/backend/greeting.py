"""The handshake on a new channel: log in, check the version, select the database, load the library.

On a cluster, it finds the node that has the keys.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pressure_server.backend.address import Address
from pressure_server.backend.requests import Channel
from pressure_server.backend.resp import (
    BackendConnection,
    is_refusal_of_writes,
    is_temporary,
    wait_for_reply,
)
from pressure_server.backend.route import Route
from pressure_server.errors import BackendRefusedError, BackendReplyError, NoSuchDatabaseError

OLDEST_REDIS, OLDEST_VALKEY = (7, 0), (7, 2)


class Greeting(NamedTuple):
    """The result of a handshake."""

    version: str  # the name and the version
    run_id: str
    client: int  # the connection's id
    is_cluster: bool  # whether it is a node of one


async def greet(channel: BackendConnection, address: Address, number: int, name: str) -> Greeting:
    """Do the handshake on a new connection, and call it `name`.

    Raises BackendRefusedError, or BackendError if a retry may help.
    """
    if address.password is not None:
        user = [address.username.encode()] if address.username else []
        await _must(channel, address, b"AUTH", *user, address.password.encode())
    told = await _must(channel, address, b"INFO", b"server")
    lines = told.decode(errors="replace").splitlines() if isinstance(told, bytes) else []
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    version = _supported_version(info, address)
    mode = info.get("server_mode") or info.get("redis_mode")
    if mode == "sentinel":
        raise BackendRefusedError(
            f"{address} is a Sentinel, which stores nothing: give it as redis+sentinel://HOST:PORT/NAME, "
            "with the name of the master"
        )
    if number:
        await _select(channel, address, number, is_cluster=mode == "cluster")
    with suppress(BackendReplyError):  # not permitted: CLIENT LIST then shows no name
        await channel.command(b"CLIENT", b"SETNAME", name.encode())
    client = await channel.command(b"CLIENT", b"ID")
    return Greeting(version, info.get("run_id", ""), client, is_cluster=mode == "cluster")


async def join_cluster(channel: Channel, address: Address, route: Route, guard: bytes) -> None:
    """Tell the route of the nodes of the cluster. The key `guard`, empty without a tag, goes with calls.

    Raises MovedError if another node has the keys, BackendRefusedError if there is no guard.
    """
    if not guard:
        raise BackendRefusedError(
            f"{address} is a node of a cluster, where all keys of this server must be on one node: set "
            "--prefix to a name in braces, such as {pressure}, or give the cluster as redis+cluster://…"
        )
    channel.guard = guard
    route.note_cluster(address, await channel.command(b"CLUSTER", b"SLOTS"), guard)


async def check_layout(channel: Channel, layout: bytes, *, is_user: bool) -> None:
    """Check that a shard of a cluster has been used with this layout, such as `16 3`, or not at all.

    With `is_user`, note the layout at its first use. Raises BackendRefusedError if there is another one.
    """
    found = await channel.command(b"GET", _layout_key(channel))
    if found is None and is_user:
        # Only then: a node that has no memory, or a full disk, refuses the command, and still serves reads.
        await channel.command(*noting(channel, layout))
        found = await channel.command(b"GET", _layout_key(channel))
    found = found or layout
    if found != layout:
        before, now = (int(noted.split(b" ")[0]) for noted in (found, layout))
        raise BackendRefusedError(
            f"the queues under this prefix are in {before} shards, not in {now}: set --shards {before}, "
            "or another --prefix"
        )


def noting(channel: Channel, layout: bytes) -> tuple[bytes, ...]:
    """Return the command that notes the layout, unless one is noted."""
    return b"SET", _layout_key(channel), layout, b"NX"


def _layout_key(channel: Channel) -> bytes:
    return channel.guard.removesuffix(b"guard") + b"shards"


async def load_library(channel: Channel) -> None:
    """Load the library. A refusal of writes is ignored: the library may be there."""
    try:
        await wait_for_reply(b"FUNCTION", channel.load)
    except BackendReplyError as error:
        if not is_refusal_of_writes(error):
            raise


async def _must(channel: BackendConnection, address: Address, *command: bytes) -> Any:
    try:
        return await channel.command(*command)
    except BackendReplyError as error:
        if is_temporary(error):
            raise
        raise BackendRefusedError(f"{address}: {error}") from error


async def _select(channel: BackendConnection, address: Address, number: int, *, is_cluster: bool) -> None:
    try:
        await _must(channel, address, b"SELECT", b"%d" % number)
    except BackendRefusedError as error:
        if " with: ERR" not in str(error):  # NOPERM and NOAUTH say nothing about the database
            raise
        why = f"{address} is a node of a cluster, which has no database {number}: set 0 in --backend"
        raise NoSuchDatabaseError(why if is_cluster else str(error)) from error


def _supported_version(info: Mapping[str, str], address: Address) -> str:
    """Return the name and version that INFO server tells. Raises BackendRefusedError if it is of no use."""
    if "pressure_server_version" in info:
        raise BackendRefusedError(f"{address} is a pressure-server: --backend must name the Redis behind it")
    for name, oldest in (("Valkey", OLDEST_VALKEY), ("Redis", OLDEST_REDIS)):
        found = re.match(r"(\d+)\.(\d+)\S*", info.get(f"{name.lower()}_version", ""))
        if found and (int(found[1]), int(found[2])) < oldest:
            raise BackendRefusedError(
                f"{address} is {name} {found[0]}; Redis 7.0, Valkey 7.2 or newer is needed (for FCALL)"
            )
        if found:
            return f"{name} {found[0]}"
    raise BackendRefusedError(f"{address} does not say which version of Redis it is")
