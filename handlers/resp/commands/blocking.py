"""Commands that wait for a message, and commands that take from the first of several queues.

If a queue is closed and empty, a command that would wait for it replies -CLOSED at once.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from handlers.resp.arguments import ENDS, numbered_keys, options_in
from handlers.resp.commands.encoders import queue_and_message
from handlers.resp.parser import Words
from handlers.resp.replies import NullArray
from handlers.resp.session import Caller
from handlers.resp.table import command
from pressure_server.errors import CommandError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait
from pressure_server.words import positive_count, syntax_error, timeout_of

# Each queue needs an operation, which may wait.
_MAX_QUEUES = 1000


async def _take(
    client: Caller, queues: list[bytes], timeout: float | None, count: int = 1
) -> tuple[bytes, list[bytes]] | None:
    if len(queues) > _MAX_QUEUES:
        raise CommandError(f"ERR too many queues: at most {_MAX_QUEUES}")
    return await client.database.take(queues, timeout, count, client.session)


def _bpop(client: Caller, words: Words) -> Coroutine[Any, Any, object] | None:
    timeout = timeout_of(words[-1])
    if len(words) > 3:
        return _bpop_of_many(client, words[1:-1], timeout)
    client.submit(verbs.GET, words[1], [], 1, queue_and_message, wait=Wait(timeout), options=WAITS)
    return None


async def _bpop_of_many(client: Caller, queues: list[bytes], timeout: float | None) -> object:
    taken = await _take(client, queues, timeout)
    return NullArray() if taken is None else [taken[0], taken[1][0]]


for _name in ("BLPOP", "BRPOP"):
    command(
        f"{_name} key [key ...] timeout",
        "Takes the oldest message of the first queue that has one. Waits up to timeout seconds (0: forever).",
        group="list",
        needs="get",
        flags="write blocking",
    )(_bpop)


async def _mpop(client: Caller, words: Words, timeout: bytes | None) -> object:
    """Take messages; `words` begin with numkeys. Like Redis, parse `timeout` after the other words."""
    queues, rest = numbered_keys(words)
    if not rest or rest[0].upper() not in ENDS:
        raise syntax_error()
    count = options_in(rest[1:], {b"COUNT": positive_count}, of_redis=True).get(b"COUNT", 1)
    seconds = 0 if timeout is None else timeout_of(timeout)
    taken = await _take(client, queues, seconds, count)
    return NullArray() if taken is None else [taken[0], taken[1]]


@command(
    "LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]",
    "Takes the oldest message, or up to count messages, of the first queue that has any.",
    group="list",
    needs="get",
    flags="write movablekeys",
)
async def lmpop(client: Caller, words: Words) -> object:
    """Reply as Redis does, but take the oldest messages, whichever end is named."""
    return await _mpop(client, words[1:], None)


@command(
    "BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]",
    "Like LMPOP, but waits for a message, up to timeout seconds (0: forever).",
    group="list",
    needs="get",
    flags="write blocking movablekeys",
)
async def blmpop(client: Caller, words: Words) -> object:
    """Reply as Redis does, but take the oldest messages, whichever end is named."""
    return await _mpop(client, words[2:], words[1])
