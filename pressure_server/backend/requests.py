"""Requests to the backend, and the channel on which they are sent: a pipelined connection to one database.

Each request is kept until it is answered, so that it can be sent again on another channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import hiredis

from pressure_server.backend.resp import (
    CRLF,
    LENGTHS,
    BackendConnection,
    Received,
    add_packed,
    joined,
    packed,
)
from pressure_server.compiled import mypyc_attr
from pressure_server.lua.layout import AGAIN, HEADER_SIZE, NUMBERS
from pressure_server.lua.scripts import Library, Script

# A script, or the library, is loaded at most this often for one call.
_MAX_LOADS: Final = 100
# Large words of a call of more bytes are written one by one: one more large buffer for each, made and freed,
# would leave the memory of the process in pieces that cannot be given back.
_LARGE: Final = 256 << 10
# The beginning of a call: the number of its words, the function, and the number of its keys.
_FCALL: Final = b"*%d\r\n$5\r\nFCALL\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
# The header's fields between NUMBER and DONE, as they are sent.
_IS_NEW: Final = CRLF + packed((b"",))
_MAY_BE_DONE: Final = CRLF + packed((AGAIN,))
_UNKNOWN_FUNCTION: Final = "ERR Function not found"


@mypyc_attr(allow_interpreted_subclasses=True)
class Channel(BackendConnection):
    """A link's connection to its database. Methods raise BackendError if there is no connection."""

    def __init__(
        self,
        library: Library,
        answer_timeout: float,
        epoch: int,
        tell: Callable[[Channel, Exception | None], None],
    ) -> None:
        """Prepare. `epoch` must be greater than those of all earlier channels to the database.

        `tell` is called with the channel and the reason when the connection is lost.
        """
        super().__init__(answer_timeout)
        self.epoch = epoch
        self.library = library
        # The key that goes with every call and script in a cluster: see LibraryCall.
        self.guard = b""
        self._tell = tell
        # Why the backend did not load the library when it was last sent, if it did not.
        self.load_error: Exception | None = None
        # Whether the backend accepted the last script.
        self._may_load = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the link, after all commands without a reply have failed (called by asyncio)."""
        super().connection_lost(exc)
        self._tell(self, self._refusal or exc)

    def load(self, loaded: Received | None) -> None:
        """Load the library, unless it is there; `loaded` gets None, or an error."""

        def answered(reply: Any) -> None:
            is_there = type(reply) is hiredis.ReplyError and str(reply).endswith("already exists")
            self.load_error = reply if isinstance(reply, Exception) and not is_there else None
            if loaded is not None:
                loaded(self.load_error)

        self.send(answered, b"FUNCTION", b"LOAD", self.library.text)

    def call(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received
    ) -> None:
        """Call a script, which is loaded if the backend does not know it; `received` gets the reply."""
        if self.guard:
            script, keys = script.guarded, (*keys, self.guard)
        words = (b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments)
        self.send(partial(self._answered, script, words, received, _MAX_LOADS), *words)

    def read_together(self, commands: Sequence[Sequence[bytes]], received: Received) -> None:
        """Send commands that only read, as one transaction. `received` gets the list of their replies."""
        refusals: list[hiredis.ReplyError] = []

        def queued(reply: Any) -> None:
            if type(reply) is hiredis.ReplyError:
                refusals.append(reply)

        def ended(reply: Any) -> None:
            # EXEC tells only that a command was refused, not why.
            received(refusals[0] if refusals and type(reply) is hiredis.ReplyError else reply)

        self.send(None, b"MULTI")
        for words in commands:
            self.send(queued, *words)
        self.send(ended, b"EXEC")

    def load_script(self, script: Script) -> None:
        """Load a script, so that its next call need not."""
        self.send(None, b"SCRIPT", b"LOAD", (script.guarded if self.guard else script).text)

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


class BackendRequest(ABC):
    """A request, which is sent on one channel after another until it is answered.

    With `once`, it is not sent again if it may have been done. `changes` is false if it does not matter
    whether it has been done.
    """

    changes: bool = True
    once: bool = False
    epoch: int = 0  # of the channel on which it was last sent
    epoch_retries: int = 0  # how often it was refused because its epoch had ended
    may_be_done: bool = False  # whether it was sent, and its reply was lost
    deaths: int = 0  # how often the backend died then

    @abstractmethod
    def send(self, channel: Channel, answered: Received) -> None:
        """Send the request; `answered` gets the reply."""

    @abstractmethod
    def received(self, reply: Any) -> None:
        """Take the reply; if there is none, OutcomeUnknownError if it may have been done, or BackendError."""

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return the errors in a reply."""
        return (reply,) if type(reply) is hiredis.ReplyError else ()

    def repeats(self, _error: hiredis.ReplyError, _channel: Channel, _answered: Received) -> bool:
        """Send another request if that does what was refused as a whole. Return whether it has been sent."""
        return False


class Caller:
    """What all calls of one shard begin with: the fields of the header before EPOCH, and the key of records.

    `records` is empty if there are none. In a cluster, a key that never exists goes with every call, the
    channel's guard: then a node that is giving the slot to another one refuses the call as a whole. A script
    that met a key that has left would end half-way.
    """

    def __init__(self, words: Sequence[bytes], records: bytes) -> None:
        self.words = words
        self.records = records
        # Packed once an epoch (of the 10 microseconds that a lone request takes, that saves one): how many
        # keys there are, and these with the header up to EPOCH, as they are sent.
        self.epoch = -1
        self.key_count = 0
        self.packed = b""

    def pack_for(self, channel: Channel) -> None:
        """Pack for the epoch of the channel."""
        keys = [key for key in (channel.guard, self.records) if key]
        self.key_count = len(keys)
        self.packed = packed((*keys, *self.words, b"%d" % channel.epoch))
        self.epoch = channel.epoch


class LibraryCall(BackendRequest):
    """A call of the library: its header (layout.py), and the keys and packed arguments of its blocks."""

    # Set by the subclass: an `__init__` here would be one more function for each request.
    caller: Caller
    keys: list[bytes]
    pieces: list[bytes]
    word_count: int  # of the pieces
    record: bytes = b""  # the number of the call and of its record; empty for none
    dropped: bytes = b""  # the records that are not needed any longer, as one word
    size: int = 0  # bytes in the arguments of its blocks
    function: bytes = b""  # was called last
    loads: int = 0  # how often the library was loaded as the backend did not know it

    def arguments(self) -> list[bytes]:
        """Return the arguments of its blocks."""
        reader = hiredis.Reader()
        reader.feed(b"*%d\r\n" % self.word_count + b"".join(self.pieces))
        words: list[bytes] = reader.gets()
        return words

    def send(
        self, channel: Channel, answered: Received, function: bytes = b"", refusal: tuple[bytes, ...] = ()
    ) -> None:
        """See BackendRequest. Call `function` instead of the usual one, which has given the `refusal`."""
        self.function = function = function or channel.library.name
        self.epoch = channel.epoch
        caller, record, dropped = self.caller, self.record, self.dropped
        if caller.epoch != channel.epoch:
            caller.pack_for(channel)
        number = NUMBERS[len(self.keys) + caller.key_count]
        count = 3 + len(self.keys) + caller.key_count + HEADER_SIZE + self.word_count + len(refusal)
        pieces = [_FCALL % (count, len(function), function, len(number), number)]
        for key in self.keys:
            pieces += (LENGTHS[len(key)], key, CRLF)
        pieces += (
            caller.packed, LENGTHS[len(record)], record, _MAY_BE_DONE if self.may_be_done else _IS_NEW,
            LENGTHS[len(dropped)], dropped, CRLF,
        )  # fmt: skip
        pieces += self.pieces
        if refusal:
            add_packed(pieces, refusal)
        channel.send_packed(answered, list(joined(pieces)) if self.size > _LARGE else (b"".join(pieces),))

    def errors_in(self, reply: Any) -> Sequence[hiredis.ReplyError]:
        """Return the error of the whole call, or the errors of its blocks."""
        if type(reply) is list:
            return [one for one in reply if type(one) is hiredis.ReplyError]
        return super().errors_in(reply)

    def repeats(self, error: hiredis.ReplyError, channel: Channel, answered: Received) -> bool:
        """See BackendRequest. Load the library if it is missing, or call a function that is not refused."""
        text = str(error)
        library = channel.library
        if not text.startswith(_UNKNOWN_FUNCTION):
            instead = library.instead(self.function, text.partition(" ")[0], is_recorded=bool(self.record))
            if instead is not None:
                self.send(channel, answered, instead, (text.encode(),))
            return instead is not None
        if self.loads and channel.load_error is not None:
            self.function = b""
            answered(channel.load_error)
        elif self.loads < _MAX_LOADS:
            # It fails again if the functions are flushed in between.
            self.loads += 1
            channel.load(None)
            self.send(channel, answered)
        else:
            return False
        return True


class AwaitedRequest(BackendRequest):
    """A request without a record: `write` sends it, again if not `once`, and `tell` gets the reply."""

    def __init__(
        self, write: Callable[[Channel, Received], None], tell: Received, *, changes: bool, once: bool = False
    ) -> None:
        self.changes = changes
        self.once = once
        self.write = write
        self.tell = tell

    def send(self, channel: Channel, answered: Received) -> None:
        """See BackendRequest."""
        self.write(channel, answered)

    def received(self, reply: Any) -> None:
        """See BackendRequest."""
        self.tell(reply)
