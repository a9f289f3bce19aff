"""The greeting of a new channel: login, version, database; and the one before it is closed."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.backend.resp import BackendConnection, is_passing
from pressure_server.errors import BackendError, BackendReplyError

OLDEST_REDIS = (6, 2)


class BackendRefusedError(BackendError):
    """The backend answers, and will go on answering so: wrong version, login or database."""


class NoSuchDatabaseError(BackendRefusedError):
    """The backend has no database of that number."""


@dataclass(frozen=True)
class Greeting:
    """What is known of a channel's other end: its version, which run of it that is, and who we are there."""

    version: str
    run: str
    client: int


async def greet(
    channel: BackendConnection, address: Address, number: int, name: str, before: Greeting | None
) -> Greeting:
    """Make a new connection ready. Raises BackendRefusedError, or BackendError when it may work later."""
    if address.password is not None:
        user = [address.username.encode()] if address.username else []
        await _must(channel, address, b"AUTH", *user, address.password.encode())
    told = await _must(channel, address, b"INFO", b"server")
    info = told.decode(errors="replace") if isinstance(told, bytes) else ""
    version = _supported_version(info, address)
    if number:
        await _select(channel, address, number)
    with suppress(BackendReplyError):  # who looks at the backend's clients is not told who we are
        await channel.command(b"CLIENT", b"SETNAME", name.encode())
    run = re.search(r"^run_id:(\S+)", info, re.MULTILINE)
    greeting = Greeting(version, run[1] if run else "", await channel.command(b"CLIENT", b"ID"))
    if before is not None and before.run == greeting.run:
        # It may not know that the connection is lost. Calls on queues do not rely on this: they have epochs.
        with suppress(BackendReplyError):
            await channel.command(b"CLIENT", b"KILL", b"ID", b"%d" % before.client)
    return greeting


async def _must(channel: BackendConnection, address: Address, *command: bytes) -> Any:
    try:
        return await channel.command(*command)
    except BackendReplyError as error:
        if is_passing(error):
            raise
        raise BackendRefusedError(f"{address}: {error}") from error


async def _select(channel: BackendConnection, address: Address, number: int) -> None:
    try:
        await _must(channel, address, b"SELECT", b"%d" % number)
    except BackendRefusedError as error:
        answered = error.__cause__.__cause__ if error.__cause__ is not None else None
        if str(answered).startswith("ERR"):  # and not that it is not for us, or that we are
            raise NoSuchDatabaseError(str(error)) from error
        raise


def _supported_version(info: str, address: Address) -> str:
    """Return the backend's name and version from INFO server.

    Raise BackendRefusedError if it is too old, or none that can keep queues.
    """
    if re.search(r"^pressure_server_version:", info, re.MULTILINE):
        raise BackendRefusedError(f"{address} is a pressure-server: --backend must name the Redis behind it")
    valkey = re.search(r"^valkey_version:(\S+)", info, re.MULTILINE)
    if valkey:
        return f"Valkey {valkey[1]}"
    redis = re.search(r"^redis_version:((\d+)\.(\d+)\S*)", info, re.MULTILINE)
    if not redis:
        raise BackendRefusedError(f"{address} does not say which version of Redis it is")
    if (int(redis[2]), int(redis[3])) < OLDEST_REDIS:
        raise BackendRefusedError(
            f"{address} is Redis {redis[1]}; Redis 6.2 or Valkey is needed (for SMISMEMBER, LPOS, RPOP count)"
        )
    return f"Redis {redis[1]}"
