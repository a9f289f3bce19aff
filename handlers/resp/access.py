"""Access checks of commands: the rights that a command needs, and the queues that it names."""

from __future__ import annotations

from enum import Enum

from handlers.resp.arguments import numbered_keys
from handlers.resp.client import RespClient, Spec
from handlers.resp.parser import Command
from handlers.resp.replies import CommandError
from handlers.resp.syntax import option_tokens, position_of_numkeys
from handlers.resp.table import find_subcommand
from pressure_server.auth.users import NOBODY, User

# Redis's flag for commands that need no login.
_BEFORE_LOGIN = "no_auth"
_CHANGED = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
    "This command is no longer allowed for the following reason: "
)


def queues_of(spec: Spec, words: Command) -> list[bytes]:
    """Return the words that name queues. Raise CommandError if numkeys is not an integer, or too large."""
    counted_at = position_of_numkeys(spec.arguments, 1)
    if counted_at:
        return numbered_keys(words[counted_at:])[0]
    first, last, step = spec.keys
    keys = words[first : (last + 1 if last > 0 else len(words) + last + 1) : step] if first else []
    tokens = option_tokens(spec.arguments) if last < 0 else ()
    return keys[: next((at for at, word in enumerate(keys) if at and word.upper() in tokens), len(keys))]


class Refusal(Enum):
    """Why a user may not execute a command: the name in INFO, and Redis's texts for NOPERM and for EXEC."""

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
    """Return why the user may not execute the command, or None. Raise CommandError if numkeys is invalid.

    A command that names no queue acts on the whole server. To administer the server, a user needs the right
    to all queues. To read it, a user does not: commands that list queues show only those the user may use.
    """
    if not user.rights.issuperset(spec.needs):
        return Refusal.COMMAND
    if user.has_all_queues or not spec.needs:
        return None
    if not spec.names_queues:
        return Refusal.COMMAND if "administer" in spec.needs else None
    return None if all(map(user.may_access, queues_of(spec, words))) else Refusal.QUEUE


def check(client: RespClient, spec: Spec, words: Command, *, by_exec: bool = False) -> None:
    """Raise CommandError if the client may not execute the command now.

    `by_exec` selects the error text for a command that was allowed when it was queued.
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
