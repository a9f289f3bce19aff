"""Messages. Each is unique and follows from its name, so that a changed message is detected."""

import random

_MAX_SIZE = 40_000


def make_name(producer: int, number: int, flags: int = 0) -> bytes:
    """Return a message's name in the ledger. `flags` are the memcached flags with which it is put."""
    return b"%d.%d.%d" % (producer, number, flags) if flags else b"%d.%d" % (producer, number)


def flags_of(name: bytes) -> int:
    """Return the flags of the message of that name; 0 for none."""
    parts = name.split(b".")
    return int(parts[2]) if len(parts) > 2 else 0


def message(name: bytes) -> bytes:
    """Return the message of that name. One in fifty has kilobytes, which take several reads."""
    chance = random.Random(name)
    if chance.random() < 0.98:
        return name + b":" + b"x" * chance.randrange(40)
    return name + b":" + chance.randbytes(chance.randrange(1000, _MAX_SIZE))


def name_of(data: bytes) -> bytes:
    """Return the name of a received message. Raise ValueError if the message was changed."""
    name = data.partition(b":")[0]
    if data != message(name):
        raise ValueError("not a message of this test")
    return name
