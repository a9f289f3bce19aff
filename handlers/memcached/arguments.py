"""Arguments: convert the words of a request. Invalid words raise ClientError with memcached's text."""

from __future__ import annotations

import re

from handlers.memcached.parser import is_key
from handlers.memcached.replies import ClientError

_BAD_FORMAT = "bad command line format"
_UNSIGNED = re.compile(rb"\d{1,20}")
_SIGNED = re.compile(rb"-?\d{1,11}")
_MAX_FLAGS = 2**32 - 1
# As in memcached: up to this many seconds count from now; a larger number is a Unix time.
_MAX_RELATIVE_TIME = 60 * 60 * 24 * 30
PAST = b"1"


def key_of(word: bytes) -> bytes:
    """Return the word if it is a valid key or queue name."""
    if not is_key(word):
        raise ClientError(_BAD_FORMAT)
    return word


def flags_of(word: bytes) -> int:
    """Return an item's flags, an unsigned number of 32 bits that only clients interpret."""
    if not _UNSIGNED.fullmatch(word) or int(word) > _MAX_FLAGS:
        raise ClientError(_BAD_FORMAT)
    return int(word)


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


def number_of(word: bytes, otherwise: str = _BAD_FORMAT) -> int:
    """Return an unsigned number of 64 bits. `otherwise` is the text of the error."""
    if not _UNSIGNED.fullmatch(word) or int(word) >= 2**64:
        raise ClientError(otherwise)
    return int(word)
