"""The layout of a call of the library and of its reply: names of the positions, for Python and Lua.

KEYS are the keys of the blocks, one block after the other, then the key of the caller's records, if it has
any. ARGV is the header, then the blocks. A block has the fields of `BlockField`, then as many arguments as
these state.

A reply has the fields of `Reply`, then a value for each block that has been done.
"""

from enum import IntEnum
from typing import Final


class Header(IntEnum):
    """The positions of the call's own arguments."""

    IDENTITY = 0  # the caller's name, written to :producer and :consumer
    BOUND = 1  # the bound of a queue that a put creates; empty to create none; BY_NAME if templates say it
    OVERFLOW = 2  # what a put on a full queue does, if the queue has no setting: block or error
    LIMITS = 3  # limits of the server: see core/life.lua
    EPOCH = 4  # the epoch of the connection on which the call is sent (records.lua)
    NUMBER = 5  # the number of the call and of its record; empty to keep no record
    AGAIN = 6  # `again` if the call may have been done before
    DONE = 7  # fields of records that are not needed any longer, separated by spaces


# A name for each call: the length of an enumeration is a function in Python.
HEADER_SIZE: Final = len(Header)


class BlockField(IntEnum):
    """The positions of a block's fields, from the beginning of the block."""

    KEYS = 0  # the number of its keys
    ARGUMENTS = 1  # the number of arguments that follow its fields
    HOW = 2  # empty; or note, share (waiting.lua); or recover, cut (recovery.lua); or read (batch.lua)


class Reply(IntEnum):
    """The positions of a reply's fields."""

    RECORDED = 0  # 1 if the call has a record now


REPLY_SIZE: Final = len(Reply)


class JobField(IntEnum):
    """The positions in the packed state of a job (jobs.lua)."""

    PRIORITY = 0
    DELAY = 1
    RESERVES = 2
    TIMEOUTS = 3
    RELEASES = 4
    BURIES = 5
    KICKS = 6
    OWNER = 7
    OWN_TTR = 8  # the time to run of one reservation
    OFFSET = 9  # that of a message of a log whose job has been buried (groups.lua)
    ORIGIN = 10  # the base key of the queue from which a dead letter came (dead_letters.lua)
    NAME = 11  # what made a dead letter unique there, if not its message


# What jobs have that were put without: a priority, and a time to run in milliseconds.
DEFAULT_PRIORITY: Final = 1024
DEFAULT_TTR: Final = 60_000


class _Numbers(dict[int, bytes]):
    """Numbers as arguments. To format one takes four times as long as to look it up."""

    def __missing__(self, number: int) -> bytes:
        return b"%d" % number


NUMBERS: Final = _Numbers({number: b"%d" % number for number in range(256)})

BY_NAME: Final = b"by name"  # see core/life.lua
AGAIN: Final = b"again"
RECOVER: Final = b"recover"
CUT: Final = b"cut"
READ: Final = b"read"


def constants() -> dict[bytes, bytes]:
    """Return the positions by their names in the scripts. In Lua the first argument has the index 1."""
    found = {b"HEADER_SIZE": HEADER_SIZE, b"BLOCK_SIZE": len(BlockField)}
    found |= {b"HEADER_" + field.name.encode(): field + 1 for field in Header}
    found |= {b"BLOCK_" + field.name.encode(): field.value for field in BlockField}
    found |= {b"JOB_DEFAULT_PRIORITY": DEFAULT_PRIORITY, b"JOB_DEFAULT_TTR": DEFAULT_TTR}
    found |= {b"JOB_" + field.name.encode(): field + 1 for field in JobField}
    return {name: b"%d" % value for name, value in found.items()}
