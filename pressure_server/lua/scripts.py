"""The scripts. Some are joined from several files, in the order in which these use each other."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from pressure_server.lua.layout import constants
from pressure_server.lua.script import Script

_PARTS = (
    "queue",
    "blocks",
    "limits",
    "garbage",
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
    return _joined(*map(_text, _PARTS))


@cache
def housekeeping_script() -> Script:
    """Return the script for tasks on many queues at once, used or not."""
    parts = (
        _text("queue"),
        _text("limits"),
        _text("garbage"),
        b"local mirror",
        _text("life"),
        _text("housekeeping"),
    )
    return Script(_joined(*parts))


@cache
def best_script() -> Script:
    """Return the script that finds the best job of many queues."""
    return Script(_text("best"))


@cache
def sweep_script() -> Script:
    """Return the script that frees what deleted queues have left."""
    return Script(_text("sweep"))


@cache
def survey_script() -> Script:
    """Return the script that reads the figures of many queues."""
    return Script(_text("survey"))


@cache
def look_script() -> Script:
    """Return the script that shows the beginning of one queue's messages."""
    return Script(_joined(_text("look")))


@cache
def servers_script() -> bytes:
    """Return the text of the script for the registry of live servers."""
    return _text("servers")


def _joined(*parts: bytes) -> bytes:
    """Join parts, with numbers in place of constants: a script may have 200 local variables."""
    numbers = constants()
    return re.sub(rb"\b(HEADER|BLOCK|JOB)_[A-Z_]+\b", lambda found: numbers[found[0]], b"\n".join(parts))


def _text(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()
