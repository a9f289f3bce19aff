"""Tags in braces: queues that one transaction or move uses have to be in one shard of a cluster."""

import re
from collections.abc import Iterable


def tag_of(queue: str) -> str:
    """Return the tag in the name of a queue, or the name of the log or queue itself."""
    found = re.search(r"\{([^}]+)\}", queue)
    return found[1] if found else queue.partition("+")[0]


def beside(queue: str, name: str) -> str:
    """Return the name of a queue in the same shard; `name` is the end of it."""
    return f"{{{tag_of(queue)}}}{name}"


def together(queues: Iterable[str]) -> list[list[str]]:
    """Return a list of queues for each tag."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        found.setdefault(tag_of(queue), []).append(queue)
    return list(found.values())
