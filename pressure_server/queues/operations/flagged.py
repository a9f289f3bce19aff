"""Messages, as bytes, with more than their text: flags, which some clients store; a reservation. Pure."""

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


class Popped(Flagged):
    """A message that a client has popped, and that stays a reserved job until its next pop."""

    job: int
    reserves: int
    ttr: float  # in seconds; 0 for no limit

    @classmethod
    def of(cls, result: bytes) -> Popped:
        """Return the message of one result of POP."""
        job, ttr, flags, reserves, message = result.split(b" ", 4)
        made = bytes.__new__(cls, message)
        made.flags, made.job, made.reserves = flags, int(job[:13], 16), int(reserves)
        made.ttr = int(ttr) / 1000
        return made


def flags_of(message: bytes) -> bytes:
    """Return the message's flags in decimal; 0 if it has none."""
    return message.flags if isinstance(message, Flagged) else _NONE


def attach_flags(reply: list[bytes]) -> list[bytes]:
    """Return the messages of a reply, with the flags that get.lua puts after the last. Changes `reply`."""
    if not reply or type(reply[0]) is Popped:
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
