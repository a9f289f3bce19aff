"""The library and the scripts. Some are joined from several files, each after those that it uses."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from pressure_server.lua.layout import constants
from pressure_server.lua.script import Library, Script

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
    "call",
)
# What call.lua does for the functions of the library.
_HOUSEKEEPING = b"""
KEYS, ARGV, call, try = keys_of_script, arguments_of_script, redis.call, redis.pcall
identity, default_overflow, block, changed, patient = ARGV[1], ARGV[3], { how = '' }, false, true
"""


@cache
def library() -> Library:
    """Return the library for operations on queues."""
    return Library(_joined(*map(_text, _PARTS)))


@cache
def housekeeping_script() -> Script:
    """Return the script for tasks on many queues at once, used or not."""
    parts = (
        b"local keys_of_script, arguments_of_script = KEYS, ARGV",
        _text("queue"),
        _HOUSEKEEPING,
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
