"""Texts for the backend: scripts, which EVALSHA calls, and the library of functions, which FCALL calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

# What stands for the library's name in its text.
_NAME = b"LIBRARY"
# The backend refuses a function as a whole. By its error: the end of the name of a function that does what it
# does not refuse (call.lua).
_INSTEAD = {"OOM": b"_full", "MISCONF": b"_read", "NOREPLICAS": b"_read"}


@dataclass(frozen=True)
class Script:
    """A script of the core or of a handler."""

    text: bytes

    @cached_property
    def digest(self) -> bytes:
        """The SHA-1 digest of the text, for EVALSHA."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


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
