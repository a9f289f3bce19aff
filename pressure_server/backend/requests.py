"""Requests: what is asked of the backend, kept until it is answered, so that it can be asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pressure_server.backend.channel import Channel
from pressure_server.backend.resp import Received
from pressure_server.backend.script import Script

# Where a script call says that it may have been done before: ARGV[6] (calls.lua).
_AGAIN = 5


class Request(Protocol):
    """Something to be sent on one channel after the other, until it has an answer."""

    received: Received
    # Whether it has been sent before, so that it may have been done.
    may_be_done: bool
    # At how many deaths of the backend it had been sent, and had no answer.
    deaths: int
    # Whether it must not be done twice, so that it is not sent again when it may have been done.
    once: bool

    def send(self, channel: Channel, answered: Received) -> None:
        """Send it. Raises BackendError when there is no connection."""


class ScriptCall:
    """A call of the batch script on the queues of these base keys."""

    __slots__ = ("_arguments", "_keys", "deaths", "may_be_done", "once", "received")

    def __init__(self, keys: Sequence[bytes], arguments: list[bytes], received: Received) -> None:
        self._keys = keys
        self._arguments = arguments
        self.received = received
        self.may_be_done = False
        self.deaths = 0
        self.once = False  # the script sees to that

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        if self.may_be_done:
            self._arguments[_AGAIN] = b"again"
        channel.call_script(self._keys, self._arguments, answered)


class Reading:
    """A plain command that only reads, or that does no harm when it is done twice."""

    __slots__ = ("_words", "deaths", "may_be_done", "once", "received")

    def __init__(self, words: Sequence[bytes], received: Received) -> None:
        self._words = words
        self.received = received
        self.may_be_done = False
        self.deaths = 0
        self.once = False

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(answered, *self._words)


class ReadingTogether:
    """Plain commands that only read, with nobody else in between. The reply has that of each."""

    __slots__ = ("_commands", "deaths", "may_be_done", "once", "received")

    def __init__(self, commands: Sequence[Sequence[bytes]], received: Received) -> None:
        self._commands = commands
        self.received = received
        self.may_be_done = False
        self.deaths = 0
        self.once = False

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(None, b"MULTI")
        for words in self._commands:
            channel.send(None, *words)
        channel.send(answered, b"EXEC")


class HandlerCall:
    """A call of a handler's own script on keys that are no queue's, which knows nothing of calls before."""

    __slots__ = ("_arguments", "_keys", "_script", "deaths", "may_be_done", "once", "received")

    def __init__(
        self,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        received: Received,
        *,
        once: bool,
    ) -> None:
        self._script = script
        self._keys = keys
        self._arguments = arguments
        self.received = received
        self.may_be_done = False
        self.deaths = 0
        self.once = once

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.call(self._script, self._keys, self._arguments, answered)
