"""Requests to the backend: each is kept until it is answered, so that it can be sent again."""

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
    """A request, which is sent on one channel after another until it is answered.

    `received` gets the reply. With `once`, the request is not sent again if it may have been done.
    `epoch` is that of the channel on which it was last sent, `burials` how often it was refused because its
    epoch had ended. `may_be_done` is set if it was sent and its reply was lost; `deaths` counts how often the
    backend died then. `changes` is false if it does not matter whether the request has been done.
    """

    changes: ClassVar[bool] = True

    received: Received
    once: bool = field(default=False, kw_only=True)
    epoch: int = field(default=0, init=False)
    epoch_retries: int = field(default=0, init=False)
    may_be_done: bool = field(default=False, init=False)
    deaths: int = field(default=0, init=False)

    @abstractmethod
    def send(self, channel: Channel, answered: Received) -> None:
        """Send the request; `answered` gets the reply. Raises BackendError if there is no connection."""

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return the errors in a reply."""
        return (reply,) if type(reply) is hiredis.ReplyError else ()


@dataclass(eq=False)
class LibraryCall(Request):
    """A call of the library. Its arguments begin with the fields of `Header` (layout.py)."""

    keys: Sequence[bytes]
    arguments: list[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        self.epoch = channel.epoch
        self.arguments[Header.EPOCH] = b"%d" % self.epoch
        if self.may_be_done:
            self.arguments[Header.AGAIN] = AGAIN
        channel.call_library(self.keys, self.arguments, answered)

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return the error of the whole call, or the errors of its blocks."""
        if type(reply) is list:
            if hiredis.ReplyError not in map(type, reply):
                return ()
            return [one for one in reply if type(one) is hiredis.ReplyError]
        return super().errors_in(reply)


@dataclass(eq=False)
class ReadCommand(Request):
    """A plain command that only reads, or that may safely be done twice."""

    changes = False

    words: Sequence[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.send(answered, *self.words)


@dataclass(eq=False)
class ReadTransaction(Request):
    """Plain commands that only read, as one transaction. Its reply is a list of their replies."""

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
    """A call of another script, on keys that belong to no queue.

    It leaves no record: without `once`, it may be done twice.
    """

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[bytes]

    def send(self, channel: Channel, answered: Received) -> None:
        """See Request."""
        channel.call(self.script, self.keys, self.arguments, answered)
