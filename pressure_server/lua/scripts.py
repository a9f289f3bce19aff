"""The scripts: that for queues is put together of files, in the order in which they build on each other."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pressure_server.lua.layout import constants
from pressure_server.lua.script import Script

_PARTS = (
    "queue",
    "blocks",
    "records",
    "fast",
    "mirror",
    "marks",
    "read",
    "life",
    "waiting",
    "get",
    "put",
    "move",
    "recovery",
    "upgrade",
    "doctor",
    "batch",
)


@cache
def batch_script() -> bytes:
    """The text of the one script that works on queues, as the backend gets it."""
    return b"\n".join((constants(), *map(_text, _PARTS)))


@cache
def housekeeping_script() -> Script:
    """The script that is called for many queues at once, used or not."""
    return Script(
        b"\n".join((constants(), _text("queue"), b"local mirror", _text("life"), _text("housekeeping")))
    )


@cache
def servers_script() -> bytes:
    """The text of the script that signs for servers, and forgets them."""
    return _text("servers")


def _text(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()
