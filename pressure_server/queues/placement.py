"""Placement: which shard has a queue, and how the keys of a shard begin. Pure.

On a cluster, the keys of a shard have a tag in braces, so they are in one slot. The tags are chosen so that
the slots of the shards are spread evenly; the tag of the first shard does not depend on their number.
"""

import re
from binascii import crc_hqx
from itertools import count

_SLOTS = 1 << 14
# How many slots a tag may be from the beginning of its shard's part: the fewer, the harder to find.
_NEAR = 16
MOST_SHARDS = _SLOTS // _NEAR
# A user's own tag, before the first `+`: queues with the same one are in the same shard.
_TAG = re.compile(rb"\{([^}]+)\}")
# What a pattern has where a name may have different bytes.
_GLOB = re.compile(rb"[*?\[\\]")


class Placement:
    """Where the queues of a server are. `prefixes` has the beginning of the keys for each shard."""

    def __init__(self, prefix: bytes, shards: int | None = None) -> None:
        """`shards` of None is a backend that is no cluster: one shard, whose keys begin with the prefix."""
        self.prefixes = [prefix] if shards is None else [b"%b:{%d}" % (prefix, tag) for tag in _tags(shards)]

    def shard_of(self, name: bytes) -> int:
        """Return the number of the shard that has a queue."""
        # A group, log+group, is with its log, also if its own name has a tag.
        log = name.partition(b"+")[0]
        tag = _TAG.search(log)
        return crc_hqx(tag[1] if tag else log, 0) % len(self.prefixes)

    def are_together(self, pattern: bytes, name: bytes) -> bool:
        """Return whether every queue whose name matches the pattern is in the shard of the queue `name`."""
        if len(self.prefixes) == 1:
            return True
        begin = _GLOB.split(pattern, maxsplit=1)[0]
        decides = begin == pattern or _TAG.search(begin.partition(b"+")[0]) is not None
        return decides and self.shard_of(begin) == self.shard_of(name)


def _tags(shards: int) -> list[int]:
    """Return a number for each shard, whose slot is near the beginning of the shard's part of all slots."""
    tags: dict[int, int] = {}
    for number in count():
        slot = crc_hqx(b"%d" % number, 0) % _SLOTS
        shard, distance = divmod(slot * shards, _SLOTS)
        if distance < _NEAR * shards and tags.setdefault(shard, number) == number and len(tags) == shards:
            return [tags[one] for one in range(shards)]
    raise AssertionError
