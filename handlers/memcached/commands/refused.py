"""What memcached has, and what means nothing on a queue: refused with the reason."""

from __future__ import annotations

from handlers.memcached.client import QUEUE, MemcachedClient
from handlers.memcached.parser import Request
from handlers.memcached.replies import ClientError
from handlers.memcached.table import command

_WHY = {
    "replace": "its messages are put and taken, and not replaced",
    "append": "its messages do not change",
    "prepend": "its messages do not change",
    "cas": "its messages are put and taken, and not replaced",
    "incr": "its messages are not counted up",
    "decr": "its messages are not counted down",
    "touch": "a message expires when it was put to",
    "gat": "a message expires when it was put to",
    "gats": "a message expires when it was put to",
}


def _refuse(_client: MemcachedClient, request: Request) -> None:
    name = request.words[0].decode()
    raise ClientError(f"{name} means nothing on a queue: {_WHY[name]} (mode=kv has keys and values)")


for _name in _WHY:
    command(f"{_name} [<word>*]", "Refused.", modes=(QUEUE,), needs="nothing")(_refuse)
