"""Checks of the callers' arguments, and the words of commands that they become."""

from math import ceil, inf, isnan

# The limits of beanstalkd: priorities, delays and times to run are below 2^32.
_MAX_UINT32 = (1 << 32) - 1
# A longer timeout waits for ever: the server would refuse it.
_LONGEST_WAIT = float(1 << 32)
_NAME_LENGTH = 128

Word = bytes | str | int


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


def checked_seconds(seconds: float, what: str) -> float:
    """Return a delay or a time to run. Raises TypeError if it is no number, ValueError if out of range."""
    if not isinstance(seconds, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= _MAX_UINT32:
        raise ValueError(f"{what} must be between 0 and {_MAX_UINT32} seconds, not {seconds}")
    return seconds


def checked_choice(value: str, what: str, *choices: str, other: str = "") -> str:
    """Return the value. Raises ValueError if it is none of the choices; `other` names what else may be."""
    if value not in choices:
        *allowed, last = [*map(repr, choices), *filter(None, [other])]
        raise ValueError(f"{what} must be {', '.join(allowed)} or {last}, not {value!r}")
    return value


def checked_id(number: int, what: str) -> int:
    """Return the id of a job or a message. Raises as checked_number."""
    return checked_number(number, f"the id of {what}", least=1)


def checked_name(name: str | bytes) -> bytes:
    """Return a transaction id or the name of a consumer, as the server wants these."""
    word = as_bytes(name, "a transaction id or a consumer's name")
    if not 0 < len(word) <= _NAME_LENGTH or any(byte <= ord(" ") or byte > ord("~") for byte in word):
        raise ValueError(
            f"a transaction id or a consumer's name must be 1 to {_NAME_LENGTH} printable characters "
            f"without spaces, not {name!r}"
        )
    return word


def start_word(start: str | int) -> Word:
    """Return the word for the place in a log from which a group reads."""
    if isinstance(start, str):
        return checked_choice(start, "a start", "head", "tail", other="an offset")
    return checked_number(start, "an offset")


def seconds_word(seconds: float, what: str) -> bytes:
    """Return the word for a delay or a time to run. Raises as checked_seconds."""
    return _in_milliseconds(checked_seconds(seconds, what))


def ttr_words(ttr: float | None) -> list[Word]:
    """Return the words for a time to run; none if the default applies."""
    return [] if ttr is None else ["TTR", seconds_word(ttr, "a time to run")]


def priority_words(priority: int | None) -> list[Word]:
    """Return the words for the priority of a job, 0 for the most urgent; none if the default applies."""
    return [] if priority is None else ["PRIORITY", checked_number(priority, "a priority", most=_MAX_UINT32)]


def room_words(timeout: float | None) -> list[Word]:
    """Return the words for the time that a put waits for room; none if the queue's setting applies."""
    timeout = checked_timeout(timeout)
    if timeout is None:
        return []
    return ["NOWAIT"] if timeout <= 0 else ["TIMEOUT", _timeout_word(timeout)]


def wait_words(timeout: float | None) -> list[Word]:
    """Return the words for the time that a command waits for messages; none if it does not wait."""
    timeout = checked_timeout(timeout)
    if timeout is not None and timeout <= 0:
        return []
    return ["TIMEOUT", _timeout_word(inf if timeout is None else timeout)]


def _timeout_word(timeout: float) -> bytes:
    """Return a timeout above 0 as the server reads it: it waits for ever for 0 seconds."""
    return b"0" if timeout > _LONGEST_WAIT else _in_milliseconds(timeout)


def _in_milliseconds(seconds: float) -> bytes:
    """Return seconds as a command's word, rounded up to milliseconds: 0 often means something else."""
    whole, rest = divmod(ceil(seconds * 1000), 1000)
    return b"%d.%03d" % (whole, rest)
