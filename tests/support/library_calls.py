"""The header of a call of the library, which the server only makes as it is sent."""

from __future__ import annotations

from pressure_server.backend.requests import LibraryCall
from pressure_server.lua.layout import AGAIN


def header_of(call: LibraryCall) -> list[bytes]:
    """Return the header of a call, for the epoch 0 if it has not been sent."""
    may_be_done = AGAIN if call.may_be_done else b""
    return [*call.caller.words, b"%d" % call.epoch, call.record, may_be_done, call.dropped]
