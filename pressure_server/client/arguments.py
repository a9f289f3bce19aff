"""Checks of the callers' arguments, before anything is sent."""

from __future__ import annotations

from math import ceil, isnan

# The limits of beanstalkd: priorities, delays and times to run are below 2^32.
_MAX_UINT32 = (1 << 32) - 1


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


def checked_number(number: int, what: str, *, least: int = 0, most: int | None = None) -> int:
    """Return the number. Raises TypeError if it is no int, ValueError if it is out of range."""
    if not isinstance(number, int):
        raise TypeError(f"{what} must be an int, not {number!r}")
    if number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"between {least} and {most}"
        raise ValueError(f"{what} must be {limits}, not {number}")
    return number


def checked_priority(priority: int) -> int:
    """Return the priority of a job; 0 is the most urgent. Raises as checked_number."""
    return checked_number(priority, "a priority", most=_MAX_UINT32)


def checked_seconds(seconds: float, what: str) -> float:
    """Return a delay or a time to run. Raises TypeError if it is no number, ValueError if out of range."""
    if not isinstance(seconds, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= _MAX_UINT32:
        raise ValueError(f"{what} must be between 0 and {_MAX_UINT32} seconds, not {seconds}")
    return seconds


def in_milliseconds(seconds: float) -> bytes:
    """Return seconds as a command's word, rounded up to milliseconds: 0 often means something else."""
    whole, rest = divmod(ceil(seconds * 1000), 1000)
    return b"%d.%03d" % (whole, rest)
