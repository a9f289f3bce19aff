"""Commands on a queue as a list. The list is first in, first out, whichever end a command names.

A push adds the newest message, a pop takes the oldest one, and positions count from the oldest.
"""

from __future__ import annotations

from functools import partial

from handlers.resp import table
from handlers.resp.arguments import at_least_0, options_in, position_of
from handlers.resp.commands import plans
from handlers.resp.commands.encoders import integers, message_lists
from handlers.resp.commands.plans import Ask, Put, Take
from handlers.resp.commands.reading import long_reply, messages_between, read
from handlers.resp.parser import Words
from handlers.resp.replies import OK, wrong_arity
from handlers.resp.session import Caller
from pressure_server.errors import CommandError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import Options

command = partial(table.command, group="list")
planned = partial(plans.planned, group="list")


def _length_or_zero(operation: Operation) -> bytes:
    if isinstance(operation.error, QueueDoesNotExistError):
        return b":0\r\n" * len(operation.sizes)
    return integers(operation)


planned(
    Put(integers),
    "LPUSH key element [element ...]",
    "RPUSH key element [element ...]",
    summary="Puts messages, even if they are queued already, and returns the queue's length. "
    "Creates the queue.",
)
planned(
    Put(_length_or_zero, Options(must_exist=True)),
    "LPUSHX key element [element ...]",
    "RPUSHX key element [element ...]",
    summary="Puts messages into a queue that exists, and returns its length; 0 if there is no such queue.",
)
planned(
    Take(message_lists, excess=lambda words: wrong_arity(words[0].lower().decode())),
    "LPOP key [count]",
    "RPOP key [count]",
    summary="Takes the oldest message, or up to count messages; nil if there is none.",
)
planned(
    Ask(verbs.LENGTH, integers),
    "LLEN key",
    summary="Returns the number of messages.",
    needs="read",
    flags="readonly fast",
)


@command("LRANGE key start stop", needs="read", flags="readonly")
async def lrange(client: Caller, words: Words) -> object:
    """Returns the messages from position start to stop, oldest first. They stay queued."""
    first, last = position_of(words[2]), position_of(words[3])
    return await long_reply(b"*", await messages_between(client, words[1], first, last))


@command("LINDEX key index", needs="read", flags="readonly")
async def lindex(client: Caller, words: Words) -> object:
    """Returns the message at a position. It stays queued."""
    position = position_of(words[2])
    found = await messages_between(client, words[1], position, position)
    return found[0] if found else None


@command("LTRIM key start stop", needs="get", flags="write")
async def ltrim(client: Caller, words: Words) -> str:
    """Keeps only the messages from position start to stop, counted from the oldest. What is removed counts as
    consumed.
    """
    arguments = [b"%d" % position_of(word) for word in words[2:]]
    await read(client, verbs.TRIM, words[1], arguments, missing=None)
    return OK


@command("LREM key count element", needs="get", flags="write")
def lrem(client: Caller, words: Words) -> None:
    """Removes copies of a message: all if count is 0, else up to count of the oldest ones, or with a negative
    count of the newest ones. Returns how many. They count as consumed.
    """
    client.submit(verbs.REMOVE_COPIES, words[1], [b"%d" % position_of(words[2]), words[3]], 1, integers)


def _rank(word: bytes) -> int:
    rank = position_of(word)
    if rank == 0:
        raise CommandError(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use "
            "negative to start from the end of the list"
        )
    return rank


_LPOS = {b"RANK": _rank, b"COUNT": at_least_0("COUNT"), b"MAXLEN": at_least_0("MAXLEN")}


@command("LPOS key element [RANK rank] [COUNT count] [MAXLEN length]", needs="read", flags="readonly")
async def lpos(client: Caller, words: Words) -> object:
    """Returns the position of a message, counted from the oldest; with COUNT, a list of its positions."""
    options = options_in(words[3:], _LPOS, last_counts=True, of_redis=True)
    rank, count, length = options.get(b"RANK", 1), options.get(b"COUNT", 1), options.get(b"MAXLEN", 0)
    arguments = [words[2], *(b"%d" % number for number in (rank, count, length))]
    found: list[int] = await read(client, verbs.POSITIONS, words[1], arguments, missing=[])
    if b"COUNT" in options:
        return found
    return found[0] if found else None
