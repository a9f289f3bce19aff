"""The command table: the commands of each mode, their syntax, rights and functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from pressure_server.net.command_statistics import statistics_of
from pressure_server.net.command_table import AnyFunction, TableEntry, markdown, parse_rights, summary_of

PROTOCOL = "memcached"
# The version of memcached whose replies the handler follows. libmemcached refuses versions 0.x.
FOLLOWED_VERSION = "1.6.18"
QUEUE, KV = "queue", "kv"
MODES = (QUEUE, KV)
_TITLES = {QUEUE: "Queues (`mode=queue`)", KV: "Keys and values (`mode=kv`)"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command(TableEntry):
    """A command in the table. `keys` is the slice of the words that are keys or queue names."""

    keys: slice


COMMANDS: dict[str, dict[bytes, Command]] = {mode: {} for mode in MODES}


def _command(
    modes: tuple[str, ...], syntax: str, *, needs: str, summary: str = "", repeats: bool = False
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that enters a function into the tables of these modes as a command.

    `syntax` is the command's name and its words: <word>, [<word>] if optional, <word>* for one or more. The
    first word called <queue> or <key> is a queue or a key. `needs` are the rights of users.py that a user
    must have, or `nothing`. The `summary` for the reference is the function's docstring, unless it is given.
    If it `repeats`, the function also takes equal requests in a row. Raise ValueError for an unknown right.
    """
    name, *arguments = syntax.split()
    first = next((at for at, one in enumerate(arguments, 1) if one.startswith(("<queue>", "<key>"))), None)
    if first is None:
        keys = slice(0)
    else:
        keys = slice(first, None if arguments[first - 1].endswith("*") else first + 1)

    def enter(function: AnyFunction) -> AnyFunction:
        entry = Command(
            name=name,
            syntax=syntax,
            summary=summary or summary_of(function),
            function=function,
            needs=parse_rights(needs, name),
            least=1 + sum(not argument.startswith("[") for argument in arguments),
            most=inf if "*" in syntax else 1 + len(arguments),
            statistics=statistics_of(PROTOCOL, name),
            repeated=function if repeats else None,
            keys=keys,
        )
        for mode in modes:
            COMMANDS[mode][name.encode()] = entry
        return function

    return enter


command, queue_command, value_command = (partial(_command, modes) for modes in (MODES, (QUEUE,), (KV,)))


def commands_markdown() -> str:
    """Return the tables of docs/reference/memcached.md, one for each mode."""
    tables = (markdown(title, COMMANDS[mode].values()) for mode, title in _TITLES.items())
    return "\n".join(line for table in tables for line in table)
