"""Messages: each is unique, and can be told from its name alone, so that one that was changed is noticed."""

from __future__ import annotations

import random

_LARGEST = 40_000


def name(producer: int, number: int, flags: int = 0) -> bytes:
    """What the message is called in the ledger. `flags` are those it is put with by memcached."""
    return b"%d.%d.%d" % (producer, number, flags) if flags else b"%d.%d" % (producer, number)


def flags_of(called: bytes) -> int:
    """The flags that the message of that name has; 0 for none."""
    _, _, flags = called.partition(b".")[2].partition(b".")
    return int(flags or 0)


def message(called: bytes) -> bytes:
    """The message of that name: most are small; one in fifty has kilobytes, which take several reads."""
    chance = random.Random(called)
    if chance.random() < 0.98:
        return called + b":" + b"x" * chance.randrange(40)
    return called + b":" + chance.randbytes(chance.randrange(1000, _LARGEST))


def name_of(data: bytes) -> bytes:
    """The name of what was received. Raises ValueError where nobody makes such a message."""
    called, _, _ = data.partition(b":")
    if data != message(called):
        raise ValueError("not a message of ours")
    return called
