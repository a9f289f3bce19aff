"""The command table: the commands of each mode, their syntax, rights and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pressure_server.net.command_table import AnyFunction, TableEntry, markdown, parse_rights, statistics_of

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

    def keys_of(self, words: list[bytes]) -> list[bytes]:
        """Return the words that are keys or queue names."""
        return words[self.keys]


COMMANDS: dict[str, dict[bytes, Command]] = {mode: {} for mode in MODES}


def command(
    syntax: str,
    summary: str,
    *,
    modes: tuple[str, ...],
    needs: str,
    repeated: Callable[..., None] | None = None,
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that enters a function into the tables of these modes as a command.

    `syntax` is the command's name and its words: <word>, [<word>] if optional, <word>* for one or more. The
    first word called <queue> or <key> is a queue or a key. `needs` are the rights of users.py that a user
    must have, or `nothing`. `repeated` executes many equal requests at once. Raise ValueError for an unknown
    right.
    """
    name, *arguments = syntax.split()
    required = [argument for argument in arguments if not argument.startswith("[")]
    is_open = any(argument.strip("[]").endswith("*") for argument in arguments)
    called = [argument.strip("[]<>*") for argument in arguments]
    first = next((at for at, one in enumerate(called, 1) if one in ("queue", "key")), 0)
    takes_many = first and arguments[first - 1].strip("[]").endswith("*")
    keys = slice(first, (None if takes_many else first + 1) if first else 0)

    def enter(function: AnyFunction) -> AnyFunction:
        entry = Command(
            name=name,
            syntax=syntax,
            summary=summary,
            function=function,
            needs=parse_rights(needs, name),
            least=1 + len(required),
            most=inf if is_open else 1 + len(arguments),
            statistics=statistics_of(PROTOCOL, name),
            repeated=repeated,
            keys=keys,
        )
        for mode in modes:
            COMMANDS[mode][name.encode()] = entry
        return function

    return enter


def commands_markdown() -> str:
    """Return the tables of docs/reference/memcached.md, one for each mode."""
    tables = (markdown(title, COMMANDS[mode].values()) for mode, title in _TITLES.items())
    return "\n".join(line for table in tables for line in table)
