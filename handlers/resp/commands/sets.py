"""Commands on a queue as a set. SADD puts messages that are not queued yet, SPOP takes the oldest."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from functools import partial
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import count_from_zero, cursor_of, integer_of
from handlers.resp.commands.encoders import flags, integers, message_sets, one_message, sums
from handlers.resp.commands.putting import submit_put
from handlers.resp.commands.reading import long_reply, matching, messages_between, read, scan_options
from handlers.resp.parser import Repeated, Words
from handlers.resp.replies import Raw, out_of_range, set_sign, syntax_error
from handlers.resp.session import Caller, RespSession
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import UNIQUE

command = partial(table.command, group="set")

# Redis has no such limit: it would return billions of messages.
_MAX_RANDOM = 1_000_000


def _sadd_repeated(client: RespSession, commands: Repeated) -> None:
    if client.transaction_id is not None:
        client.execute_instead(commands.commands())
        return
    client.submit(
        verbs.PUT,
        commands.words[1],
        commands.thirds,
        1,
        integers,
        commands=commands.count,
        options=UNIQUE,
    )


def _spop_repeated(client: RespSession, commands: Repeated) -> None:
    if commands.thirds:
        client.execute_instead(commands.commands())
    else:
        client.submit(verbs.GET, commands.words[1], [], 1, one_message, commands=commands.count)


def _sismember_repeated(client: RespSession, commands: Repeated) -> None:
    client.submit(verbs.CONTAINS, commands.words[1], commands.thirds, 1, integers, commands=commands.count)


@command(
    "SADD key member [member ...]",
    "Puts the messages that are not queued yet, and returns their number. Creates the queue.",
    needs="put",
    flags="write denyoom fast",
    repeated=_sadd_repeated,
)
def sadd(client: Caller, words: Words) -> Coroutine[Any, Any, int] | None:
    """Put messages that are not queued yet (pressure 0.15, Put). Reply with their number."""
    return submit_put(client, words[1], words[2:], integers, UNIQUE)


@command(
    "SPOP key [count]",
    "Takes the oldest message, or up to count messages; nil or an empty list if there is none.",
    needs="get",
    flags="write fast",
    repeated=_spop_repeated,
)
def spop(client: Caller, words: Words) -> None:
    """Take messages (pressure 0.15, Get (Non-Blocking))."""
    if len(words) == 2:
        client.submit(verbs.GET, words[1], [], 1, one_message)
    elif len(words) == 3:
        client.submit(verbs.GET, words[1], [], count_from_zero(words[2]), message_sets)
    else:
        raise syntax_error()


@command("SCARD key", "Returns the number of messages.", needs="read", flags="readonly fast")
def scard(client: Caller, words: Words) -> None:
    """Reply with the queue's length (pressure 0.15, Length)."""
    client.submit(verbs.LENGTH, words[1], [], 1, integers)


@command(
    "SISMEMBER key member",
    "Returns 1 if the message is queued, otherwise 0.",
    needs="read",
    flags="readonly fast",
    repeated=_sismember_repeated,
)
def sismember(client: Caller, words: Words) -> None:
    """Reply with 1 or 0."""
    client.submit(verbs.CONTAINS, words[1], words[2:], 1, integers)


@command(
    "SMISMEMBER key member [member ...]",
    "Returns for each message 1 if it is queued, otherwise 0.",
    needs="read",
    flags="readonly fast",
)
def smismember(client: Caller, words: Words) -> None:
    """Reply with a list of 1s and 0s."""
    client.submit(verbs.CONTAINS, words[1], words[2:], len(words) - 2, flags)


@command(
    "SREM key member [member ...]",
    "Removes all copies of the messages, and returns how many of the messages were queued. "
    "Removed messages count as consumed.",
    needs="get",
    flags="write",
)
def srem(client: Caller, words: Words) -> None:
    """Reply as Redis does: the number of messages that were queued, not of their copies."""
    client.submit(verbs.REMOVE, words[1], words[2:], len(words) - 2, sums)


@command(
    "SMEMBERS key", "Returns all messages, oldest first. They stay queued.", needs="read", flags="readonly"
)
async def smembers(client: Caller, words: Words) -> Raw:
    """Return all messages, copies included."""
    messages = await messages_between(client, words[1], 0, -1)
    return await long_reply(set_sign(client.session.protocol), messages)


@command(
    "SSCAN key cursor [MATCH pattern] [COUNT count]",
    "Returns some messages, oldest first, and the cursor for the next call. "
    "Messages that stay queued are not missed.",
    needs="read",
    flags="readonly",
)
async def sscan(client: Caller, words: Words) -> list[object]:
    """Reply as Redis does: the next cursor, and messages."""
    cursor = cursor_of(words[2])
    options = scan_options(words[3:])
    found = await read(
        client, verbs.SCAN, words[1], [b"%d" % cursor, b"%d" % options.count], missing=[b"0", []]
    )
    messages = found[1]
    if options.pattern is not None:
        messages = [message async for message in matching(client, options.pattern, messages)]
    return [found[0], await long_reply(b"*", messages)]


@command(
    "SRANDMEMBER key [count]",
    "Returns random messages, which stay queued. "
    "With a negative count, a message may be returned several times.",
    needs="read",
    flags="readonly",
)
async def srandmember(client: Caller, words: Words) -> object:
    """Reply as Redis does: one message or nil; a list if there is a count."""
    if len(words) > 3:
        raise syntax_error()
    count = integer_of(words[2]) if len(words) == 3 else 1
    if count < -_MAX_RANDOM:
        raise out_of_range()
    seed = random.getrandbits(31)
    picked = await read(client, verbs.SAMPLE, words[1], [b"%d" % seed, b"%d" % min(count, 2**53)], missing=[])
    if len(words) == 3:
        return picked
    return picked[0] if picked else None
