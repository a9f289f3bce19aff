"""The hot path to the backend: one pipelined connection to a database, and calls of the batch script."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from pressure_server.backend.resp import Received, RespConnection


class Channel(RespConnection):
    """A connection whose loss is told to its link."""

    def __init__(
        self, script: bytes, patience: float, tell: Callable[[Channel, Exception | None], None]
    ) -> None:
        super().__init__(patience)
        self._script = script
        self._sha = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        self._tell = tell

    def lost(self, why: Exception | None) -> None:
        """See RespConnection."""
        self._tell(self, why)

    def load_script(self) -> None:
        """Put the batch script into the backend's cache. Raises BackendError when there is no connection."""
        self.send(None, b"SCRIPT", b"LOAD", self._script)

    def call_script(self, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received) -> None:
        """Call the batch script on queues. Raises BackendError when there is no connection."""
        words = (b"EVALSHA", self._sha, b"%d" % len(keys), *keys, *arguments)

        def answered(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                # Nothing has run, so it can run now.
                self.load_script()
                self.send(received, *words)
            else:
                received(reply)

        self.send(answered, *words)
