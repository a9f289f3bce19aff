"""Commands on a queue as a set. SADD puts messages that are not queued yet, SPOP takes the oldest."""

import random
from functools import partial

from handlers.resp import table
from handlers.resp.arguments import cursor_of, integer_of
from handlers.resp.commands import plans
from handlers.resp.commands.encoders import integers, member_flags, message_sets, sums
from handlers.resp.commands.plans import Ask, Put, Take
from handlers.resp.commands.reading import long_reply, matching, messages_between, read, scan_options
from handlers.resp.parser import Words
from handlers.resp.replies import Raw, set_sign
from handlers.resp.session import Caller
from pressure_server.errors import CommandError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import UNIQUE
from pressure_server.words import syntax_error

command = partial(table.command, group="set")
planned = partial(plans.planned, group="set")

# The most messages that the backend picks: of jobs it takes 40 microseconds for each.
_MAX_PICKED = 10_000
# If more messages are wanted than the queue has, it is read as a whole, which takes less time.
_MANY_RANDOM = 1000


planned(
    Put(integers, UNIQUE),
    "SADD key member [member ...]",
    summary="Puts the messages that are not queued yet, and returns their number. Creates the queue.",
)
planned(
    Take(message_sets, excess=lambda _words: syntax_error()),
    "SPOP key [count]",
    summary="Takes the oldest message, or up to count messages; nil or an empty list if there is none.",
)
planned(Ask(verbs.LENGTH, integers), "SCARD key", summary="Returns the number of messages.")
planned(
    Ask(verbs.CONTAINS, integers),
    "SISMEMBER key member",
    summary="Returns 1 if the message is queued, otherwise 0.",
)
planned(
    Ask(verbs.CONTAINS, member_flags),
    "SMISMEMBER key member [member ...]",
    summary="Returns for each message 1 if it is queued, otherwise 0.",
)
# As in Redis, the reply is the number of messages that were queued, not of their copies.
planned(
    Ask(verbs.REMOVE, sums),
    "SREM key member [member ...]",
    summary="Removes all copies of the messages, and returns how many of the messages were queued. "
    "Removed messages count as consumed.",
    needs="get",
    flags="write",
)


@command("SMEMBERS key", needs="read", flags="readonly")
async def smembers(client: Caller, words: Words) -> Raw:
    """Returns all messages, oldest first. They stay queued."""
    messages = await messages_between(client, words[1], 0, -1)
    return await long_reply(set_sign(client.session.protocol), messages)


@command("SSCAN key cursor [MATCH pattern] [COUNT count]", needs="read", flags="readonly")
async def sscan(client: Caller, words: Words) -> list[object]:
    """Returns some messages, oldest first, and the cursor for the next call. Messages that stay queued are
    not missed.
    """
    cursor = cursor_of(words[2])
    count, pattern, _ = scan_options(words[3:])
    arguments = [b"%d" % cursor, b"%d" % count]
    after, messages = await read(client, verbs.SCAN, words[1], arguments, missing=[b"0", []])
    if pattern is not None:
        messages = [message async for message in matching(client, pattern, messages)]
    return [after, await long_reply(b"*", messages)]


@command("SRANDMEMBER key [count]", needs="read", flags="readonly")
async def srandmember(client: Caller, words: Words) -> object:
    """Returns random messages, which stay queued. With a negative count, a message may be returned several
    times.
    """
    if len(words) > 3:
        raise syntax_error()
    count = integer_of(words[2]) if len(words) == 3 else 1
    if count < -_MAX_PICKED:
        raise CommandError("ERR value is out of range")
    if count > _MANY_RANDOM and client.database.can_wait:
        length = await read(client, verbs.LENGTH, words[1], [], missing=0)
        if count >= length or count > _MAX_PICKED:
            messages = await messages_between(client, words[1], 0, -1)
            return random.sample(messages, min(count, len(messages)))
    seed = random.getrandbits(31)
    picked = await read(client, verbs.SAMPLE, words[1], [b"%d" % seed, b"%d" % min(count, 2**53)], missing=[])
    if len(words) == 3:
        return picked
    return picked[0] if picked else None
