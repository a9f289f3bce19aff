"""Texts for the backend: the library of functions, which FCALL calls, and scripts, which EVALSHA calls.

Some are joined from modules, each after those that it requires.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from pressure_server.lua.layout import constants

# What stands for the library's name in its text.
_NAME = b"LIBRARY"
# The backend refuses a function as a whole. By its error: the end of the name of a function that does what it
# does not refuse (core/library.lua).
_INSTEAD = {"OOM": b"_full", "MISCONF": b"_read", "NOREPLICAS": b"_read"}

_REQUIRE = re.compile(rb"^(?:local \w+ = )?require '([\w/]+)'$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script of the server or of a handler."""

    text: bytes

    @cached_property
    def digest(self) -> bytes:
        """The SHA-1 digest of the text, for EVALSHA."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    @cached_property
    def guarded(self) -> Script:
        """The script that is called with one more key, the guard (LibraryCall), which it does not see."""
        return Script(b"KEYS[#KEYS] = nil\n" + self.text)


@dataclass(frozen=True)
class Library:
    """A library of functions.

    Its name has the digest of its text, so servers of two versions have two libraries.
    """

    body: bytes

    @cached_property
    def name(self) -> bytes:
        """The name of the library, and of its function for most calls."""
        return b"pressure_" + hashlib.sha1(self.body, usedforsecurity=False).hexdigest()[:16].encode()

    @cached_property
    def text(self) -> bytes:
        """The text for FUNCTION LOAD."""
        return b"#!lua name=" + self.name + b"\n" + self.body.replace(_NAME, self.name)

    def instead(self, function: bytes, code: str, *, is_recorded: bool) -> bytes | None:
        """Return the function to call instead of one that the backend has refused as a whole, or None.

        `code` is the first word of the error. A call that `is_recorded` (records.lua) cannot only read.
        """
        end = _INSTEAD.get(code)
        if end is None or function != self.name or (is_recorded and end == b"_read"):
            return None
        return self.name + end


@cache
def library() -> Library:
    """Return the library for operations on queues."""
    return Library(_joined("core/library"))


@cache
def housekeeping_script() -> Script:
    """Return the script for tasks on many queues at once, used or not."""
    return Script(_joined("upkeep/housekeeping"))


@cache
def first_jobs_script() -> Script:
    """Return the script that reads the first job of each of many queues."""
    return Script(_text("kinds/first_jobs"))


@cache
def sweep_script() -> Script:
    """Return the script that frees what deleted queues have left."""
    return Script(_text("upkeep/sweep"))


@cache
def survey_script() -> Script:
    """Return the script that reads the figures of many queues."""
    return Script(_text("upkeep/survey"))


@cache
def scan_script() -> Script:
    """Return the script that does one step of a SCAN."""
    return Script(_text("upkeep/scan"))


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
