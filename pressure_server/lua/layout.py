"""The layout of a call of the batch script, and of its reply: each position has one name, here and in Lua.

A call has the keys of its blocks, one block after the other, then the key of the caller's records, if the
caller has any. Its arguments are the header and the blocks. A block has the fields of
`Block`, and as many more arguments as it says.

A reply has the fields of `Reply`, and one value for each block that has been done.
"""

from __future__ import annotations

from enum import IntEnum


class Header(IntEnum):
    """Where the call's own arguments are."""

    IDENTITY = 0  # who calls: written to :producer and :consumer
    BOUND = 1  # the bound of a queue that a put makes; empty to make none
    OVERFLOW = 2  # what a put on a full queue does, if the queue has no setting: block or error
    EPOCH = 3  # of the connection on which the call is sent (records.lua)
    NUMBER = 4  # of the call, under which its record is kept; empty to keep none
    AGAIN = 5  # `again` if the call may have been done before
    DONE = 6  # fields of the records that are not needed any longer, with spaces between


class BlockField(IntEnum):
    """Where the fields of a block are, from where it begins."""

    KEYS = 0  # how many keys it has
    ARGUMENTS = 1  # how many arguments follow its fields
    HOW = 2  # empty, or: note, share (waiting.lua), recover, cut (recovery.lua)


class Reply(IntEnum):
    """Where the fields of a reply are."""

    RECORDED = 0  # 1 if the call has a record now


AGAIN = b"again"
RECOVER = b"recover"
CUT = b"cut"


def constants() -> bytes:
    """The positions as constants for Lua, where the first argument is 1."""
    lines = [f"local HEADER_SIZE, BLOCK_SIZE = {len(Header)}, {len(BlockField)}"]
    lines += [f"local HEADER_{field.name} = {field + 1}" for field in Header]
    lines += [f"local BLOCK_{field.name} = {field.value}" for field in BlockField]
    return "\n".join(lines).encode()
