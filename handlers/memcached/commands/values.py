"""Commands of mode kv: memcached's classic ones and its meta commands, on keys and values."""

from handlers.memcached.arguments import expiry_of, flags_of, key_of, number_of
from handlers.memcached.meta import Classic, Meta, flags_of_delete
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, OK, ClientError, value
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import COMMANDS, KV, value_command

_BAD_EXPIRY = "invalid exptime argument"
# Flags with which mg changes the value, and needs the rights of gat.
_CHANGING = "NRT"
# The modes of ms and ma that do what the classic commands do.
_MODES = {
    b"set": b"S", b"cas": b"S", b"add": b"E", b"replace": b"R", b"append": b"A", b"prepend": b"P",
    b"incr": b"I", b"decr": b"D",
}  # fmt: skip
_SET_MODES = b"SERAP"
_COUNT_MODES = {b"I": b"+", b"+": b"+", b"D": b"-", b"-": b"-"}


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


for _name, _needs, _summary in (
    ("get", "get", "Returns the values of the keys that exist."),
    ("gets", "get", "Returns the values of the keys that exist."),
    ("gat <exptime>", "get put", "Returns the values of the keys that exist, and sets their exptime."),
    ("gats <exptime>", "get put", "Returns the values of the keys that exist, and sets their exptime."),
):
    value_command(f"{_name} <key>*", needs=_needs, summary=_summary)(_read)


async def _store(client: MemcachedSession, request: Request) -> bytes:
    """Store the request's data."""
    name, key, *words = request.words
    if name == b"ms":
        meta = Meta(key, words[1:])
    else:
        # memcached checks the flags and the expiry of append and prepend, and ignores them.
        flags, expires, _size, *unique = words
        wanted = number_of(unique[0]) if unique else b""
        meta = Classic(key, M=_MODES[name], F=flags_of(flags), T=expiry_of(expires), C=wanted)
    mode = meta.get("M", b"S")
    if mode not in _SET_MODES:
        raise ClientError("invalid mode for ms M token")
    client.counts.sets += 1
    how = mode, meta.get("F", b"0"), meta.get("T", b"0"), request.blocks[0]
    most, may_be_lower = b"%d" % client.context.settings.max_message_bytes, b"1" if "I" in meta else b""
    line, unique = await client.values.change(
        b"store", meta.key, *how, most, meta.get("C", b""), may_be_lower
    )
    return meta.outcome(line, {"c": unique})


for _syntax, _summary in (
    ("set <key> <flags> <exptime> <bytes>", "Stores a value."),
    ("add <key> <flags> <exptime> <bytes>", "Stores a value if the key has none."),
    ("replace <key> <flags> <exptime> <bytes>", "Stores a value if the key has one already."),
    ("append <key> <flags> <exptime> <bytes>", "Appends bytes to a value."),
    ("prepend <key> <flags> <exptime> <bytes>", "Prepends bytes to a value."),
    (
        "cas <key> <flags> <exptime> <bytes> <unique>",
        "Stores a value if the present one still has this cas unique.",
    ),
    ("ms <key> <bytes> [<flag>*]", "Stores a value in the mode of the flag M."),
):
    value_command(_syntax, needs="put", summary=_summary)(_store)


@value_command("touch <key> <exptime>", needs="put")
async def touch(client: MemcachedSession, request: Request) -> bytes:
    """Sets the exptime of a value."""
    _name, key, expires = request.words
    client.counts.touches += 1
    line: bytes = await client.values.change(b"touch", key_of(key), expiry_of(expires, _BAD_EXPIRY))
    return line + b"\r\n"


@value_command("md <key> [<flag>*]", needs="get")
@value_command("delete <key> [0]", needs="get", summary="Deletes a value.")
async def delete(client: MemcachedSession, request: Request) -> bytes:
    """Deletes a value; with the flag I, marks it as stale."""
    meta = flags_of_delete(request)
    stales = b"1" if "I" in meta else b""
    line: bytes = await client.values.change(
        b"delete", meta.key, meta.get("C", b""), stales, meta.get("T", b"")
    )
    return meta.outcome(line, {})


@value_command("flush_all [<delay>]", needs="administer")
async def flush_all(client: MemcachedSession, request: Request) -> bytes:
    """Deletes all values, at once or when the delay ends. Does not affect queues."""
    if not client.options.flush_all:
        raise ClientError("flush_all not allowed")
    delay = request.words[1] if len(request.words) > 1 else b"0"
    expiry = expiry_of(delay, _BAD_EXPIRY)
    client.counts.flushes += 1
    await client.values.flush(expiry)
    return OK


@value_command("ma <key> [<flag>*]", needs="put")
@value_command(
    "decr <key> <delta>", needs="put", summary="Subtracts from a number; the result is at least 0."
)
@value_command(
    "incr <key> <delta>", needs="put", summary="Adds to a number; the result wraps around at 64 bits."
)
async def count(client: MemcachedSession, request: Request) -> bytes:
    """Adds to a number, or subtracts from it."""
    name, key, *words = request.words
    if name == b"ma":
        meta = Meta(key, words)
    else:
        meta = Classic(key, M=_MODES[name], D=number_of(words[0], "invalid numeric delta argument"))
    mode = _COUNT_MODES.get(meta.get("M", b"I"))
    if mode is None:
        raise ClientError("invalid mode for ma M token")
    by, initial = meta.get("D", b"1"), meta.get("J", b"0")
    line, *facts = await client.values.change(
        b"count", meta.key, mode, by, initial, meta.get("N", b""), meta.get("T", b""), meta.get("C", b"")
    )
    if not facts:
        return meta.outcome(line, {})
    if "q" in meta:
        return b""
    unique, left = facts
    return meta.item(line, len(line), {"c": unique, "t": b"%d" % left})


@value_command("mg <key> [<flag>*]", needs="get")
async def mg(client: MemcachedSession, request: Request) -> bytes:
    """Returns a value with what the flags ask for; with T, R or N it also changes it, and needs put."""
    # h and l return nothing: reads are not noted.
    meta = Meta(request.words[1], request.words[2:])
    changes = not meta.keys().isdisjoint(_CHANGING)
    if changes:
        client.permit(COMMANDS[KV][b"gat"], [meta.key])
    asked = [word for letter in meta if letter in "NRTt" for word in (letter.encode(), meta[letter])]
    arguments = [b"1" if "N" in meta else b"", b"1" if "v" in meta else b"", *asked]
    found = await client.values.look(meta.key, arguments, changes=changes)
    client.counts.got(found is not None, found is None)
    client.counts.touches += "T" in meta
    if found is None:
        return meta.miss()
    facts = {"c": found.unique, "f": found.flags, "s": b"%d" % found.size, "t": b"%d" % found.left}
    return meta.item(found.data, found.size, facts, found.marks)


@value_command("me <key> [<flag>*]", needs="get")
async def me(client: MemcachedSession, request: Request) -> bytes:
    """Returns facts about a value, for people."""
    # When it expires, its cas unique and its size. memcached knows more.
    meta = Meta(request.words[1], request.words[2:])
    found = await client.values.look(meta.key, [b"", b"", b"t", b""], changes=False)
    if found is None:
        return b"EN\r\n"
    return b"ME %b exp=%d cas=%b size=%d\r\n" % (meta.sent_key, found.left, found.unique, found.size)
