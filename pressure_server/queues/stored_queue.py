"""What the backend's keys of a queue tell of it: the memory that they take, and when they were used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pressure_server.backend.link import Link
from pressure_server.errors import BackendReplyError
from pressure_server.queues.names import BOUND, EXTENSION_SUFFIXES, MADE, PROTOCOL_SUFFIXES, base_key

# Keys that puts and gets use.
_USED = (b"", BOUND, MADE, b":stats:produced_messages", b":stats:consumed_messages")


async def stored_bytes_of(link: Link, prefix: bytes, name: bytes, samples: int) -> int | None:
    """Return the bytes of all keys of a queue; None if there is no such queue.

    The backend measures so many items of each collection, 0 for all. Raises QueueNameError, or BackendError.
    """
    keys = _keys_of(prefix, name, (b"", *PROTOCOL_SUFFIXES, *EXTENSION_SUFFIXES))
    sizes, exists = await asyncio.gather(
        _each(link, keys, b"MEMORY", b"USAGE", after=(b"SAMPLES", b"%d" % samples)),
        link.command(b"EXISTS", base_key(prefix, name) + BOUND),
    )
    return sum(sizes) if exists else None


async def idle_seconds_of(link: Link, prefix: bytes, name: bytes) -> int | None:
    """Return the seconds since the keys of a queue were used; None if there is no such queue.

    Raises QueueNameError, or BackendError.
    """
    keys = _keys_of(prefix, name, _USED)
    try:
        idle = await _each(link, keys, b"OBJECT", b"IDLETIME")
    except BackendReplyError as error:
        if "LFU" not in str(error):
            raise
        raise BackendReplyError("the backend's LFU policy does not tell idle times") from error
    exists = await link.command(b"EXISTS", base_key(prefix, name) + BOUND)
    return min(idle, default=0) if exists else None


def _keys_of(prefix: bytes, name: bytes, suffixes: Sequence[bytes]) -> list[bytes]:
    base = base_key(prefix, name)
    return [base + suffix for suffix in suffixes]


async def _each(link: Link, keys: Sequence[bytes], *before: bytes, after: Sequence[bytes] = ()) -> list[int]:
    """Return the backend's numbers for those of the keys that exist."""
    found = await asyncio.gather(*[link.command(*before, key, *after) for key in keys])
    return [number for number in found if number is not None]
