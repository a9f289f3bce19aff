"""Requests: what is asked of the backend, kept until it is answered, so that it can be asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from pressure_server.backend.channel import Channel
from pressure_server.backend.resp import Received
from pressure_server.backend.script import Script
from pressure_server.layout import AGAIN, Header


class Request:
    """Something to be sent on one channel after the other, until it has an answer.

    `epoch` is that of the channel on which it was sent last, `burials` how often it was refused for that.
    `may_be_done` is whether it has been sent before, `deaths` at how many deaths of the backend it had been
    sent and had no answer. One that is to be done `once` is not sent again if it may have been done.
    """

    __slots__ = ("burials", "deaths", "epoch", "may_be_done", "once", "received")

    def __init__(self, received: Received, *, once: bool = False) -> None:
        self.received = received
        self.epoch = self.burials = 0
        self.may_be_done = False
        self.deaths = 0
        self.once = once

    def send(self, channel: Channel, answered: Received) -> None:
        """Send it. Raises BackendError if there is no connection."""
        raise NotImplementedError

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return what the backend refused."""
        return (reply,) if type(reply) is hiredis.ReplyError else ()


class ScriptCall(Request):
    """A call of the batch script. Its arguments begin with the header of layout.py."""

    __slots__ = ("_arguments", "_keys")

    def __init__(self, keys: Sequence[bytes], arguments: list[bytes], received: Received) -> None:
        super().__init__(received)
        self._keys = keys
        self._arguments = arguments

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        self.epoch = channel.epoch
        self._arguments[Header.EPOCH] = b"%d" % self.epoch
        if self.may_be_done:
            self._arguments[Header.AGAIN] = AGAIN
        channel.call(channel.batch_script, self._keys, self._arguments, answered)

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return what the backend refused, as a whole or of a block."""
        if type(reply) is list:
            if hiredis.ReplyError not in map(type, reply):
                return ()
            return [one for one in reply if type(one) is hiredis.ReplyError]
        return super().errors_in(reply)


class Reading(Request):
    """A plain command that only reads, or that does no harm when it is done twice."""

    __slots__ = ("_words",)

    def __init__(self, words: Sequence[bytes], received: Received) -> None:
        super().__init__(received)
        self._words = words

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(answered, *self._words)


class ReadingTogether(Request):
    """Plain commands that only read, with nobody else in between. The reply has that of each."""

    __slots__ = ("_commands",)

    def __init__(self, commands: Sequence[Sequence[bytes]], received: Received) -> None:
        super().__init__(received)
        self._commands = commands

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(None, b"MULTI")
        for words in self._commands:
            channel.send(None, *words)
        channel.send(answered, b"EXEC")


class HandlerCall(Request):
    """A call of a handler's own script on keys that are no queue's, which knows nothing of calls before."""

    __slots__ = ("_arguments", "_keys", "_script")

    def __init__(
        self,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        received: Received,
        *,
        once: bool,
    ) -> None:
        super().__init__(received, once=once)
        self._script = script
        self._keys = keys
        self._arguments = arguments

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.call(self._script, self._keys, self._arguments, answered)
