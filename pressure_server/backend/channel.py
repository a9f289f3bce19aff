"""The hot path to the backend: one pipelined connection to a database, which calls functions and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from pressure_server.backend.resp import BackendConnection, Received
from pressure_server.lua.script import Library, Script

# A script is loaded at most this often for one call.
_MAX_LOADS = 100


class Channel(BackendConnection):
    """A link's connection to its database."""

    def __init__(
        self,
        library: Library,
        answer_timeout: float,
        epoch: int,
        tell: Callable[[Channel, Exception | None], None],
    ) -> None:
        """Prepare a channel; `answer_timeout` is as for BackendConnection.

        `epoch` must be greater than that of all earlier channels to the database. `tell` is called with the
        channel and the reason when the connection is lost.
        """
        super().__init__(answer_timeout)
        self.epoch = epoch
        self.library = library
        self._tell = tell
        # Why the backend did not load the library when it was last sent, if it did not.
        self.load_error: Exception | None = None
        # Whether the backend accepted the last script.
        self._may_load = True

    def lost(self, why: Exception | None) -> None:
        """Tell the link that the connection is lost."""
        self._tell(self, why)

    def load(self, loaded: Received | None) -> None:
        """Load the library, unless it is there; `loaded` gets None, or an error.

        Raises BackendError if there is no connection.
        """

        def answered(reply: Any) -> None:
            is_there = type(reply) is hiredis.ReplyError and str(reply).endswith("already exists")
            self.load_error = reply if isinstance(reply, Exception) and not is_there else None
            if loaded is not None:
                loaded(self.load_error)

        self.send(answered, b"FUNCTION", b"LOAD", self.library.text)

    def call(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received
    ) -> None:
        """Call a script, which is loaded if the backend does not know it.

        `received` gets the reply. Raises BackendError if there is no connection.
        """
        words = (b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments)
        self.send(partial(self._answered, script, words, received, _MAX_LOADS), *words)

    def _answered(
        self, script: Script, words: tuple[bytes, ...], received: Received, loads: int, reply: Any
    ) -> None:
        """Pass the reply on; but if the backend does not know the script, load it and call it again."""
        is_unknown = isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
        if is_unknown and loads and self._may_load and self.is_open:
            # Nothing has run, so the call can be repeated. It fails again if scripts are flushed in between.
            self.send(self._loaded, b"SCRIPT", b"LOAD", script.text)
            self.send(partial(self._answered, script, words, received, loads - 1), *words)
        else:
            received(reply)

    def _loaded(self, reply: Any) -> None:
        self._may_load = not isinstance(reply, Exception)
