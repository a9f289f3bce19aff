"""The command table: the source of dispatch, and of the arguments that each command takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from handlers.beanstalk.client import PROTOCOL, Function, Spec
from pressure_server.net.command_statistics import statistics_of

COMMANDS: dict[bytes, Spec] = {}
_NAME = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")
_NUMBER = re.compile(rb" *([0-9]+)")
UINT32, UINT64 = (1 << 32) - 1, (1 << 64) - 1


class FormatError(Exception):
    """The line is not well-formed: the reply is BAD_FORMAT."""


def nothing(rest: bytes) -> None:
    """Parse no arguments."""
    if rest:
        raise FormatError


def tube(rest: bytes) -> bytes:
    """Parse the name of a tube."""
    if not rest.startswith(b" ") or not _NAME.fullmatch(rest, 1):
        raise FormatError
    return rest[1:]


def numbers(*limits: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return the parser of so many numbers, each up to its limit."""

    def parse(rest: bytes) -> tuple[int, ...]:
        found: list[int] = []
        at = 0
        for limit in limits:
            number = _NUMBER.match(rest, at)
            if (
                number is None
                or not rest.startswith(b" ", at)
                or len(number[1]) > 20
                or int(number[1]) > limit
            ):
                raise FormatError
            found.append(int(number[1]))
            at = number.end()
        if at != len(rest):
            raise FormatError
        return tuple(found)

    return parse


def tube_and_number(rest: bytes) -> tuple[bytes, int]:
    """Parse the name of a tube and a number of 32 bits."""
    name, space, number = rest[1:].partition(b" ")
    return tube(b" " + name if rest.startswith(b" ") else b""), numbers(UINT32)(space + number)[0]


def command(
    name: str, parse: Callable[[bytes], Any] = nothing, *, needs: str = ""
) -> Callable[[Function], Function]:
    """Return a decorator that enters a function into the table."""

    def enter(function: Function) -> Function:
        needed = frozenset(needs.split())
        COMMANDS[name.encode()] = Spec(
            name, function, parse, needed, parse is nothing, statistics_of(PROTOCOL, name)
        )
        return function

    return enter
