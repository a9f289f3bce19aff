"""Requests: what is asked of the backend, kept until it is answered, so that it can be asked again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hiredis

from pressure_server.backend.channel import Channel
from pressure_server.backend.resp import Received
from pressure_server.lua.layout import AGAIN, Header
from pressure_server.lua.script import Script


@dataclass(eq=False)
class Request(ABC):
    """Something to be sent on one channel after the other, until it has an answer.

    `epoch` is that of the channel on which it was sent last, `burials` how often it was refused for that.
    `may_be_done` is whether it has been sent before, `deaths` at how many deaths of the backend it had been
    sent and had no answer. One that is to be done `once` is not sent again if it may have been done.
    `changes` is whether it matters that it may have been done.
    """

    changes: ClassVar[bool] = True

    received: Received
    once: bool = field(default=False, kw_only=True)
    epoch: int = field(default=0, init=False)
    burials: int = field(default=0, init=False)
    may_be_done: bool = field(default=False, init=False)
    deaths: int = field(default=0, init=False)

    @abstractmethod
    def send(self, channel: Channel, answered: Received) -> None:
        """Send it. Raises BackendError if there is no connection."""

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return what the backend refused."""
        return (reply,) if type(reply) is hiredis.ReplyError else ()


@dataclass(eq=False)
class ScriptCall(Request):
    """A call of the batch script. Its arguments begin with the header of layout.py."""

    keys: Sequence[bytes]
    arguments: list[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        self.epoch = channel.epoch
        self.arguments[Header.EPOCH] = b"%d" % self.epoch
        if self.may_be_done:
            self.arguments[Header.AGAIN] = AGAIN
        channel.call(channel.batch_script, self.keys, self.arguments, answered)

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return what the backend refused, as a whole or of a block."""
        if type(reply) is list:
            if hiredis.ReplyError not in map(type, reply):
                return ()
            return [one for one in reply if type(one) is hiredis.ReplyError]
        return super().errors_in(reply)


@dataclass(eq=False)
class Reading(Request):
    """A plain command that only reads, or that does no harm when it is done twice."""

    changes = False

    words: Sequence[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(answered, *self.words)


@dataclass(eq=False)
class ReadingTogether(Request):
    """Plain commands that only read, with nobody else in between. The reply has that of each."""

    changes = False

    commands: Sequence[Sequence[bytes]]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(None, b"MULTI")
        for words in self.commands:
            channel.send(None, *words)
        channel.send(answered, b"EXEC")


@dataclass(eq=False)
class HandlerCall(Request):
    """A call of a handler's own script on keys that are no queue's, which knows nothing of calls before."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.call(self.script, self.keys, self.arguments, answered)
