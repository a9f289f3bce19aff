"""Commands of mode kv: memcached's meta commands, on keys and values."""

from __future__ import annotations

from handlers.memcached.commands.values import stored
from handlers.memcached.meta import Meta
from handlers.memcached.parser import Request
from handlers.memcached.replies import ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import COMMANDS, KV, command

# Flags with which mg changes the value, and needs the rights of gat.
_CHANGING = "NRT"
_SET_MODES = b"SERAP"
_COUNT_MODES = {b"I": b"+", b"+": b"+", b"D": b"-", b"-": b"-"}


@command(
    "mg <key> [<flag>*]",
    "Returns a value with what the flags ask for; with T, R or N it also changes it, and needs put.",
    modes=(KV,),
    needs="get",
)
async def mg(client: MemcachedSession, request: Request) -> bytes:
    """Return a value and what is known of it. h and l return nothing: reads are not noted."""
    meta = Meta(request.words[1], request.words[2:])
    changes = any(letter in meta for letter in _CHANGING)
    if changes:
        client.permit(COMMANDS[KV][b"gat"], [meta.key])
    asked = [
        word for letter in meta.tokens if letter in "NRTt" for word in (letter.encode(), meta.token(letter))
    ]
    arguments = [b"1" if "N" in meta else b"", b"1" if "v" in meta else b"", *asked]
    found = await client.values.look(meta.key, arguments, changes=changes)
    client.counts.got(found is not None, found is None)
    client.counts.touches += "T" in meta
    if found is None:
        return meta.miss()
    facts = {"c": found.unique, "f": found.flags, "s": b"%d" % found.size, "t": b"%d" % found.left}
    return meta.item(found.data, found.size, facts, found.marks)


@command("ms <key> <bytes> [<flag>*]", "Stores a value in the mode of the flag M.", modes=(KV,), needs="put")
async def ms(client: MemcachedSession, request: Request) -> bytes:
    """Store a value."""
    meta = Meta(request.words[1], request.words[3:])
    mode = meta.token("M", b"S")
    if mode not in _SET_MODES:
        raise ClientError("invalid mode for ms M token")
    flags, expiry = meta.token("F", b"0"), meta.token("T", b"0")
    wanted, may_be_lower = meta.token("C"), b"1" if "I" in meta else b""
    line, unique = await stored(client, meta.key, request, mode, flags, expiry, wanted, may_be_lower)
    return meta.outcome(line, {"c": unique})


@command(
    "md <key> [<flag>*]", "Deletes a value; with the flag I, marks it as stale.", modes=(KV,), needs="get"
)
async def md(client: MemcachedSession, request: Request) -> bytes:
    """Delete a value, or mark it as stale."""
    meta = Meta(request.words[1], request.words[2:])
    stales = b"1" if "I" in meta else b""
    line: bytes = await client.values.change(b"delete", meta.key, meta.token("C"), stales, meta.token("T"))
    return meta.outcome(line, {})


@command("ma <key> [<flag>*]", "Adds to a number, or subtracts from it.", modes=(KV,), needs="put")
async def ma(client: MemcachedSession, request: Request) -> bytes:
    """Add to a number, or subtract."""
    meta = Meta(request.words[1], request.words[2:])
    mode = _COUNT_MODES.get(meta.token("M", b"I"))
    if mode is None:
        raise ClientError("invalid mode for ma M token")
    by, initial = meta.token("D", b"1"), meta.token("J", b"0")
    line, *facts = await client.values.change(
        b"count", meta.key, mode, by, initial, meta.token("N"), meta.token("T"), meta.token("C")
    )
    if not facts:
        return meta.outcome(line, {})
    if "q" in meta:
        return b""
    unique, left = facts
    return meta.item(line, len(line), {"c": unique, "t": b"%d" % left})


@command("me <key> [<flag>*]", "Returns facts about a value, for people.", modes=(KV,), needs="get")
async def me(client: MemcachedSession, request: Request) -> bytes:
    """Describe a value: when it expires, its cas unique and its size. memcached knows more."""
    meta = Meta(request.words[1], request.words[2:])
    found = await client.values.look(meta.key, [b"", b"", b"t", b""], changes=False)
    if found is None:
        return b"EN\r\n"
    return b"ME %b exp=%d cas=%b size=%d\r\n" % (meta.sent_key, found.left, found.unique, found.size)
