"""A script for the backend: its text, and the digest by which the backend knows it once it has it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Script:
    """One, of the core or of a handler."""

    text: bytes

    @cached_property
    def digest(self) -> bytes:
        """What EVALSHA wants."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
