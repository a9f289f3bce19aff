"""A request's words as what they stand for. All raise ClientError, with memcached's text."""

from __future__ import annotations

import re

from handlers.memcached.parser import is_key
from handlers.memcached.replies import ClientError

_BAD_FORMAT = "bad command line format"
_UNSIGNED = re.compile(rb"\d{1,20}")
_SIGNED = re.compile(rb"-?\d{1,11}")
_MOST_FLAGS = 2**32 - 1
# Memcached's: so many seconds are from now on, more are a time since 1970.
_LONGEST_FROM_NOW = 60 * 60 * 24 * 30
LONG_PAST = b"1"


def key_of(word: bytes) -> bytes:
    """A key, or a queue."""
    if not is_key(word):
        raise ClientError(_BAD_FORMAT)
    return word


def flags_of(word: bytes) -> int:
    """A number of 32 bits, which means something to the client."""
    if not _UNSIGNED.fullmatch(word) or int(word) > _MOST_FLAGS:
        raise ClientError(_BAD_FORMAT)
    return int(word)


def expiry_of(word: bytes, otherwise: str = _BAD_FORMAT) -> bytes:
    """When something expires, as scripts take it: 0 for never, +seconds from now on, or since 1970.

    `otherwise` is the text of the error.
    """
    if not _SIGNED.fullmatch(word):
        raise ClientError(otherwise)
    seconds = int(word)
    if seconds < 0:
        return LONG_PAST
    return b"+%d" % seconds if 0 < seconds <= _LONGEST_FROM_NOW else b"%d" % seconds


def number_of(word: bytes, otherwise: str = _BAD_FORMAT) -> int:
    """A number of 64 bits, from 0. `otherwise` is the text of the error."""
    if not _UNSIGNED.fullmatch(word) or int(word) >= 2**64:
        raise ClientError(otherwise)
    return int(word)
