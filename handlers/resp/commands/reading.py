"""Helpers for commands that read: long replies, positions, scans."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from handlers.resp.arguments import integer_of
from handlers.resp.options import OptionTable, Parsers
from handlers.resp.replies import Raw
from handlers.resp.session import Caller
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.queues.operations.operation import Verb
from pressure_server.text import Glob
from pressure_server.words import syntax_error

# Messages that are handled before other clients are served again: a few milliseconds.
ENCODED_AT_ONCE = 10_000
# Seconds of matching after which other clients are served.
_WITHOUT_PAUSE = 0.005


async def read(client: Caller, verb: Verb, queue: bytes, arguments: list[bytes], *, missing: Any) -> Any:
    """Return the single value of an operation, or `missing` if there is no such queue."""
    try:
        return (await client.database.run(verb, queue, arguments, client=client.session))[0]
    except QueueDoesNotExistError:
        return missing


async def messages_between(client: Caller, queue: bytes, first: int, last: int) -> list[bytes]:
    """Return the messages from one position to another, oldest first; none if there is no such queue."""
    (found,) = await client.database.ranges([queue], first, last)
    return found or []


async def long_reply(sign: bytes, messages: Sequence[bytes]) -> Raw:
    """Return an array (`sign` is b"*") or a set (see set_sign). Let others run while encoding a long one."""
    parts = [b"%b%d\r\n" % (sign, len(messages))]
    if len(messages) <= ENCODED_AT_ONCE:
        # These few messages may be large, so copy them only once.
        return Raw(b"".join([*parts, *_pieces(messages)]))
    for first in range(0, len(messages), ENCODED_AT_ONCE):
        parts.append(b"".join(_pieces(messages[first : first + ENCODED_AT_ONCE])))
        await asyncio.sleep(0)
    return Raw(b"".join(parts))


def _pieces(messages: Iterable[bytes]) -> Iterator[bytes]:
    for message in messages:
        yield b"$%d\r\n" % len(message)
        yield message
        yield b"\r\n"


async def admitted_queues(client: Caller, pattern: Glob | None = None) -> AsyncIterator[bytes]:
    """Yield the queues of the selected database that match, and that the client's user may use."""
    session, pauses = client.session, Pauses(client)
    async for queue in session.database.queues():
        if session.user.may_access(queue) and (pattern is None or await pauses.matches(pattern, queue)):
            yield queue


async def matching(client: Caller, pattern: Glob | None, texts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the texts that match the pattern, if there is one."""
    pauses = Pauses(client)
    for text in texts:
        if pattern is None or await pauses.matches(pattern, text):
            yield text


class Pauses:
    """Lets others run between pieces of a client's work, if these have taken some milliseconds."""

    def __init__(self, client: Caller) -> None:
        self._connection = client.session.connection
        self._since = perf_counter()

    async def matches(self, pattern: Glob, text: bytes) -> bool:
        """Return whether the text matches. For a client that has left, none does."""
        steps = pattern.steps(text)
        while True:
            if perf_counter() - self._since > _WITHOUT_PAUSE:
                await asyncio.sleep(0)
                self._since = perf_counter()
                if self._connection.has_left:
                    return False
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)


def _scan_count(word: bytes) -> int:
    count = min(integer_of(word), 2**53)
    if count < 1:
        raise syntax_error()
    return count


_PARSERS: Parsers = {b"MATCH": bytes, b"COUNT": _scan_count}
_SSCAN = OptionTable(_PARSERS, last_counts=True, of_redis=True)
_SCAN = OptionTable({**_PARSERS, b"TYPE": bytes.lower}, last_counts=True, of_redis=True)


def scan_options(words: list[bytes], *, with_type: bool = False) -> tuple[int, Glob | None, bytes]:
    """Return the count, pattern and type of a scan, which options may set. Raise CommandError."""
    options = (_SCAN if with_type else _SSCAN).values(words)
    pattern = options.get(b"MATCH")
    return options.get(b"COUNT", 10), None if pattern is None else Glob(pattern), options.get(b"TYPE", b"set")
