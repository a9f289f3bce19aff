"""Commands that move a message from one queue to another in one step, and may wait for room there."""

from __future__ import annotations

from handlers.resp.arguments import ENDS, timeout_of
from handlers.resp.client import Caller
from handlers.resp.errors import syntax_error
from handlers.resp.parser import Command
from handlers.resp.replies import NullArray
from handlers.resp.table import command


def _check_ends(words: list[bytes]) -> None:
    if any(word.upper() not in ENDS for word in words):
        raise syntax_error()


async def _wait_and_move(client: Caller, words: Command) -> object:
    database = client.database
    moved = await database.move(words[1], words[2], timeout=timeout_of(words[-1]), client=client.connection)
    return NullArray() if moved is None and database.can_wait else moved


@command(
    "LMOVE source destination LEFT|RIGHT LEFT|RIGHT",
    "Moves the oldest message to another queue, and returns it; nil when there is none.",
    group="list",
    needs="get put",
    flags="write denyoom",
)
async def lmove(client: Caller, words: Command) -> bytes | None:
    """As Redis, from the oldest end to the newest whichever are named."""
    _check_ends(words[3:])
    return await client.database.move(words[1], words[2], client=client.connection)


@command(
    "RPOPLPUSH source destination",
    "Moves the oldest message to another queue, and returns it; nil when there is none.",
    group="list",
    needs="get put",
    flags="write denyoom",
)
async def rpoplpush(client: Caller, words: Command) -> bytes | None:
    """As Redis."""
    return await client.database.move(words[1], words[2], client=client.connection)


@command(
    "BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout",
    "LMOVE that waits so many seconds for a message, for ever at 0.",
    group="list",
    needs="get put",
    flags="write denyoom blocking",
)
async def blmove(client: Caller, words: Command) -> object:
    """As Redis."""
    _check_ends(words[3:5])
    return await _wait_and_move(client, words)


@command(
    "BRPOPLPUSH source destination timeout",
    "RPOPLPUSH that waits so many seconds for a message, for ever at 0.",
    group="list",
    needs="get put",
    flags="write denyoom blocking",
)
async def brpoplpush(client: Caller, words: Command) -> object:
    """As Redis."""
    return await _wait_and_move(client, words)


@command(
    "SMOVE source destination member",
    "Moves a message, wherever it is queued, to another queue, and says whether it was there.",
    group="set",
    needs="get put",
    flags="write fast",
)
async def smove(client: Caller, words: Command) -> int:
    """As Redis: every copy leaves the one queue, and the other has it once."""
    moved = await client.database.move(
        words[1], words[2], message=words[3], unique=True, client=client.connection
    )
    return 0 if moved is None else 1
