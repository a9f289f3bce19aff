"""Commands of mode kv: memcached's own classic ones, on keys and values."""

from __future__ import annotations

from handlers.memcached.arguments import expiry_of, flags_of, key_of, number_of
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, OK, ClientError, value
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import value_command

_BAD_EXPIRY = "invalid exptime argument"


class _Rest(Request):
    """The rest of a retrieval that is executed in parts. Its keys have been checked."""


async def _read(client: MemcachedSession, request: Request) -> bytes:
    """Return the reply for the first keys, of limited size. Execute the other keys as the next command."""
    first = 2 if request.words[0].startswith(b"gat") else 1
    beginning, keys = request.words[:first], request.words[first:]
    expiry = expiry_of(beginning[1], _BAD_EXPIRY) if first == 2 else None
    if not isinstance(request, _Rest):
        for key in keys:
            key_of(key)
    found = await client.values.read(keys, expiry)
    hits = [(key, one) for key, one in zip(keys, found, strict=False) if one is not None]
    client.counts.got(len(hits), len(found) - len(hits))
    if expiry is not None:
        client.counts.touches += len(found)
    with_unique = beginning[0].endswith(b"s")
    items = [value(key, one.flags, one.data, one.unique if with_unique else None) for key, one in hits]
    if len(found) < len(keys):
        client.execute_instead([_Rest([*beginning, *keys[len(found) :]])])
        return b"".join(items)
    return b"".join([*items, END])


for _name in ("get", "gets"):
    value_command(f"{_name} <key>*", "Returns the values of the keys that exist.", needs="get")(_read)

for _name in ("gat", "gats"):
    value_command(
        f"{_name} <exptime> <key>*",
        "Returns the values of the keys that exist, and sets their exptime.",
        needs="get put",
    )(_read)


# The modes of ms that do what the classic commands do.
_MODES = {b"set": b"S", b"cas": b"S", b"add": b"E", b"replace": b"R", b"append": b"A", b"prepend": b"P"}


async def _store(client: MemcachedSession, request: Request) -> bytes:
    name, _key, flags, expires, _size, *unique = request.words
    wanted = number_of(unique[0]) if unique else b""
    # memcached checks the flags and the expiry of append and prepend, and ignores them.
    how = _MODES[name], flags_of(flags), expiry_of(expires)
    return (await stored(client, request, *how, wanted=wanted))[0] + b"\r\n"


async def stored(
    client: MemcachedSession, request: Request, *how: bytes, wanted: bytes, may_be_lower: bytes = b""
) -> tuple[bytes, bytes]:
    """Store the request's data; `how` is a mode of ms, flags and an expiry.

    Return the line of a reply, and the value's cas unique.
    """
    client.counts.sets += 1
    most = b"%d" % client.context.settings.max_message_bytes
    line, unique = await client.values.change(
        b"store", request.words[1], *how, request.data or b"", most, wanted, may_be_lower
    )
    return line, unique


for _name, _summary in (
    ("set", "Stores a value."),
    ("add", "Stores a value if the key has none."),
    ("replace", "Stores a value if the key has one already."),
    ("append", "Appends bytes to a value."),
    ("prepend", "Prepends bytes to a value."),
):
    value_command(f"{_name} <key> <flags> <exptime> <bytes>", _summary, needs="put")(_store)

value_command(
    "cas <key> <flags> <exptime> <bytes> <unique>",
    "Stores a value if the present one still has this cas unique.",
    needs="put",
)(_store)


@value_command("touch <key> <exptime>", "Sets the exptime of a value.", needs="put")
async def touch(client: MemcachedSession, request: Request) -> bytes:
    """Set the expiry. The cas unique does not change."""
    _name, key, expires = request.words
    client.counts.touches += 1
    line: bytes = await client.values.change(b"touch", key_of(key), expiry_of(expires, _BAD_EXPIRY))
    return line + b"\r\n"


@value_command("delete <key> [0]", "Deletes a value.", needs="get")
async def delete(client: MemcachedSession, request: Request) -> bytes:
    """Delete a value. Old clients send a time, which must be 0."""
    if request.words[2:] not in ([], [b"0"]):
        raise ClientError("bad command line format.  Usage: delete <key> [noreply]")
    line: bytes = await client.values.change(b"delete", key_of(request.words[1]), b"", b"", b"")
    return line + b"\r\n"


@value_command(
    "flush_all [<delay>]",
    "Deletes all values, at once or when the delay ends. Does not affect queues.",
    needs="administer",
)
async def flush_all(client: MemcachedSession, request: Request) -> bytes:
    """Mark all values as deleted. The sweeper deletes them in the background."""
    if not client.options.flush_all:
        raise ClientError("flush_all not allowed")
    delay = request.words[1] if len(request.words) > 1 else b"0"
    expiry = expiry_of(delay, _BAD_EXPIRY)
    client.counts.flushes += 1
    await client.values.flush(expiry)
    return OK


async def _count(client: MemcachedSession, request: Request) -> bytes:
    name, key, delta = request.words
    by = number_of(delta, "invalid numeric delta argument")
    mode = b"+" if name == b"incr" else b"-"
    line, *_ = await client.values.change(b"count", key_of(key), mode, by, b"", b"", b"", b"")
    return bytes(line) + b"\r\n"


for _name, _summary in (
    ("incr", "Adds to a number; the result wraps around at 64 bits."),
    ("decr", "Subtracts from a number; the result is at least 0."),
):
    value_command(f"{_name} <key> <delta>", _summary, needs="put")(_count)
