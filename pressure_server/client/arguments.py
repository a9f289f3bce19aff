"""Arguments: what callers hand over, checked before anything is sent."""

from __future__ import annotations

from math import isnan


def as_bytes(value: str | bytes, what: str) -> bytes:
    """A str as UTF-8. Raises TypeError, which says `what` it is."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"{what} is bytes or a str: not {value!r}")


def checked_bound(bound: int) -> int:
    """A bound, 0 for none. Raises TypeError, ValueError."""
    if not isinstance(bound, int):
        raise TypeError(f"a bound is a whole number, 0 for none: not {bound!r}")
    if bound < 0:
        raise ValueError(f"a bound is 0, for none, or more: not {bound}")
    return bound


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds, None for ever. Raises TypeError, ValueError."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise TypeError(f"a timeout is a number of seconds, or None for ever: not {timeout!r}")
    if isnan(timeout):
        raise ValueError("a timeout is a number of seconds, or None for ever: not NaN, which is no number")
    return timeout
