"""Commands of memcached that queues do not support: refused with the reason."""

from __future__ import annotations

from handlers.memcached.parser import Request
from handlers.memcached.replies import ClientError
from handlers.memcached.session import MemcachedSession
from handlers.memcached.table import QUEUE, command

_WHY = {
    "replace": "messages are put and taken, not replaced",
    "append": "messages cannot be changed",
    "prepend": "messages cannot be changed",
    "cas": "messages are put and taken, not replaced",
    "incr": "messages are not counters",
    "decr": "messages are not counters",
    "touch": "the expiry of a message is set when it is put",
    "gat": "the expiry of a message is set when it is put",
    "gats": "the expiry of a message is set when it is put",
}


def _refuse(_client: MemcachedSession, request: Request) -> None:
    name = request.words[0].decode()
    raise ClientError(f"{name} is not supported on queues: {_WHY[name]} (use mode=kv for keys and values)")


for _name in _WHY:
    command(f"{_name} [<word>*]", "Not supported on queues.", modes=(QUEUE,), needs="nothing")(_refuse)
