"""The batch script: its Lua files put together in the order in which they build on each other."""

from __future__ import annotations

from importlib.resources import files

_PARTS = (
    "queue",
    "calls",
    "fast",
    "mirror",
    "read",
    "life",
    "put",
    "get",
    "move",
    "recovery",
    "doctor",
    "batch",
)


def batch_script() -> bytes:
    """The text of the one script that works on queues, as the backend gets it."""
    folder = files(__package__) / "scripts"
    return b"\n".join((folder / f"{part}.lua").read_bytes() for part in _PARTS)
