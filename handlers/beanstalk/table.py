"""The command table: the source of dispatch, and of the arguments that each command takes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from operator import gt
from typing import Any

from handlers.beanstalk.replies import BAD_FORMAT, RefusedError
from pressure_server.net.command_statistics import statistics_of
from pressure_server.net.command_table import AnyFunction, TableEntry, markdown, parse_rights, summary_of

PROTOCOL = "beanstalk"
# The version of beanstalkd that the handler follows.
FOLLOWED_VERSION = "1.12"
_NAME = rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}"
UINT32, UINT64 = (1 << 32) - 1, (1 << 64) - 1

# Turns what follows the name of a command into arguments. Raises RefusedError.
Parse = Callable[[bytes], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command(TableEntry):
    """A command in the table."""

    parse: Parse


COMMANDS: dict[bytes, Command] = {}


def is_tube(name: bytes) -> bool:
    """Return whether a tube can have this name. Other clients can give queues any name."""
    return re.fullmatch(_NAME, name) is not None


def _parser_of(arguments: list[str]) -> Parse:
    """Return the parser of a tube, if <tube> comes first, and of numbers: 64 bits for <id>, else 32."""
    names = arguments[:1].count("<tube>")
    limits = [UINT64 if one == "<id>" else UINT32 for one in arguments[names:]]
    pattern = re.compile((b" (%b)" % _NAME) * names + rb" +([0-9]{1,20})" * len(limits))

    def parse(rest: bytes) -> tuple[Any, ...]:
        found = pattern.fullmatch(rest)
        if found is None:
            raise RefusedError(BAD_FORMAT)
        words = found.groups()
        numbers = tuple(map(int, words[names:]))
        if any(map(gt, numbers, limits)):
            raise RefusedError(BAD_FORMAT)
        return words[:names] + numbers

    return parse


def command(
    syntax: str, *, needs: str, parse: Parse | None = None, summary: str = ""
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that enters a function into the table.

    `syntax` is the command's line, with its arguments in <> or, if optional, in []; `parse` is needed if they
    are not a tube and numbers. `needs` are the rights of users.py that a user must have, or `nothing`. The
    `summary` for the reference is the function's docstring, unless it is given. Raise ValueError for an
    unknown right.
    """

    def enter(function: AnyFunction) -> AnyFunction:
        name, *arguments = syntax.split()
        COMMANDS[name.encode()] = Command(
            name=name,
            syntax=syntax,
            summary=summary or summary_of(function),
            function=function,
            needs=parse_rights(needs, name),
            least=1 + sum(not argument.startswith("[") for argument in arguments),
            most=inf if arguments else 1,
            statistics=statistics_of(PROTOCOL, name),
            parse=parse or _parser_of(arguments),
        )
        return function

    return enter


def commands_markdown() -> str:
    """Return the table of docs/reference/beanstalk.md."""
    return "\n".join(markdown("Commands", COMMANDS.values()))
