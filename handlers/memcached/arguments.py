"""Arguments: convert the words of a request, and the options in a queue's name.

Invalid words raise ClientError with memcached's text.
"""

import re

from handlers.memcached.parser import KEY
from handlers.memcached.replies import ClientError

_BAD_FORMAT = "bad command line format"
_UNSIGNED = re.compile(rb"\d{1,20}")
_SIGNED = re.compile(rb"-?\d{1,11}")
# As in memcached: up to this many seconds count from now; a larger number is a Unix time.
_MAX_RELATIVE_TIME = 60 * 60 * 24 * 30
PAST = b"1"

_OPTION = re.compile(rb"open|close|abort|peek|t=\d{1,9}")


def key_of(word: bytes) -> bytes:
    """Return the word if it is a valid key or queue name."""
    if not KEY.fullmatch(word):
        raise ClientError(_BAD_FORMAT)
    return word


def number_of(word: bytes, otherwise: str = _BAD_FORMAT, most: int = 2**64 - 1) -> bytes:
    """Return an unsigned number of up to 64 bits, without leading zeros. `otherwise` is the error's text."""
    if not _UNSIGNED.fullmatch(word) or int(word) > most:
        raise ClientError(otherwise)
    return b"%d" % int(word)


def flags_of(word: bytes) -> bytes:
    """Return an item's flags, an unsigned number of 32 bits that only clients interpret."""
    return number_of(word, most=2**32 - 1)


def expiry_of(word: bytes, otherwise: str = _BAD_FORMAT) -> bytes:
    """Return an expiry as the scripts take it: 0 for never, `+seconds` from now, or seconds since 1970.

    `otherwise` is the text of the error.
    """
    if not _SIGNED.fullmatch(word):
        raise ClientError(otherwise)
    seconds = int(word)
    if seconds < 0:
        return PAST
    return b"+%d" % seconds if 0 < seconds <= _MAX_RELATIVE_TIME else b"%d" % seconds


def split_key(key: bytes) -> tuple[bytes, set[bytes], float]:
    """Return the queue, the options after its name but `t=`, and for how many seconds `t=` waits.

    A slash before anything but an option is part of the name. Raise ClientError for an invalid `t=`, or for
    options that cannot be combined.
    """
    queue, *words = _split(key)
    if b"/t=" in queue and queue.rpartition(b"/")[2].startswith(b"t="):
        raise ClientError("t= takes a number of milliseconds with at most nine digits")
    names = {word for word in words if not word.startswith(b"t=")}
    if not names.isdisjoint((b"peek", b"abort")) and len(names) > 1:
        raise ClientError("peek and abort can be combined with t= only")
    timeout = max((int(word[2:]) for word in words if word not in names), default=0)
    return queue, names, timeout / 1000


def queue_of(key: bytes) -> bytes:
    """Return the queue's name without the options."""
    return _split(key)[0]


def _split(key: bytes) -> list[bytes]:
    parts = key.split(b"/")
    first = len(parts)
    # If the key begins with a slash, the first word after it belongs to the name.
    while first > (1 if parts[0] else 2) and _OPTION.fullmatch(parts[first - 1]):
        first -= 1
    return [b"/".join(parts[:first]), *parts[first:]]
