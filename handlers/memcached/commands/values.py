"""Values by key, as memcached itself has them, where the listener has mode=kv."""

from __future__ import annotations

from handlers.memcached.arguments import expiry_of, flags_of, key_of, number_of
from handlers.memcached.client import KV, MemcachedClient
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, OK, ClientError, value
from handlers.memcached.table import command

_BAD_EXPIRY = "invalid exptime argument"


class _Rest(Request):
    """A retrieval that goes on; its keys have been looked at."""


async def _get(client: MemcachedClient, request: Request) -> bytes:
    name, *keys = request.words
    return await _read(client, request, [name], keys, None)


async def _gat(client: MemcachedClient, request: Request) -> bytes:
    name, expires, *keys = request.words
    return await _read(client, request, [name, expires], keys, expiry_of(expires, _BAD_EXPIRY))


async def _read(
    client: MemcachedClient,
    request: Request,
    beginning: list[bytes],
    keys: list[bytes],
    expiry: bytes | None,
) -> bytes:
    """The reply of as many keys as make one of sane size; behind it the command goes on with the others."""
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
    command(f"{_name} <key>*", "Says the values of the keys that are there.", modes=(KV,), needs="get")(_get)

for _name in ("gat", "gats"):
    command(
        f"{_name} <exptime> <key>*",
        "Says the values of the keys that are there, which expire then from now on.",
        modes=(KV,),
        needs="get put",
    )(_gat)


async def _store(client: MemcachedClient, request: Request) -> bytes:
    name, key, flags, expires, _size, *unique = request.words
    arguments = [b"%d" % flags_of(flags), expiry_of(expires), request.data or b""]
    arguments += [b"%d" % number_of(word) for word in unique]
    return await _stored(client, name, key, arguments)


async def _extend(client: MemcachedClient, request: Request) -> bytes:
    name, key, flags, expires, _size = request.words
    # They mean nothing, and have to be right.
    flags_of(flags)
    expiry_of(expires)
    most = b"%d" % client.context.settings.max_message_bytes
    return await _stored(client, name, key, [request.data or b"", most])


async def _stored(client: MemcachedClient, name: bytes, key: bytes, arguments: list[bytes]) -> bytes:
    client.counts.sets += 1
    return await client.values.change(name, key, *arguments) + b"\r\n"


for _name, _function, _summary in (
    ("set", _store, "Stores a value."),
    ("add", _store, "Stores a value where there is none."),
    ("replace", _store, "Stores a value where there is one."),
    ("append", _extend, "Adds bytes behind a value."),
    ("prepend", _extend, "Adds bytes before a value."),
):
    command(f"{_name} <key> <flags> <exptime> <bytes>", _summary, modes=(KV,), needs="put")(_function)

command(
    "cas <key> <flags> <exptime> <bytes> <unique>",
    "Stores a value where the one that is there has that cas unique still.",
    modes=(KV,),
    needs="put",
)(_store)


@command("touch <key> <exptime>", "The value expires then from now on.", modes=(KV,), needs="put")
async def touch(client: MemcachedClient, request: Request) -> bytes:
    """Its cas unique stays."""
    _name, key, expires = request.words
    client.counts.touches += 1
    return await client.values.change(b"touch", key_of(key), expiry_of(expires, _BAD_EXPIRY)) + b"\r\n"


@command("delete <key> [0]", "Deletes the value.", modes=(KV,), needs="get")
async def delete(client: MemcachedClient, request: Request) -> bytes:
    """Old clients say a time, which must be 0."""
    if request.words[2:] not in ([], [b"0"]):
        raise ClientError("bad command line format.  Usage: delete <key> [noreply]")
    return await client.values.change(b"delete", key_of(request.words[1])) + b"\r\n"


@command(
    "flush_all [<delay>]",
    "Deletes all values, or those that will have been stored then; queues are not touched.",
    modes=(KV,),
    needs="administer",
)
async def flush_all(client: MemcachedClient, request: Request) -> bytes:
    """At once, however many there are: they are removed in the background."""
    if not client.options.flush_all:
        raise ClientError("flush_all not allowed")
    delay = request.words[1] if len(request.words) > 1 else b"0"
    expiry = expiry_of(delay, _BAD_EXPIRY)
    client.counts.flushes += 1
    await client.values.flush(expiry)
    return OK
