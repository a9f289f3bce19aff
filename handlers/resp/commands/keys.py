"""Commands on keys. To a Redis client, each queue is a set that does not expire."""

import random
import re
from functools import partial

from handlers.resp import table
from handlers.resp.arguments import cursor_of
from handlers.resp.commands.reading import admitted_queues, matching, scan_options
from handlers.resp.parser import Words
from handlers.resp.replies import OK
from handlers.resp.session import Caller
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.database import Database
from pressure_server.queues.names import portions
from pressure_server.queues.operations import verbs
from pressure_server.queues.queue_operations import QueueOperations
from pressure_server.text import Glob
from pressure_server.words import syntax_error

command = partial(table.command, group="generic")
of_server = partial(table.command, group="server")

# Roughly the number of backend keys per queue. SCAN examines this many keys for each wanted queue.
_KEYS_OF_A_QUEUE = 12
# The most keys that a SCAN examines, whatever its COUNT: the backend serves nobody else meanwhile.
_MAX_SCANNED = 10_000


async def _delete(client: Caller, database: QueueOperations, queues: list[bytes]) -> int:
    """Delete the queues. Return how many existed, or raise the first error after trying all of them."""
    ended = await database.run_each(verbs.DELETE, queues, client=client.session)
    for end in ended:
        if isinstance(end, Exception) and not isinstance(end, QueueDoesNotExistError):
            raise end
    return sum(end == 1 for end in ended)


@command("DEL key [key ...]", "UNLINK key [key ...]", needs="administer", flags="write")
async def del_(client: Caller, words: Words) -> int:
    """Deletes queues and their messages, and returns how many existed."""
    return await _delete(client, client.database, words[1:])


@command("EXISTS key [key ...]", needs="read", flags="readonly fast")
async def exists(client: Caller, words: Words) -> int:
    """Returns how many of the queues exist."""
    # As in Redis, a queue that is named twice counts twice. An empty queue exists.
    found = await client.database.run_each(verbs.EXISTS, words[1:])
    for one in found:
        if isinstance(one, Exception):
            raise one
    return sum(found)


@command("TYPE key", needs="read", flags="readonly fast")
async def type_(client: Caller, words: Words) -> str:
    """Returns set if the queue exists, otherwise none."""
    return "set" if await client.database.exists(words[1]) else "none"


@command("TTL key", "PTTL key", needs="read", flags="readonly fast")
async def ttl(client: Caller, words: Words) -> int:
    """Returns -1 (no expiry) if the queue exists, otherwise -2."""
    return -1 if await client.database.exists(words[1]) else -2


@command("KEYS pattern", needs="read", flags="readonly")
async def keys(client: Caller, words: Words) -> list[bytes]:
    """Returns the names of the queues that match the pattern."""
    return [queue async for queue in admitted_queues(client, Glob(words[1]))]


@command("SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]", needs="read", flags="readonly")
async def scan(client: Caller, words: Words) -> list[object]:
    """Returns the names of some queues, and the cursor for the next call."""
    cursor = cursor_of(words[1])
    count, pattern, kind = scan_options(words[2:], with_type=True)
    most = min(count * _KEYS_OF_A_QUEUE, _MAX_SCANNED)
    after, queues = await client.session.database.scan(b"%d" % cursor, most)
    if kind != b"set":
        queues = []
    admits = client.session.user.may_access
    return [after, [queue async for queue in matching(client, pattern, queues) if admits(queue)]]


@of_server("DBSIZE", needs="read", flags="readonly fast")
async def dbsize(client: Caller, _words: Words) -> int:
    """Returns the number of queues."""
    # Only the queues that the user may use, and not the backend's keys.
    return sum([1 async for _ in admitted_queues(client)])


@command("RANDOMKEY", needs="read", flags="readonly")
async def randomkey(client: Caller, _words: Words) -> bytes | None:
    """Returns the name of a random queue; nil if there is none."""
    queues = [queue async for queue in admitted_queues(client)]
    return random.choice(queues) if queues else None


async def _flush(client: Caller, database: Database) -> None:
    """Delete all queues of the database. Raise an error after trying all of them."""
    queues = [queue async for queue in database.queues()]
    held: list[bytes] = []
    errors: list[PressureError] = []
    for shard, its_queues in database.by_shard(queues):
        for some in portions(its_queues):
            for queue, end in zip(some, await shard.housekeeping.delete(some), strict=True):
                if isinstance(end, PressureError):
                    errors.append(end)
                elif end < 0:
                    held.append(queue)
    await _delete(client, database, held)
    if errors:
        raise errors[0]


def _check_flush(words: Words) -> None:
    if len(words) > 2 or (len(words) == 2 and words[1].upper() not in (b"SYNC", b"ASYNC")):
        raise syntax_error()


@of_server("FLUSHDB [ASYNC|SYNC]", needs="administer", flags="write")
async def flushdb(client: Caller, words: Words) -> str:
    """Deletes all queues of the selected database, and no other keys."""
    _check_flush(words)
    await _flush(client, client.session.database)
    return OK


@of_server("FLUSHALL [ASYNC|SYNC]", needs="administer", flags="write")
async def flushall(client: Caller, words: Words) -> str:
    """Deletes all queues of all databases, and no other keys."""
    _check_flush(words)
    broker = client.session.context.broker
    errors: list[PressureError] = []
    # A node that gives the keys of the queues to another one may have none left.
    numbers = {b"%d" % client.session.database.database_number}
    for shard in client.session.database.shards:
        keyspace = await shard.keys.command(b"INFO", b"keyspace")
        numbers.update(re.findall(rb"^db(\d+):", keyspace, re.MULTILINE))
    for number in sorted(map(int, numbers)):
        try:
            await _flush(client, await broker.database(number))
        except PressureError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return OK
