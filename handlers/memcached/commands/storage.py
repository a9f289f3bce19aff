"""set and add on queues: put a message; add only if it is not queued yet. Neither waits for room."""

from __future__ import annotations

from handlers.memcached.arguments import expiry_of, flags_of
from handlers.memcached.commands.encoders import nothing, stored, stored_if_new
from handlers.memcached.parser import Repeated, Request
from handlers.memcached.queue_options import queue_of
from handlers.memcached.replies import ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import QUEUE, command
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Encode
from pressure_server.queues.operations.options import OnFull, Options


def _put(
    client: MemcachedSession,
    request: Request | Repeated,
    data: list[bytes],
    how: tuple[Options, Options],
    encode: Encode,
) -> None:
    """Put the messages. `how` is the options to use without flags and expiry, and those to use with them."""
    _, queue, flags, expires, _size = request.words
    if b"/" in queue and queue_of(queue) != queue:
        raise ClientError(
            "this cannot be a queue's name: it ends in an option of get, so get could not read the queue"
        )
    options, with_flags = how
    if flags != b"0" or expires != b"0":
        mark = b"%d %b " % (flags_of(flags), expiry_of(expires))
        options, data = with_flags, [mark + message for message in data]
    client.submit(
        verbs.PUT,
        queue,
        data,
        1,
        nothing if request.is_quiet else encode,
        commands=len(data),
        options=options,
    )


_SET = (Options(on_full=OnFull.FAIL), Options(on_full=OnFull.FAIL, has_flags=True))
_ADD = (_SET[0]._replace(unique=True), _SET[1]._replace(unique=True))


def _set_repeated(client: MemcachedSession, requests: Repeated) -> None:
    _put(client, requests, requests.data, _SET, stored)


def _add_repeated(client: MemcachedSession, requests: Repeated) -> None:
    _put(client, requests, requests.data, _ADD, stored_if_new)


@command(
    "set <queue> <flags> <exptime> <bytes>",
    "Puts a message, even if it is queued already. Creates the queue if it does not exist. The message is "
    "not delivered after its exptime.",
    modes=(QUEUE,),
    needs="put",
    repeated=_set_repeated,
)
def set_(client: MemcachedSession, request: Request) -> None:
    """pressure 0.15, Put (Non-Blocking)."""
    _put(client, request, [request.data or b""], _SET, stored)


@command(
    "add <queue> <flags> <exptime> <bytes>",
    "Puts a message unless it is queued already; then the reply is NOT_STORED.",
    modes=(QUEUE,),
    needs="put",
    repeated=_add_repeated,
)
def add(client: MemcachedSession, request: Request) -> None:
    """pressure 0.15, Put (Non-Blocking), unless the message is queued already."""
    _put(client, request, [request.data or b""], _ADD, stored_if_new)
