"""Commands of mode kv: memcached's meta commands, on keys and values."""

from __future__ import annotations

from handlers.memcached.commands.values import stored
from handlers.memcached.meta import Meta
from handlers.memcached.parser import Request
from handlers.memcached.replies import ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import COMMANDS, KV, value_command

# Flags with which mg changes the value, and needs the rights of gat.
_CHANGING = "NRT"
_SET_MODES = b"SERAP"
_COUNT_MODES = {b"I": b"+", b"+": b"+", b"D": b"-", b"-": b"-"}


@value_command(
    "mg <key> [<flag>*]",
    "Returns a value with what the flags ask for; with T, R or N it also changes it, and needs put.",
    needs="get",
)
async def mg(client: MemcachedSession, request: Request) -> bytes:
    """Return a value and what is known of it. h and l return nothing: reads are not noted."""
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


@value_command("ms <key> <bytes> [<flag>*]", "Stores a value in the mode of the flag M.", needs="put")
async def ms(client: MemcachedSession, request: Request) -> bytes:
    """Store a value."""
    meta = Meta(request.words[1], request.words[3:])
    mode = meta.get("M", b"S")
    if mode not in _SET_MODES:
        raise ClientError("invalid mode for ms M token")
    how = mode, meta.get("F", b"0"), meta.get("T", b"0")
    may_be_lower = b"1" if "I" in meta else b""
    line, unique = await stored(client, request, *how, wanted=meta.get("C", b""), may_be_lower=may_be_lower)
    return meta.outcome(line, {"c": unique})


@value_command("md <key> [<flag>*]", "Deletes a value; with the flag I, marks it as stale.", needs="get")
async def md(client: MemcachedSession, request: Request) -> bytes:
    """Delete a value, or mark it as stale."""
    meta = Meta(request.words[1], request.words[2:])
    stales = b"1" if "I" in meta else b""
    line: bytes = await client.values.change(
        b"delete", meta.key, meta.get("C", b""), stales, meta.get("T", b"")
    )
    return meta.outcome(line, {})


@value_command("ma <key> [<flag>*]", "Adds to a number, or subtracts from it.", needs="put")
async def ma(client: MemcachedSession, request: Request) -> bytes:
    """Add to a number, or subtract."""
    meta = Meta(request.words[1], request.words[2:])
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


@value_command("me <key> [<flag>*]", "Returns facts about a value, for people.", needs="get")
async def me(client: MemcachedSession, request: Request) -> bytes:
    """Describe a value: when it expires, its cas unique and its size. memcached knows more."""
    meta = Meta(request.words[1], request.words[2:])
    found = await client.values.look(meta.key, [b"", b"", b"t", b""], changes=False)
    if found is None:
        return b"EN\r\n"
    return b"ME %b exp=%d cas=%b size=%d\r\n" % (meta.sent_key, found.left, found.unique, found.size)
