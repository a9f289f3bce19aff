"""The scripts. Some are joined from several files, in the order in which these use each other."""

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
    "outcomes",
    "read",
    "life",
    "waiting",
    "get",
    "put",
    "job_ids",
    "job_index",
    "groups",
    "jobs",
    "job_puts",
    "job_gets",
    "job_lists",
    "log",
    "move",
    "job_verbs",
    "recovery",
    "purge",
    "trim",
    "upgrade",
    "doctor",
    "batch",
)


@cache
def batch_script() -> bytes:
    """Return the text of the script for operations on queues."""
    return b"\n".join((constants(), *map(_text, _PARTS)))


@cache
def housekeeping_script() -> Script:
    """Return the script for tasks on many queues at once, used or not."""
    return Script(
        b"\n".join((constants(), _text("queue"), b"local mirror", _text("life"), _text("housekeeping")))
    )


@cache
def best_script() -> Script:
    """Return the script that finds the best job of many queues."""
    return Script(_text("best"))


@cache
def servers_script() -> bytes:
    """Return the text of the script for the registry of live servers."""
    return _text("servers")


def _text(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()
