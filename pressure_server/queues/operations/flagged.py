"""Messages with flags: a number that some clients give with a message, and that tells them something. Pure.

A message without flags is plain bytes, and flags 0; whoever does not care for them sees bytes in either.
"""

from __future__ import annotations

_NONE = b"0"


class Flagged(bytes):
    """A message that has flags."""

    flags: bytes

    def __new__(cls, message: bytes, flags: bytes) -> Flagged:
        """`flags` is their number in decimal."""
        made = super().__new__(cls, message)
        made.flags = flags
        return made


def flags_of(message: bytes) -> bytes:
    """The message's flags."""
    return message.flags if type(message) is Flagged else _NONE


def with_flags(reply: list[bytes]) -> list[bytes]:
    """The messages of a reply that has all flags behind the last one (get.lua); the reply is used up."""
    if not reply:
        return reply
    flags = reply.pop()
    if not flags:
        return reply
    return [
        message if one == _NONE else Flagged(message, one)
        for message, one in zip(reply, flags.split(b" "), strict=True)
    ]


def word_of(message: bytes) -> bytes:
    """The message with its flags before it, by which recovery.lua knows it."""
    return flags_of(message) + b" " + message
