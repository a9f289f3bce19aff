"""The library and the scripts. Some are joined from modules, each after those that it requires."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from pressure_server.lua.layout import constants
from pressure_server.lua.script import Library, Script

_REQUIRE = re.compile(rb"^(?:local \w+ = )?require '([\w/]+)'$", re.MULTILINE)


@cache
def library() -> Library:
    """Return the library for operations on queues."""
    return Library(_joined("core/library"))


@cache
def housekeeping_script() -> Script:
    """Return the script for tasks on many queues at once, used or not."""
    return Script(_joined("upkeep/housekeeping"))


@cache
def best_script() -> Script:
    """Return the script that finds the best job of many queues."""
    return Script(_text("kinds/best"))


@cache
def sweep_script() -> Script:
    """Return the script that frees what deleted queues have left."""
    return Script(_text("upkeep/sweep"))


@cache
def survey_script() -> Script:
    """Return the script that reads the figures of many queues."""
    return Script(_text("upkeep/survey"))


@cache
def look_script() -> Script:
    """Return the script that shows the beginning of one queue's messages."""
    return Script(_text("upkeep/look"))


@cache
def servers_script() -> bytes:
    """Return the text of the script for the registry of live servers."""
    return _text("upkeep/servers")


def _joined(name: str) -> bytes:
    """Return a module's text after those of all that it requires, directly or not."""
    parts = [_text("preamble")]
    begun: list[str] = []

    def add(module: str) -> bytes:
        text = _text(module)
        begun.append(module)
        for required in _REQUIRE.findall(text):
            if required.decode() not in begun:
                body = add(required.decode())
                parts.append(b"modules['%b'] = (function()\n%b\nend)()" % (required, body))
        return text

    parts.append(add(name))
    return b"\n".join(parts)


def _text(name: str) -> bytes:
    """Return the text of a file, with numbers in place of the names of positions."""
    numbers = constants()
    text = (files(__package__) / f"{name}.lua").read_bytes()
    return re.sub(rb"\b(HEADER|BLOCK|JOB)_[A-Z_]+\b", lambda found: numbers[found[0]], text)
