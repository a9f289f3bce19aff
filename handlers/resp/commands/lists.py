"""Commands on a queue as a list, commands that wait, and those that move a message to another queue.

The list is first in, first out, whichever end a command names: a push adds the newest message, a pop takes
the oldest one, and positions count from the oldest. If a queue is closed and empty, a command that would wait
for it replies -CLOSED at once. A move may wait for room.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import ENDS, at_least_0, numbered_keys, position_of
from handlers.resp.commands import plans
from handlers.resp.commands.encoders import integers, message_lists, queue_and_message
from handlers.resp.commands.plans import Ask, Put, Take
from handlers.resp.commands.reading import long_reply, messages_between, read
from handlers.resp.options import OptionTable
from handlers.resp.parser import Words
from handlers.resp.replies import OK, NullArray, wrong_arity
from handlers.resp.session import Caller
from pressure_server.errors import CommandError, QueueDoesNotExistError
from pressure_server.queues.names import portions
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import WAITS, Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.words import positive_count, syntax_error, timeout_of

command = partial(table.command, group="list")
planned = partial(plans.planned, group="list")

# Each queue that a command waits for needs an operation.
_MAX_QUEUES = 1000
# The most jobs that one call deletes.
_DELETED_AT_ONCE = 1000


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
    jobs = await read(client, verbs.TRIM, words[1], arguments, missing=[])
    for some in portions(jobs, _DELETED_AT_ONCE):
        await client.database.run(verbs.DELETE_JOB, words[1], list(some), len(some), client=client.session)
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


_LPOS = OptionTable(
    {b"RANK": _rank, b"COUNT": at_least_0("COUNT"), b"MAXLEN": at_least_0("MAXLEN")},
    last_counts=True,
    of_redis=True,
)


@command("LPOS key element [RANK rank] [COUNT count] [MAXLEN length]", needs="read", flags="readonly")
async def lpos(client: Caller, words: Words) -> object:
    """Returns the position of a message, counted from the oldest; with COUNT, a list of its positions."""
    options = _LPOS.values(words[3:])
    rank, count, length = options.get(b"RANK", 1), options.get(b"COUNT", 1), options.get(b"MAXLEN", 0)
    arguments = [words[2], *(b"%d" % number for number in (rank, count, length))]
    found: list[int] = await read(client, verbs.POSITIONS, words[1], arguments, missing=[])
    if b"COUNT" in options:
        return found
    return found[0] if found else None


async def _take(
    client: Caller, queues: list[bytes], timeout: float | None, count: int = 1
) -> tuple[bytes, list[bytes]] | None:
    if len(queues) > _MAX_QUEUES:
        raise CommandError(f"ERR too many queues: at most {_MAX_QUEUES}")
    return await client.database.take(queues, timeout, count, client.session)


@command("BLPOP key [key ...] timeout", "BRPOP key [key ...] timeout", needs="get", flags="write blocking")
def bpop(client: Caller, words: Words) -> Coroutine[Any, Any, object] | None:
    """Takes the oldest message of the first queue that has one. Waits up to timeout seconds (0: forever)."""
    timeout = timeout_of(words[-1])
    if len(words) > 3:
        return _bpop_of_many(client, words[1:-1], timeout)
    client.submit(verbs.GET, words[1], [], 1, queue_and_message, wait=Wait(timeout), options=WAITS)
    return None


async def _bpop_of_many(client: Caller, queues: list[bytes], timeout: float | None) -> object:
    taken = await _take(client, queues, timeout)
    return NullArray() if taken is None else [taken[0], taken[1][0]]


_MPOP = OptionTable({b"COUNT": positive_count}, of_redis=True)


async def _mpop(client: Caller, words: Words, timeout: bytes | None) -> object:
    """Take messages; `words` begin with numkeys. Like Redis, parse `timeout` after the other words."""
    queues, rest = numbered_keys(words)
    if not rest or rest[0].upper() not in ENDS:
        raise syntax_error()
    count = _MPOP.values(rest[1:]).get(b"COUNT", 1)
    taken = await _take(client, queues, 0 if timeout is None else timeout_of(timeout), count)
    return NullArray() if taken is None else [taken[0], taken[1]]


@command("LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]", needs="get", flags="write movablekeys")
async def lmpop(client: Caller, words: Words) -> object:
    """Takes the oldest message, or up to count messages, of the first queue that has any."""
    return await _mpop(client, words[1:], None)


@command(
    "BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]",
    needs="get",
    flags="write blocking movablekeys",
)
async def blmpop(client: Caller, words: Words) -> object:
    """Like LMPOP, but waits for a message, up to timeout seconds (0: forever)."""
    return await _mpop(client, words[2:], words[1])


def _check_ends(words: list[bytes]) -> None:
    if any(word.upper() not in ENDS for word in words):
        raise syntax_error()


@command(
    "LMOVE source destination LEFT|RIGHT LEFT|RIGHT",
    "RPOPLPUSH source destination",
    needs="get put",
    flags="write denyoom",
)
async def lmove(client: Caller, words: Words) -> bytes | None:
    """Moves the oldest message to another queue and returns it; nil if there is none."""
    _check_ends(words[3:])
    return await client.database.move(words[1], words[2], client=client.session)


@command(
    "BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout",
    needs="get put",
    flags="write denyoom blocking",
)
async def blmove(client: Caller, words: Words) -> object:
    """Like LMOVE, but waits for a message, up to timeout seconds (0: forever)."""
    _check_ends(words[3:-1])
    database = client.database
    moved = await database.move(words[1], words[2], timeout=timeout_of(words[-1]), client=client.session)
    return NullArray() if moved is None and database.can_wait else moved


@command("BRPOPLPUSH source destination timeout", needs="get put", flags="write denyoom blocking")
async def brpoplpush(client: Caller, words: Words) -> object:
    """Like RPOPLPUSH, but waits for a message, up to timeout seconds (0: forever)."""
    return await blmove(client, words)


@table.command("SMOVE source destination member", group="set", needs="get put", flags="write fast")
async def smove(client: Caller, words: Words) -> int:
    """Moves a message from any position to another queue; returns 1, or 0 if it was not queued."""
    # All copies leave the source; the destination then has the message once.
    source, destination, message = words[1:]
    moved = await client.database.move(
        source, destination, message=message, unique=True, client=client.session
    )
    return 0 if moved is None else 1
