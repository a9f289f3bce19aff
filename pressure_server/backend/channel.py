"""The hot path to the backend: one pipelined connection to a database, and calls of scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from pressure_server.backend.resp import BackendConnection, Received
from pressure_server.lua.script import Script

# How often a script is loaded for one call.
_MOST_LOADS = 100


class Channel(BackendConnection):
    """A connection whose loss is told to its link."""

    def __init__(
        self, script: bytes, patience: float, epoch: int, tell: Callable[[Channel, Exception | None], None]
    ) -> None:
        """`epoch` is larger than that of the channels to the same database before."""
        super().__init__(patience)
        self.epoch = epoch
        self.batch_script = Script(script)
        self._tell = tell
        # Whether the backend let us load a script when we tried last.
        self._may_load = True

    def lost(self, why: Exception | None) -> None:
        """See BackendConnection."""
        self._tell(self, why)

    def call(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received
    ) -> None:
        """Call any script. Raises BackendError when there is no connection."""
        words = (b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments)
        self.send(partial(self._answered, script, words, received, _MOST_LOADS), *words)

    def _answered(
        self, script: Script, words: tuple[bytes, ...], received: Received, loads: int, reply: Any
    ) -> None:
        """Hand on the reply, unless the backend does not know the script and it may be loaded once more."""
        is_unknown = isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
        if is_unknown and loads and self._may_load and self.is_open:
            # Nothing has run, so it can run now; unless the script is flushed in between once more.
            self.send(self._loaded, b"SCRIPT", b"LOAD", script.text)
            self.send(partial(self._answered, script, words, received, loads - 1), *words)
        else:
            received(reply)

    def _loaded(self, reply: Any) -> None:
        self._may_load = not isinstance(reply, Exception)
