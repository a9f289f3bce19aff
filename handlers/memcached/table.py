"""The command table: the commands of each mode, their syntax, rights and functions."""

from __future__ import annotations

from collections.abc import Callable

from handlers.memcached.client import MODES, PROTOCOL, ForRepeated, Function, Spec
from pressure_server.auth.users import RIGHTS
from pressure_server.net.command_statistics import statistics_of

COMMANDS: dict[str, dict[bytes, Spec]] = {mode: {} for mode in MODES}


def command(
    syntax: str,
    summary: str,
    *,
    modes: tuple[str, ...],
    needs: str,
    repeated: ForRepeated | None = None,
) -> Callable[[Function], Function]:
    """Return a decorator that enters a function into the tables of these modes as a command.

    `syntax` is the command's name and its words: <word>, [<word>] if optional, <word>* for one or more. The
    first word called <queue> or <key> is a queue or a key. `needs` are the rights of users.py that a user
    must have, or `nothing`. Raise ValueError for an unknown right.
    """
    rights = frozenset(needs.replace("nothing", "").split())
    if not rights <= set(RIGHTS):
        raise ValueError(f"{syntax}: unknown right")
    name, *arguments = syntax.split()
    required = [argument for argument in arguments if not argument.startswith("[")]
    is_open = any(argument.strip("[]").endswith("*") for argument in arguments)
    called = [argument.strip("[]<>*") for argument in arguments]
    first = next((at for at, one in enumerate(called, 1) if one in ("queue", "key")), 0)

    def enter(function: Function) -> Function:
        spec = Spec(
            name,
            syntax,
            summary,
            function,
            1 + len(required),
            None if is_open else 1 + len(arguments),
            rights,
            slice(first, (None if is_open else first + 1) if first else 0),
            repeated,
            statistics_of(PROTOCOL, name),
        )
        for mode in modes:
            COMMANDS[mode][name.encode()] = spec
        return function

    return enter
