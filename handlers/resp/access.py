"""Which queues a command names, and whether its user may use them so: asked of every command."""

from __future__ import annotations

from enum import Enum

from handlers.resp.arguments import numbered_keys
from handlers.resp.client import RespClient, Spec
from handlers.resp.parser import Command
from handlers.resp.replies import CommandError
from handlers.resp.syntax import position_of_numkeys
from handlers.resp.table import find_subcommand
from pressure_server.auth.users import NOBODY, User

# Redis's flag of commands that need no login.
_BEFORE_LOGIN = "no_auth"
_CHANGED = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
    "This command is no longer allowed for the following reason: "
)


def queues_of(spec: Spec, words: Command) -> list[bytes]:
    """The words that name queues. Raises CommandError where their number is no number, or too large."""
    counted_at = position_of_numkeys(spec.arguments, 1)
    if counted_at:
        return numbered_keys(words[counted_at:])[0]
    first, last, step = spec.keys
    return words[first : (last + 1 if last > 0 else len(words) + last + 1) : step] if first else []


class Refusal(Enum):
    """Why a user may not do a command: in INFO's words, Redis's, and Redis's where EXEC finds out."""

    COMMAND = (
        "cmd",
        "this user has no permissions to run the '%s' command",
        "no permission to execute the command or subcommand",
    )
    QUEUE = (
        "key",
        "this user has no permissions to access one of the keys used as arguments",
        "no permission to touch the specified keys",
    )


def refusal(user: User, spec: Spec, words: Command) -> Refusal | None:
    """Why the user may not do the command, or None. Raises CommandError where it makes no sense.

    Needs without a queue are about the whole server: to administer that takes the right to all queues. To
    read does not: commands that list queues list those that the user may know of.
    """
    if not user.may.issuperset(spec.needs):
        return Refusal.COMMAND
    if user.has_all_queues or not spec.needs:
        return None
    if not spec.is_on_queues:
        return Refusal.COMMAND if "administer" in spec.needs else None
    return None if all(map(user.admits, queues_of(spec, words))) else Refusal.QUEUE


def check(client: RespClient, spec: Spec, words: Command, *, by_exec: bool = False) -> None:
    """Whether the client may do the command, now; `by_exec` if it could when the command was queued.

    Raises CommandError.
    """
    if spec.subcommands and len(words) > 1:
        spec = find_subcommand(words)
    if client.user is NOBODY:
        if _BEFORE_LOGIN not in spec.flags:
            raise CommandError("NOAUTH Authentication required.")
        return
    why = refusal(client.user, spec, words)
    if why is None:
        return
    statistic, text, changed = why.value
    client.clients.access.refused[statistic] += 1
    if by_exec:
        raise CommandError(f"NOPERM {_CHANGED}{changed}")
    raise CommandError(f"NOPERM {text.replace('%s', spec.name)}")
