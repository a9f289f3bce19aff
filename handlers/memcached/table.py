"""The command table: which commands there are in each mode, what they need, and who does them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from handlers.memcached.parser import Repeated, Request
from pressure_server.auth.users import RIGHTS

if TYPE_CHECKING:
    from handlers.memcached.connection import MemcachedConnection

QUEUE, KV = "queue", "kv"
MODES = (QUEUE, KV)

Function = Callable[["MemcachedConnection", Request], Coroutine[Any, Any, bytes] | None]
ForRepeated = Callable[["MemcachedConnection", Repeated], None]


@dataclass(frozen=True, slots=True)
class Spec:
    """One command.

    `least` and `most` are how many words it has, its name counted (None: any number). `keys` is which of them
    are queues, or keys. `needs` is what a user must have a right to. `repeated` does many equal ones at once.
    """

    name: str
    syntax: str
    summary: str
    function: Function
    least: int
    most: int | None
    needs: frozenset[str]
    keys: slice
    repeated: ForRepeated | None

    @property
    def takes_many(self) -> bool:
        """Whether it may have any number of keys."""
        return self.keys.stop is None

    def keys_of(self, words: list[bytes]) -> list[bytes]:
        """The words that are keys."""
        return words[self.keys]


COMMANDS: dict[str, dict[bytes, Spec]] = {mode: {} for mode in MODES}


def command(
    syntax: str,
    summary: str,
    *,
    modes: tuple[str, ...],
    needs: str,
    repeated: ForRepeated | None = None,
) -> Callable[[Function], Function]:
    """Enter a command into the table of these modes.

    `syntax` is its name and its words: <word>, [<word>] where it may be left out, and <word>* for one or
    more. The first that is called <queue> or <key> is one.
    """
    rights = frozenset(needs.replace("nothing", "").split())
    if not rights <= set(RIGHTS):
        raise ValueError(f"{syntax}: no such right")
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
        )
        for mode in modes:
            COMMANDS[mode][name.encode()] = spec
        return function

    return enter
