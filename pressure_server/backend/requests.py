"""Requests: what is asked of the backend, kept until it is answered, so that it can be asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pressure_server.backend.channel import Channel
from pressure_server.backend.resp import Received

# Where a script call says that it may have been done before: ARGV[6] (calls.lua).
_AGAIN = 5


class Request(Protocol):
    """Something to be sent on one channel after the other, until it has an answer."""

    received: Received
    # Whether it has been sent before, so that it may have been done.
    may_be_done: bool

    def send(self, channel: Channel, answered: Received) -> None:
        """Send it. Raises BackendError when there is no connection."""


class ScriptCall:
    """A call of the batch script on the queues of these base keys."""

    __slots__ = ("_arguments", "_keys", "may_be_done", "received")

    def __init__(self, keys: Sequence[bytes], arguments: list[bytes], received: Received) -> None:
        self._keys = keys
        self._arguments = arguments
        self.received = received
        self.may_be_done = False

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        if self.may_be_done:
            self._arguments[_AGAIN] = b"again"
        channel.call_script(self._keys, self._arguments, answered)


class Reading:
    """A plain command that only reads, or that does no harm when it is done twice."""

    __slots__ = ("_words", "may_be_done", "received")

    def __init__(self, words: Sequence[bytes], received: Received) -> None:
        self._words = words
        self.received = received
        self.may_be_done = False

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(answered, *self._words)
