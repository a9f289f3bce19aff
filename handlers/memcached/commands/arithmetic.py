"""Commands of mode kv on values that are unsigned numbers of 64 bits."""

from __future__ import annotations

from handlers.memcached.arguments import key_of, number_of
from handlers.memcached.parser import Request
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import KV, command


async def _count(client: MemcachedSession, request: Request) -> bytes:
    name, key, delta = request.words
    by = b"%d" % number_of(delta, "invalid numeric delta argument")
    return await client.values.change(name, key_of(key), by) + b"\r\n"


for _name, _summary in (
    ("incr", "Adds to a number; the result wraps around at 64 bits."),
    ("decr", "Subtracts from a number; the result is at least 0."),
):
    command(f"{_name} <key> <delta>", _summary, modes=(KV,), needs="put")(_count)
