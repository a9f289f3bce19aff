"""The command table.

Dispatch, arity checks, COMMAND, COMMAND DOCS and docs/reference/commands.md all come from it.

A command is a function with the decorator `command`, whose syntax line, in Redis's notation, is the one
place that says what arguments there are.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from handlers.resp.client import Caller, Function, RespClient, Spec
from handlers.resp.errors import unknown_subcommand, wrong_arity
from handlers.resp.parser import Command, Repeated
from handlers.resp.syntax import Argument, arity_of, keys_of, parse_syntax
from pressure_server.auth.users import RIGHTS

# By name, in upper case; and by the usual spellings, so that dispatch need not change case.
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
    """Enter a function into the table, as `NAME arguments…` or, for a subcommand, `NAME|SUB arguments…`.

    `needs` is what its user must have a right to: some of the RIGHTS of users.py, or `nothing`, if it
    names no queue. `repeated` does many such commands at once, where that is faster than one by one.
    Raises ValueError where the needs are none.
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
    """Do the subcommand that a container's second word names. Raises CommandError."""
    return find_subcommand(words).function(client, words)


def find_subcommand(words: Command) -> Spec:
    """The subcommand that a container's second word names. Raises CommandError."""
    spec = COMMANDS[words[0].upper()].subcommands.get(words[1].upper())
    if spec is None:
        raise unknown_subcommand(words)
    if not spec.accepts(len(words)):
        raise wrong_arity(spec.name)
    return spec


def container(name: str, summary: str, *, group: str) -> None:
    """Enter a command that has subcommands, and HELP, which lists them."""
    command(f"{name} subcommand [argument ...]", summary, group=group, needs="nothing")(dispatch)

    @command(f"{name}|HELP", "Lists the subcommands.", group=group, needs="nothing")
    async def _help(_client: Caller, _words: Command) -> list[str]:
        return help_of(name)


def help_of(name: str) -> list[str]:
    """What `NAME HELP` replies."""
    lines = [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for spec in COMMANDS[name.encode()].subcommands.values():
        lines += [spec.syntax.partition(" ")[2], f"    {spec.summary}"]
    return lines
