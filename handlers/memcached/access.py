"""Permissions: check that the client's user may run a command."""

from __future__ import annotations

from handlers.memcached.client import QUEUE, MemcachedClient, Spec
from handlers.memcached.queue_options import queue_of
from handlers.memcached.replies import ClientError


def check(client: MemcachedClient, spec: Spec, words: list[bytes]) -> None:
    """Raise ClientError if the user may not run the command or use one of its keys.

    A command that needs `administer` and names no key requires access to all keys.
    """
    user = client.user
    if user.is_unrestricted or not spec.needs:
        return
    if not user.rights.issuperset(spec.needs):
        client.clients.access.refused["cmd"] += 1
        raise ClientError(f"this user has no permission to {spec.name}")
    keys = spec.keys_of(words)
    if not keys and "administer" in spec.needs and not user.has_all_queues:
        client.clients.access.refused["cmd"] += 1
        raise ClientError(f"this user has no permission to {spec.name}: it requires access to all keys")
    # Only `get` and `gets` have options; in other commands `/open` is part of the name.
    if client.options.mode == QUEUE and spec.takes_many:
        keys = [queue_of(key) for key in keys]
    if not all(map(user.may_access, keys)):
        client.clients.access.refused["key"] += 1
        raise ClientError("this user has no permission for one of these keys")
