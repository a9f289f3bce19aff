"""The command table: the source of dispatch, arity and rights, COMMAND, and the reference.

A command is a function with the decorator `command`. The decorator's syntax alone defines the arguments, in
Redis's notation. The function's docstring is the documentation that users read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from handlers.resp.arguments import numbered_keys
from handlers.resp.parser import Words
from handlers.resp.replies import SetReply, unknown_subcommand, wrong_arity
from handlers.resp.syntax import Argument, arity_of, keys_of, option_tokens, parse_syntax, position_of_numkeys
from pressure_server.auth.users import User
from pressure_server.net.command_statistics import statistics_of
from pressure_server.net.command_table import AnyFunction, Refusal, TableEntry, parse_rights

PROTOCOL = "resp"
# The version of Redis whose replies and error texts the handler follows.
FOLLOWED_VERSION = "7.0.15"

# Commands by upper-case name, and by the usual spellings, so that dispatch need not change case.
COMMANDS: dict[bytes, Command] = {}
BY_SPELLING: dict[bytes, Command] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command(TableEntry):
    """A command's entry in the table. The name of a subcommand is `container|sub`."""

    group: str
    flags: tuple[str, ...]
    arguments: tuple[Argument, ...]
    keys: tuple[int, int, int]
    arity: int
    repeats_options: bool = False
    subcommands: dict[bytes, Command] = field(default_factory=dict)

    @property
    def names_queues(self) -> bool:
        """Whether the command has arguments that name queues."""
        return any(argument.type == "key" for argument in self.arguments)

    def queues_of(self, words: Words) -> list[bytes]:
        """Return the words that name queues. Raise CommandError if numkeys is no integer, or too large."""
        counted_at = position_of_numkeys(self.arguments, 1)
        if counted_at:
            return numbered_keys(words[counted_at:])[0]
        first, last, step = self.keys
        keys = words[first : (last + 1 if last > 0 else len(words) + last + 1) : step] if first else []
        tokens = option_tokens(self.arguments) if last < 0 else ()
        end = (at for at, word in enumerate(keys) if at and word.upper() in tokens)
        return keys[: next(end, len(keys))]

    def refuses(self, user: User, words: Words) -> Refusal | None:
        """Return why the user may not execute this request; see TableEntry. Raise CommandError."""
        return self.refusal(user, partial(self.queues_of, words) if self.names_queues else None)


def command(
    *syntaxes: str,
    group: str,
    needs: str,
    flags: str = "",
    summary: str = "",
    repeated: Callable[..., None] | None = None,
    repeats_options: bool = False,
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that enters a function into the table, as one command for each syntax.

    A syntax is `NAME arguments…`, or `NAME|SUB arguments…` for a subcommand. `needs` are the rights that the
    user must have, separated by spaces (RIGHTS in users.py), or `nothing` for a command that names no queue.
    `summary` documents the command, by default with the docstring of the function. `repeated` executes many
    such commands at once, faster than one by one. It gets commands of more than three words if
    `repeats_options` is set. The decorator raises ValueError for invalid needs.
    """

    def enter(function: AnyFunction) -> AnyFunction:
        for syntax in syntaxes:
            name, _, rest = syntax.partition(" ")
            container_name, _, sub = name.partition("|")
            arguments = parse_syntax(rest)
            named = 2 if sub else 1
            arity = arity_of(arguments, named)
            entry = Command(
                name=name.lower(),
                function=function,
                syntax=syntax.replace("|", " ", 1) if sub else syntax,
                summary=summary or " ".join((function.__doc__ or "").split()),
                group=group,
                flags=tuple(flags.split()),
                arguments=arguments,
                arity=arity,
                least=abs(arity),
                most=arity if arity > 0 else inf,
                keys=keys_of(arguments, named),
                needs=parse_rights(needs, name),
                statistics=statistics_of(PROTOCOL, name.lower()),
                repeated=repeated,
                repeats_options=repeats_options,
            )
            if entry.names_queues and not entry.needs:
                raise ValueError(f"{name} cannot need '{needs}'")
            if sub:
                COMMANDS[container_name.encode()].subcommands[sub.encode()] = entry
                continue
            COMMANDS[name.encode()] = entry
            for spelling in (name, name.lower(), name.capitalize()):
                BY_SPELLING[spelling.encode()] = entry
        return function

    return enter


def find(words: Words) -> Command | None:
    """Return the command or subcommand that a request calls; None if no such command takes so many words."""
    entry = COMMANDS.get(words[0].upper())
    if entry is not None and entry.subcommands and len(words) > 1:
        entry = entry.subcommands.get(words[1].upper())
    return entry if entry is not None and entry.accepts(len(words)) else None


def find_subcommand(words: Words) -> Command:
    """Return the subcommand that the second word names. Raise CommandError if name or arity is wrong."""
    entry = COMMANDS[words[0].upper()].subcommands.get(words[1].upper())
    if entry is None:
        raise unknown_subcommand(words)
    if not entry.accepts(len(words)):
        raise wrong_arity(entry.name)
    return entry


def dispatch(client: object, words: Words) -> Coroutine[Any, Any, Any] | None:
    """Execute the subcommand that the second word names. Raise CommandError."""
    return find_subcommand(words).function(client, words)


def container(name: str, summary: str, *, group: str) -> None:
    """Enter a command that has subcommands, and its subcommand HELP."""
    command(f"{name} subcommand [argument ...]", group=group, needs="nothing", summary=summary)(dispatch)

    @command(f"{name}|HELP", group=group, needs="nothing")
    async def _help(_client: object, _words: Words) -> list[str]:
        """Lists the subcommands."""
        return help_of(name)


def help_of(name: str) -> list[str]:
    """Return the lines of `NAME HELP`."""
    lines = [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for entry in COMMANDS[name.encode()].subcommands.values():
        lines += [entry.syntax.partition(" ")[2], f"    {entry.summary}"]
    return lines


def command_info(entry: Command) -> list[object]:
    """Return an entry of COMMAND INFO, with the ten fields of Redis 7."""
    categories = [f"@{'keyspace' if entry.group == 'generic' else entry.group}"]
    categories += ["@write"] if "write" in entry.flags else ["@read"] if "readonly" in entry.flags else []
    categories.append("@fast" if "fast" in entry.flags else "@slow")
    subcommands = [command_info(sub) for sub in entry.subcommands.values()]
    about = [entry.name.encode(), entry.arity, SetReply(entry.flags), *entry.keys, SetReply(categories)]
    return [*about, [], [], subcommands]


def command_docs(entry: Command) -> dict[bytes, object]:
    """Return an entry of COMMAND DOCS."""
    docs: dict[bytes, object] = {b"summary": entry.summary.encode(), b"group": entry.group.encode()}
    if entry.subcommands:
        docs[b"subcommands"] = {sub.name.encode(): command_docs(sub) for sub in entry.subcommands.values()}
    elif entry.arguments:
        docs[b"arguments"] = [_argument_docs(argument) for argument in entry.arguments]
    return docs


def _argument_docs(argument: Argument) -> dict[bytes, object]:
    name = argument.name or argument.token.lower()
    docs: dict[bytes, object] = {b"name": name.encode(), b"type": argument.type.encode()}
    if argument.type == "key":
        docs[b"key_spec_index"] = 0
    if argument.token:
        docs[b"token"] = argument.token.encode()
    flags = [flag for flag in ("optional", "multiple") if getattr(argument, flag)]
    if flags:
        docs[b"flags"] = SetReply(flags)
    return docs
