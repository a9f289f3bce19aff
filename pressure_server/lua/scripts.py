"""Texts for the backend: the library of functions, which FCALL calls, and scripts, which EVALSHA calls.

Both are joined from modules, each after those that it requires.
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
def script_named(name: str) -> Script:
    """Return the script of this name, such as `upkeep/scan`: a module, with those that it requires."""
    return Script(_joined(name))


def _joined(name: str) -> bytes:
    """Return the texts of all that a module requires, directly or not, and then its own."""
    parts: list[bytes] = []
    begun: list[str] = []

    def add(module: str) -> bytes:
        text = _text(module)
        begun.append(module)
        for required in _REQUIRE.findall(text):
            if required.decode() not in begun:
                body = add(required.decode())
                parts.append(b"modules['%b'] = (function()\n%b\nend)()" % (required, body))
        return text

    text = add(name)
    return b"\n".join([_text("preamble"), *parts, text]) if parts else text


def _text(name: str) -> bytes:
    """Return the text of a file, with numbers in place of the names of positions."""
    numbers = constants()
    text = (files(__package__) / f"{name}.lua").read_bytes()
    return re.sub(rb"\b(HEADER|BLOCK|JOB)_[A-Z_]+\b", lambda found: numbers[found[0]], text)
