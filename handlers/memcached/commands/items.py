"""set, add, get and gets on queues, and their meta commands ms and mg, with kestrel's reads.

They put a message, take the oldest one, or peek at it.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from handlers.memcached.arguments import expiry_of, flags_of, key_of, queue_of, split_key
from handlers.memcached.commands.encoders import (
    item,
    message_meta,
    one_item,
    one_item_meta,
    one_item_unique,
    stored,
    stored_if_new,
    stored_meta,
)
from handlers.memcached.meta import Meta
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import queue_command
from pressure_server.errors import PressureError, QueueClosedError, QueueDoesNotExistError
from pressure_server.net.pipeline import unanswered
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import NO_DEADLINE, ReservedJob, claim, owned
from pressure_server.queues.operations.operation import Encode, Verb
from pressure_server.queues.operations.options import WAITS, OnFull, Options
from pressure_server.queues.operations.wait import Wait

_SET = (Options(on_full=OnFull.FAIL), Options(on_full=OnFull.FAIL, has_flags=True))
_ADD = (replace(_SET[0], unique=True), replace(_SET[1], unique=True))
# Queues from which one get takes at the same time.
_AT_ONCE = 100
_FLAGS = Options(has_flags=True)
_WAITS = Options(has_flags=True, waits=True)


@queue_command(
    "add <queue> <flags> <exptime> <bytes>",
    needs="put",
    repeats=True,
    summary="Puts a message unless it is queued already; then the reply is NOT_STORED.",
)
@queue_command("set <queue> <flags> <exptime> <bytes>", needs="put", repeats=True)
def put(client: MemcachedSession, request: Request) -> None:
    """Puts a message, even if it is queued already.

    Creates the queue if it does not exist. The message is not delivered after its exptime.
    """
    name, queue, flags, expires, _size = request.words
    mark = b"" if flags == expires == b"0" else b"%b %b " % (flags_of(flags), expiry_of(expires))
    how, encode = (_SET, stored) if name == b"set" else (_ADD, stored_if_new)
    _put(client, queue, mark, request, how, unanswered(encode) if request.is_quiet else encode)


@queue_command("ms <queue> <bytes> [<flag>*]", needs="put", repeats=True)
def ms(client: MemcachedSession, request: Request) -> None:
    """Puts a message, as `set` does; with the flag ME, as `add` does."""
    meta = Meta(request.words[1], request.words[3:], "CI", "messages are put and taken, not replaced")
    mode = meta.get("M", b"S")
    if mode not in b"SE":
        if mode in b"ARP":
            raise ClientError("messages cannot be changed or replaced: the mode of ms is S or E on queues")
        raise ClientError("invalid mode for ms M token")
    flags, expiry = meta.get("F", b"0"), meta.get("T", b"0")
    mark = b"" if flags == expiry == b"0" else b"%b %b " % (flags, expiry)
    is_unique = mode == b"E"
    _put(client, meta.key, mark, request, _ADD if is_unique else _SET, stored_meta(meta, is_unique))


def _put(
    client: MemcachedSession,
    queue: bytes,
    mark: bytes,
    request: Request,
    how: tuple[Options, Options],
    encode: Encode,
) -> None:
    """Put messages with this `mark`, if any. `how` is the options to use without a mark, and with one."""
    if b"/" in queue and queue_of(queue) != queue:
        raise ClientError(
            "this cannot be a queue's name: it ends in an option of get, so get could not read the queue"
        )
    data, (options, marked) = request.blocks, how
    if mark:
        options, data = marked, [mark + message for message in data]
    client.submit(verbs.PUT, queue, data, 1, encode, commands=len(data), options=options)


@queue_command("gets <queue>*", needs="get", repeats=True)
@queue_command("get <queue>*", needs="get", repeats=True)
def get(client: MemcachedSession, request: Request) -> Coroutine[Any, Any, bytes] | None:
    """Takes the oldest message of each queue. The reply is END alone if all are empty."""
    name, *keys = request.words
    with_unique = name == b"gets"
    encode = one_item_unique if with_unique else one_item
    # The most frequent case takes 1.6 microseconds, instead of 1.9 with a search for options.
    if len(keys) == 1 and b"/" not in keys[0]:
        _take_now(client, key_of(keys[0]), request.count, encode)
        return None
    if request.count > 1:
        client.execute_instead(request.requests())
        return None
    for key in keys:
        key_of(key)
    if len(keys) > 1:
        return _get_many(client, keys, with_unique=with_unique)
    if split_key(keys[0])[0] != keys[0]:
        return _get_with_options(client, keys[0], with_unique=with_unique)
    _take_now(client, keys[0], 1, encode)
    return None


def _take_now(client: MemcachedSession, queue: bytes, commands: int, encode: Encode) -> None:
    _check_open(client, queue)
    client.submit(verbs.GET, queue, [], 1, encode, commands=commands, options=_FLAGS)


def _check_open(client: MemcachedSession, queue: bytes) -> None:
    """Raise ClientError if the client has an open message of the queue, as kestrel does."""
    if queue in client.open_reads:
        raise ClientError("a message of this queue is open: close or abort it first")


async def _get_many(client: MemcachedSession, keys: list[bytes], *, with_unique: bool) -> bytes:
    for queue in keys:
        if split_key(queue)[0] != queue:
            raise ClientError("a get with options such as /open takes one queue only")
        _check_open(client, queue)
    # Take from all queues together. If the client has gone, its messages then go back to each queue before
    # messages that other such clients have taken meanwhile.
    items: list[bytes] = []
    for first in range(0, len(keys), _AT_ONCE):
        takes = [
            _take_item(client, queue, with_unique=with_unique) for queue in keys[first : first + _AT_ONCE]
        ]
        found = await asyncio.gather(*takes, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
            items.append(one)
    return b"".join(items) + END


async def _take_item(client: MemcachedSession, queue: bytes, *, with_unique: bool) -> bytes:
    messages: list[bytes] = []
    with suppress(QueueDoesNotExistError):
        messages = await client.database.run(verbs.GET, queue, client=client, options=_FLAGS)
    client.counts.got(len(messages), 1 - len(messages))
    return b"".join([item(queue, message, with_unique=with_unique) for message in messages])


async def _get_with_options(client: MemcachedSession, key: bytes, *, with_unique: bool) -> bytes:
    found = await _read(client, *split_key(key))
    return b"".join([item(key, message, with_unique=with_unique) for message in found]) + END


async def _read(client: MemcachedSession, queue: bytes, words: set[bytes], timeout: float) -> list[bytes]:
    """Execute a get with options: return a message, or none. As in kestrel, /close and /abort come first."""
    if b"abort" in words:
        await _abort(client, queue)
        return []
    if b"close" in words:
        await _close(client, queue)
        if b"open" not in words:
            return []
    if b"peek" in words:
        return await _peek(client, queue, timeout)
    _check_open(client, queue)
    try:
        found = await _take(client, queue, Wait(timeout), opens=b"open" in words)
    except QueueClosedError:
        if timeout:
            raise  # no message will come, so the client must not wait again
        found = []
    client.counts.got(len(found), 1 - len(found))
    return found


@queue_command("mg <queue> [<flag>*]", needs="get", repeats=True)
def mg(client: MemcachedSession, request: Request) -> Coroutine[Any, Any, bytes] | None:
    """Takes the oldest message, as `get` does. Without the flag v, the message stays queued."""
    # Clients ask without v whether there is an item.
    meta = Meta(request.words[1], request.words[2:], "NRT", "the expiry of a message is set when it is put")
    if b"/" not in meta.key and "v" in meta:
        _take_now(client, meta.key, request.count, one_item_meta(meta))
        return None
    if request.count > 1:
        client.execute_instead(request.requests())
        return None
    return _read_meta(client, meta)


async def _read_meta(client: MemcachedSession, meta: Meta) -> bytes:
    queue, words, timeout = split_key(meta.key)
    if "v" not in meta and words.isdisjoint((b"open", b"close", b"abort")):
        words = {b"peek"}
    found = await _read(client, queue, words, timeout)
    return b"".join([message_meta(meta, message) for message in found]) or meta.miss()


async def _take(client: MemcachedSession, queue: bytes, wait: Wait, *, opens: bool) -> list[bytes]:
    if not opens:
        return await client.database.run(verbs.GET, queue, wait=wait, client=client, options=_WAITS)
    claims = [claim(client.job_owner, NO_DEADLINE)]
    found = await client.database.run(verbs.RESERVE, queue, claims, wait=wait, client=client, options=WAITS)
    return [ReservedJob.of(one).message for one in found]


async def _close(client: MemcachedSession, queue: bytes) -> None:
    """Delete the open message of the queue, if any."""
    job = client.open_reads.get(queue)
    if job is not None:
        await _end(client, queue, job, verbs.DELETE_JOB)
        # After an error it stays open: the client may close it again, or abort.
        client.pop_open(queue)
        client.reserved_jobs.discard(job.id)


async def _abort(client: MemcachedSession, queue: bytes) -> None:
    """Put the open message of the queue back to the head of the queue, if any.

    It is not open any longer, also after an error: a client that goes on with /close must not delete it.
    """
    job = client.pop_open(queue)
    if job is not None:
        try:
            await _end(client, queue, job, verbs.GIVE_UP)
        except PressureError:
            client.reserved_jobs.discard(job.id)
            reservations = client.database.shard_of(queue).reservations
            reservations.give_up(queue, [(job.id, job.reserves)], client.job_owner)
            raise
        # Not before: if the client leaves meanwhile, its reserved jobs are given up.
        client.reserved_jobs.discard(job.id)


async def _end(client: MemcachedSession, queue: bytes, job: ReservedJob, verb: Verb) -> None:
    with suppress(QueueDoesNotExistError):
        await client.database.run(verb, queue, [owned(job.id, client.job_owner)], client=client)


async def _peek(client: MemcachedSession, queue: bytes, timeout: float) -> list[bytes]:
    """Return the oldest message, if there is one within `timeout` seconds."""
    client.counts.peeks += 1
    found: list[list[bytes]] = []
    with suppress(QueueDoesNotExistError):
        found = await client.database.run(verbs.PEEK, queue, wait=Wait(timeout), client=client, options=WAITS)
    return found[0] if found else []
