"""Commands that wait, that take from the first of several queues, and that move a message to another queue.

If a queue is closed and empty, a command that would wait for it replies -CLOSED at once. A move may wait for
room. Whichever ends a command names, it takes the oldest message, and a moved message becomes the newest one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import ENDS, numbered_keys, options_in
from handlers.resp.commands.encoders import queue_and_message
from handlers.resp.parser import Words
from handlers.resp.replies import NullArray
from handlers.resp.session import Caller
from pressure_server.errors import CommandError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait
from pressure_server.words import positive_count, syntax_error, timeout_of

command = partial(table.command, group="list")

# Each queue needs an operation, which may wait.
_MAX_QUEUES = 1000


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


async def _mpop(client: Caller, words: Words, timeout: bytes | None) -> object:
    """Take messages; `words` begin with numkeys. Like Redis, parse `timeout` after the other words."""
    queues, rest = numbered_keys(words)
    if not rest or rest[0].upper() not in ENDS:
        raise syntax_error()
    count = options_in(rest[1:], {b"COUNT": positive_count}, of_redis=True).get(b"COUNT", 1)
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
