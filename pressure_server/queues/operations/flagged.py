"""Messages with flags: flags are a number that some clients store with a message. Pure.

A message without flags is plain bytes and has flags 0. Code that ignores flags treats every message as bytes.
"""

from __future__ import annotations

_NONE = b"0"


class Flagged(bytes):
    """A message that has flags."""

    flags: bytes

    def __new__(cls, message: bytes, flags: bytes) -> Flagged:
        """`flags` is the number in decimal."""
        made = super().__new__(cls, message)
        made.flags = flags
        return made


def flags_of(message: bytes) -> bytes:
    """Return the message's flags in decimal; 0 if it has none."""
    return message.flags if type(message) is Flagged else _NONE


def attach_flags(reply: list[bytes]) -> list[bytes]:
    """Return the messages of a reply, with the flags that get.lua puts after the last message.

    `reply` is changed.
    """
    if not reply:
        return reply
    flags = reply.pop()
    if not flags:
        return reply
    return [
        message if one == _NONE else Flagged(message, one)
        for message, one in zip(reply, flags.split(b" "), strict=True)
    ]


def recovery_form(message: bytes) -> bytes:
    """Return the message preceded by its flags, which is how recovery.lua identifies it."""
    return flags_of(message) + b" " + message
