"""Commands on whole queues: length, membership, flush and delete; and those that queues do not support."""

from __future__ import annotations

from contextlib import suppress

from handlers.memcached.arguments import PAST, expiry_of, key_of
from handlers.memcached.commands.encoders import number
from handlers.memcached.meta import Meta
from handlers.memcached.parser import Request
from handlers.memcached.replies import END, OK, ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import queue_command
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.queue_operations import QUEUED, purge

_AT_ONCE = (b"0", PAST)

_WHY = {
    "replace": "messages are put and taken, not replaced",
    "append": "messages cannot be changed",
    "prepend": "messages cannot be changed",
    "cas": "messages are put and taken, not replaced",
    "ma": "messages are not counters",
    "me": "messages have no such facts",
    "incr": "messages are not counters",
    "decr": "messages are not counters",
    "touch": "the expiry of a message is set when it is put",
    "gat": "the expiry of a message is set when it is put",
    "gats": "the expiry of a message is set when it is put",
}


@queue_command("scard <queue>", "Returns the number of messages in the queue.", needs="read")
def scard(client: MemcachedSession, request: Request) -> None:
    """pressure 0.15, Length. A command of MessageQueue."""
    client.submit(verbs.LENGTH, key_of(request.words[1]), [], 1, number)


@queue_command(
    "sismember <queue> <message>",
    "Returns 1 if the message, which is the rest of the line, is queued, else 0.",
    needs="read",
)
def sismember(client: MemcachedSession, request: Request) -> None:
    """A command of MessageQueue."""
    client.submit(verbs.CONTAINS, key_of(request.words[1]), request.words[2:], 1, number)


@queue_command("delete <queue> [0]", "Deletes the queue and its messages.", needs="administer")
async def delete(client: MemcachedSession, request: Request) -> bytes:
    """pressure 0.15, Delete. Old clients send a time, which must be 0."""
    if request.words[2:] not in ([], [b"0"]):
        raise ClientError("bad command line format.  Usage: delete <key> [noreply]")
    return await _delete(client, key_of(request.words[1])) + b"\r\n"


@queue_command("md <queue> [<flag>*]", "Deletes the queue and its messages.", needs="administer")
async def md(client: MemcachedSession, request: Request) -> bytes:
    """pressure 0.15, Delete."""
    meta = Meta(request.words[1], request.words[2:], "CI", "queues have no cas unique, and do not go stale")
    return meta.outcome(await _delete(client, meta.key), {})


async def _delete(client: MemcachedSession, queue: bytes) -> bytes:
    try:
        await client.database.run(verbs.DELETE, queue, client=client)
    except QueueDoesNotExistError:
        return b"NOT_FOUND"
    return b"DELETED"


@queue_command("flush <queue>", "Deletes all messages, and keeps the queue.", needs="get")
async def flush(client: MemcachedSession, request: Request) -> bytes:
    """A command of kestrel. The messages count as consumed."""
    with suppress(QueueDoesNotExistError):
        await purge(client.database, key_of(request.words[1]), QUEUED, client)
    return END


@queue_command(
    "flush_all [<delay>]",
    "Deletes all messages of all queues, if the listener has flush_all=yes.",
    needs="get administer",
)
async def flush_all(client: MemcachedSession, request: Request) -> bytes:
    """Flush every queue. The delay must be 0 or a past time.

    If queues cannot be flushed, raise the first of their errors after flushing the others.
    """
    if not client.options.flush_all:
        raise ClientError("flush_all is not allowed: the listener's URL needs ?flush_all=yes")
    if request.words[1:] and expiry_of(request.words[1], "invalid exptime argument") not in _AT_ONCE:
        raise ClientError("queues cannot be flushed with a delay")
    queues = [queue async for queue in client.database.queues()]
    errors: list[PressureError] = []
    for queue in queues:
        try:
            await purge(client.database, queue, QUEUED, client)
        except QueueDoesNotExistError:
            pass
        except PressureError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return OK


def _refuse(_client: MemcachedSession, request: Request) -> None:
    name = request.words[0].decode()
    raise ClientError(f"{name} is not supported on queues: {_WHY[name]} (use mode=kv for keys and values)")


for _name in _WHY:
    queue_command(f"{_name} [<word>*]", "Not supported on queues.", needs="nothing")(_refuse)
