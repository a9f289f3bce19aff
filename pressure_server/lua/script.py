"""A script for the backend: its text, and the digest by which EVALSHA calls it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Script:
    """A script of the core or of a handler."""

    text: bytes

    @cached_property
    def digest(self) -> bytes:
        """The SHA-1 digest of the text, for EVALSHA."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
