"""The command table: the source of dispatch, and of the arguments that each command takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from operator import gt
from typing import Any

from pressure_server.net.command_statistics import statistics_of
from pressure_server.net.command_table import AnyFunction, TableEntry, markdown, parse_rights

PROTOCOL = "beanstalk"
# The version of beanstalkd that the handler follows.
FOLLOWED_VERSION = "1.12"
_NAME = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")
UINT32, UINT64 = (1 << 32) - 1, (1 << 64) - 1


class FormatError(Exception):
    """The line is not well-formed: the reply is BAD_FORMAT."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command(TableEntry):
    """A command in the table: `parse` turns the rest of its line into arguments, or raises FormatError."""

    parse: Callable[[bytes], tuple[Any, ...]]


COMMANDS: dict[bytes, Command] = {}


def nothing(rest: bytes) -> tuple[()]:
    """Parse no arguments."""
    if rest:
        raise FormatError
    return ()


def is_tube(name: bytes) -> bool:
    """Return whether a tube can have this name. Other clients can give queues any name."""
    return _NAME.fullmatch(name) is not None


def tube(rest: bytes) -> tuple[bytes]:
    """Parse the name of a tube."""
    if not is_tube(rest[1:]):
        raise FormatError
    return (rest[1:],)


def numbers(*limits: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return the parser of so many numbers, each up to its limit."""
    pattern = re.compile(rb" +([0-9]{1,20})" * len(limits))

    def parse(rest: bytes) -> tuple[int, ...]:
        words = pattern.fullmatch(rest)
        found = tuple(map(int, words.groups())) if words is not None else ()
        if not found or any(map(gt, found, limits)):
            raise FormatError
        return found

    return parse


def tube_and_number(rest: bytes) -> tuple[bytes, int]:
    """Parse the name of a tube and a number of 32 bits."""
    name, space, number = rest[1:].partition(b" ")
    return tube(b" " + name)[0], numbers(UINT32)(space + number)[0]


def command(
    syntax: str, summary: str, parse: Callable[[bytes], tuple[Any, ...]] = nothing, *, needs: str
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that enters a function into the table.

    `syntax` is the command's line, with its arguments in <> or, if optional, in []. `needs` are the rights of
    users.py that a user must have, or `nothing`. Raise ValueError for an unknown right.
    """

    def enter(function: AnyFunction) -> AnyFunction:
        name, *arguments = syntax.split()
        COMMANDS[name.encode()] = Command(
            name=name,
            syntax=syntax,
            summary=summary,
            function=function,
            needs=parse_rights(needs, name),
            least=1 + sum(not argument.startswith("[") for argument in arguments),
            most=inf if arguments else 1,
            statistics=statistics_of(PROTOCOL, name),
            parse=parse,
        )
        return function

    return enter


def commands_markdown() -> str:
    """Return the table of docs/reference/beanstalk.md."""
    return "\n".join(markdown("Commands", COMMANDS.values()))
