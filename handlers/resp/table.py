"""The command table: the source of dispatch, arity checks, COMMAND, and docs/reference/commands.md.

A command is a function with the decorator `command`. Its arguments are defined by the decorator's syntax
line alone, in Redis's notation.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from handlers.resp.client import PROTOCOL, Caller, Function, RespClient, Spec
from handlers.resp.errors import unknown_subcommand, wrong_arity
from handlers.resp.parser import Command, Repeated
from handlers.resp.syntax import Argument, arity_of, keys_of, parse_syntax
from pressure_server.auth.users import RIGHTS
from pressure_server.net.command_statistics import statistics_of

# Commands by upper-case name, and by the usual spellings, so that dispatch need not change case.
COMMANDS: dict[bytes, Spec] = {}
BY_SPELLING: dict[bytes, Spec] = {}


def command(
    syntax: str,
    summary: str,
    *,
    group: str,
    needs: str,
    flags: str = "",
    repeated: Callable[[RespClient, Repeated], None] | None = None,
) -> Callable[[Function], Function]:
    """Return a decorator that enters a function into the table.

    `syntax` is `NAME arguments…`, or `NAME|SUB arguments…` for a subcommand. `needs` are the rights that the
    user must have, separated by spaces (RIGHTS in users.py), or `nothing` for a command that names no queue.
    `repeated` executes many such commands at once, faster than one by one. The decorator raises ValueError
    for invalid needs.
    """

    def enter(function: Function) -> Function:
        name, _, rest = syntax.partition(" ")
        container_name, _, sub = name.partition("|")
        arguments = parse_syntax(rest)
        named = 2 if sub else 1
        spec = Spec(
            name=name.lower(),
            function=function,
            syntax=syntax.replace("|", " ", 1) if sub else syntax,
            summary=summary,
            group=group,
            flags=tuple(flags.split()),
            arguments=arguments,
            arity=arity_of(arguments, named),
            keys=keys_of(arguments, named),
            needs=_rights_of(name, needs, arguments),
            statistics=statistics_of(PROTOCOL, name.lower()),
            repeated=repeated,
        )
        if sub:
            COMMANDS[container_name.encode()].subcommands[sub.encode()] = spec
        else:
            COMMANDS[name.encode()] = spec
            for spelling in (name, name.lower(), name.capitalize()):
                BY_SPELLING[spelling.encode()] = spec
        return function

    return enter


def _rights_of(name: str, needs: str, arguments: tuple[Argument, ...]) -> frozenset[str]:
    rights = frozenset(() if needs == "nothing" else needs.split())
    is_on_queues = any(argument.type == "key" for argument in arguments)
    if not rights <= set(RIGHTS) or (is_on_queues and not rights):
        raise ValueError(f"{name} cannot need '{needs}'")
    return rights


def dispatch(client: Caller, words: Command) -> Coroutine[Any, Any, Any] | None:
    """Execute the subcommand that the second word names. Raise CommandError."""
    return find_subcommand(words).function(client, words)


def find_subcommand(words: Command) -> Spec:
    """Return the subcommand that the second word names. Raise CommandError if name or arity is wrong."""
    spec = COMMANDS[words[0].upper()].subcommands.get(words[1].upper())
    if spec is None:
        raise unknown_subcommand(words)
    if not spec.accepts(len(words)):
        raise wrong_arity(spec.name)
    return spec


def container(name: str, summary: str, *, group: str) -> None:
    """Enter a command that has subcommands, and its subcommand HELP."""
    command(f"{name} subcommand [argument ...]", summary, group=group, needs="nothing")(dispatch)

    @command(f"{name}|HELP", "Lists the subcommands.", group=group, needs="nothing")
    async def _help(_client: Caller, _words: Command) -> list[str]:
        return help_of(name)


def help_of(name: str) -> list[str]:
    """Return the lines of `NAME HELP`."""
    lines = [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for spec in COMMANDS[name.encode()].subcommands.values():
        lines += [spec.syntax.partition(" ")[2], f"    {spec.summary}"]
    return lines
