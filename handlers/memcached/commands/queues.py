"""Commands on whole queues: length, membership, flush and delete; and those that queues do not support.

MessageQueue has scard and sismember, and kestrel has flush.
"""

from contextlib import suppress

from handlers.memcached.arguments import PAST, expiry_of, key_of
from handlers.memcached.commands.encoders import number
from handlers.memcached.meta import flags_of_delete
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


@queue_command("scard <queue>", needs="read")
def scard(client: MemcachedSession, request: Request) -> None:
    """Returns the number of messages in the queue."""
    client.submit(verbs.LENGTH, key_of(request.words[1]), [], 1, number)


@queue_command("sismember <queue> <message>", needs="read")
def sismember(client: MemcachedSession, request: Request) -> None:
    """Returns 1 if the message, which is the rest of the line, is queued, else 0."""
    client.submit(verbs.CONTAINS, key_of(request.words[1]), request.words[2:], 1, number)


@queue_command("md <queue> [<flag>*]", needs="administer")
@queue_command("delete <queue> [0]", needs="administer")
async def delete(client: MemcachedSession, request: Request) -> bytes:
    """Deletes the queue and its messages."""
    meta = flags_of_delete(request, "CI", "queues have no cas unique, and do not go stale")
    try:
        await client.database.run(verbs.DELETE, meta.key, client=client)
    except QueueDoesNotExistError:
        return meta.outcome(b"NOT_FOUND", {})
    return meta.outcome(b"DELETED", {})


@queue_command("flush <queue>", needs="get")
async def flush(client: MemcachedSession, request: Request) -> bytes:
    """Deletes all messages, and keeps the queue."""
    with suppress(QueueDoesNotExistError):
        await purge(client.database, key_of(request.words[1]), QUEUED, client)
    return END


@queue_command("flush_all [<delay>]", needs="get administer")
async def flush_all(client: MemcachedSession, request: Request) -> bytes:
    """Deletes all messages of all queues, if the listener has flush_all=yes."""
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
    queue_command(f"{_name} [<word>*]", needs="nothing", summary="Not supported on queues.")(_refuse)
