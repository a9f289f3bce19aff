"""Checks of the callers' arguments, before anything is sent."""

from __future__ import annotations

from math import isnan


def as_bytes(value: str | bytes, what: str) -> bytes:
    """Return bytes as they are, a str as UTF-8. Raises TypeError, which calls the value `what`."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"{what} must be bytes or str, not {value!r}")


def checked_bound(bound: int) -> int:
    """Return the bound; 0 means unbounded. Raises TypeError if it is no int, ValueError if it is negative."""
    if not isinstance(bound, int):
        raise TypeError(f"a bound must be an int, 0 for unbounded, not {bound!r}")
    if bound < 0:
        raise ValueError(f"a bound must be 0 (unbounded) or more, not {bound}")
    return bound


def checked_timeout(timeout: float | None) -> float | None:
    """Return the timeout in seconds; None waits for ever. Raises TypeError, or ValueError for NaN."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise TypeError(f"a timeout must be a number of seconds, or None to wait for ever, not {timeout!r}")
    if isnan(timeout):
        raise ValueError("a timeout must be a number of seconds, or None to wait for ever, not NaN")
    return timeout
