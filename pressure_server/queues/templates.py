"""Templates: the settings of queues by name, for queues that puts create (lua/core/life.lua). Pure.

A template is a section `[queues."PATTERN"]` of the configuration file (app/queue_sections.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pressure_server.queues.operations.queue_options import Creation
from pressure_server.queues.policy import Policy
from pressure_server.text import Glob

_BYTES = 256


@dataclass(frozen=True)
class QueueTemplate:
    """The settings of queues that match a pattern: the section's options, and all, with defaults."""

    pattern: str
    glob: Glob
    options: Mapping[bytes, Any]
    creation: Creation


def packed_templates(policy: Policy, prefix: bytes) -> bytes:
    """Return the templates as the library takes them. The last one matches all names, with the defaults."""
    packed = []
    default = QueueTemplate("*", Glob(b"*"), {}, Creation(policy.create_bound or 0))
    for template in (*policy.templates, default):
        parts = [b"".join(map(_lua_class, part)) for part in template.glob.parts]
        parts[0] = b"^" + b"".join(_lua_class(b"%c" % byte) for byte in prefix + b":") + parts[0]
        parts[-1] += b"$"
        bound, overflow, _, *settings = template.creation.arguments(prefix)
        # Queues with a time to live of their own do not have the server's --implicit-queue-ttl.
        implicit = b"implicit" if template.creation.ttl is None else b""
        packed.append(_list([_list(map(_text, parts)), *map(_text, (bound, overflow, implicit, *settings))]))
    return _list(packed)


def _lua_class(element: bytes) -> bytes:
    """Return the pattern of Lua for one of these bytes."""
    if len(element) == _BYTES:
        return b"."
    escaped = [
        b"%z" if byte == 0 else (b"%c" if chr(byte).isascii() and chr(byte).isalnum() else b"%%%c") % byte
        for byte in element
    ]
    if len(escaped) == 1:
        return escaped[0]
    return b"[%b]" % b"".join(escaped) if escaped else b"[^%s%S]"


def _text(word: bytes) -> bytes:
    """Return a string of MessagePack."""
    return b"\xdb" + len(word).to_bytes(4, "big") + word


def _list(items: Iterable[bytes]) -> bytes:
    """Return an array of MessagePack of these packed items."""
    found: Sequence[bytes] = list(items)
    return b"\xdd" + len(found).to_bytes(4, "big") + b"".join(found)
