"""Commands that move a message to another queue in one step. They may wait for room there."""

from __future__ import annotations

from handlers.resp.arguments import ENDS
from handlers.resp.parser import Words
from handlers.resp.replies import NullArray
from handlers.resp.session import Caller
from handlers.resp.table import command
from pressure_server.words import syntax_error, timeout_of


def _check_ends(words: list[bytes]) -> None:
    if any(word.upper() not in ENDS for word in words):
        raise syntax_error()


async def _wait_and_move(client: Caller, words: Words) -> object:
    database = client.database
    moved = await database.move(words[1], words[2], timeout=timeout_of(words[-1]), client=client.session)
    return NullArray() if moved is None and database.can_wait else moved


@command(
    "LMOVE source destination LEFT|RIGHT LEFT|RIGHT",
    "Moves the oldest message to another queue and returns it; nil if there is none.",
    group="list",
    needs="get put",
    flags="write denyoom",
)
async def lmove(client: Caller, words: Words) -> bytes | None:
    """Reply as Redis does, but move the oldest message and make it the newest, whichever ends are named."""
    _check_ends(words[3:])
    return await client.database.move(words[1], words[2], client=client.session)


@command(
    "RPOPLPUSH source destination",
    "Moves the oldest message to another queue and returns it; nil if there is none.",
    group="list",
    needs="get put",
    flags="write denyoom",
)
async def rpoplpush(client: Caller, words: Words) -> bytes | None:
    """Reply as Redis does."""
    return await client.database.move(words[1], words[2], client=client.session)


@command(
    "BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout",
    "Like LMOVE, but waits for a message, up to timeout seconds (0: forever).",
    group="list",
    needs="get put",
    flags="write denyoom blocking",
)
async def blmove(client: Caller, words: Words) -> object:
    """Reply as Redis does, but move the oldest message, as LMOVE does."""
    _check_ends(words[3:5])
    return await _wait_and_move(client, words)


@command(
    "BRPOPLPUSH source destination timeout",
    "Like RPOPLPUSH, but waits for a message, up to timeout seconds (0: forever).",
    group="list",
    needs="get put",
    flags="write denyoom blocking",
)
async def brpoplpush(client: Caller, words: Words) -> object:
    """Reply as Redis does."""
    return await _wait_and_move(client, words)


@command(
    "SMOVE source destination member",
    "Moves a message from any position to another queue; returns 1, or 0 if it was not queued.",
    group="set",
    needs="get put",
    flags="write fast",
)
async def smove(client: Caller, words: Words) -> int:
    """Reply as Redis does. Remove all copies from the source; the destination then has the message once."""
    moved = await client.database.move(
        words[1], words[2], message=words[3], unique=True, client=client.session
    )
    return 0 if moved is None else 1
