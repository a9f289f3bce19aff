"""Series of commands as lines of text, each with its reply; a str stands for the beginning of an error."""

from typing import Any

import hiredis

from tests.support.waiters import Waiter

Series = list[tuple[str, Any]]


def refusals(error: str, command: str, *endings: str) -> list[tuple[str, str]]:
    """Return the command with each of the endings, and the beginning of its error."""
    return [(f"PRESSURE.{command} {ending}".rstrip(), error) for ending in endings]


def words(line: str) -> list[str]:
    """Return the words of a line; '' stands for an empty word."""
    return [word.replace("''", "") for word in line.split()]


def matches(reply: Any, expected: Any) -> bool:
    """Return whether the reply is the expected value, or an error that begins with the expected str."""
    if isinstance(expected, str):
        return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(expected)
    return bool(type(reply) is type(expected) and reply == expected)


def run_series(connection: Waiter, script: Series) -> None:
    """Check that each line has its reply."""
    for number, (line, expected) in enumerate(script):
        reply = connection(*words(line))
        assert matches(reply, expected), f"line {number}: {line}: {reply!r}"
