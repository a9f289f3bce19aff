"""The command table of a protocol: what each command is called, takes, does and needs."""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from pressure_server.auth.users import RIGHTS, User
from pressure_server.net.command_statistics import CommandStatistics

# A function of a client and its request. It calls the client's `reply` or `submit`, or returns a coroutine,
# whose value is encoded as the reply.
Function = Callable[..., Coroutine[Any, Any, Any] | None]
AnyFunction = TypeVar("AnyFunction", bound=Function)


class Refusal(Enum):
    """Why a user may not execute a command: the name of the count of such refusals in INFO."""

    COMMAND = "cmd"
    QUEUE = "key"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableEntry:
    """A command in the table.

    A request has `least` to `most` words, among them the command's name. `needs` are the rights that its user
    must have. `repeated` executes many equal requests at once, faster than one by one.
    """

    name: str
    syntax: str
    summary: str
    function: Function
    needs: frozenset[str]
    least: int
    most: float
    statistics: CommandStatistics
    repeated: Function | None = None

    def accepts(self, words: int) -> bool:
        """Return whether a request may have this number of words, including the command's name."""
        return self.least <= words <= self.most

    def refusal(self, user: User, queues: Callable[[], Iterable[bytes]] | None) -> Refusal | None:
        """Return why the user may not execute the command on these queues; None if it may.

        `queues` returns those that the request names. It is None if the request acts on the whole server: to
        administer that, a user needs the right to all queues. To read it, a user does not: commands that list
        queues show only those that the user may use.

        If the queues do not matter, the command becomes one of `user.allowed`: do not ask again.
        """
        if not user.rights.issuperset(self.needs):
            return Refusal.COMMAND
        if user.has_all_queues or not self.needs:
            user.allowed.add(self)
            return None
        if queues is None:
            return Refusal.COMMAND if "administer" in self.needs else None
        return None if all(map(user.may_access, queues())) else Refusal.QUEUE


def parse_rights(needs: str, name: str) -> frozenset[str]:
    """Return the rights in a line such as `put get`; none for `nothing`. Raise ValueError for others."""
    found = frozenset(() if needs == "nothing" else needs.split())
    if not found <= set(RIGHTS) or not needs:
        raise ValueError(f"{name} cannot need '{needs}'")
    return found


def summary_of(function: Function) -> str:
    """Return the docstring of a command's function in one line: it describes the command in the reference.

    A compiled function has none.
    """
    return " ".join((function.__doc__ or "").split())


def markdown(title: str, entries: Iterable[TableEntry]) -> list[str]:
    """Return the lines of a table of commands for docs/reference."""
    lines = [f"### {title}", "", "| command | what it does | needs |", "|---|---|---|"]
    for entry in entries:
        syntax = entry.syntax.replace("|", "\\|")
        needs = ", ".join(right for right in RIGHTS if right in entry.needs)
        lines.append(f"| `{syntax}` | {entry.summary} | {needs} |")
    return [*lines, ""]
