"""Error replies in Redis's own words, so that clients which look at the words find them."""

from __future__ import annotations

from handlers.resp.parser import Command
from handlers.resp.replies import CommandError

_SHOWN = 128


def unknown_command(command: Command) -> CommandError:
    """Redis's answer to a command that is not in the table."""
    name = command[0][:_SHOWN].decode("utf-8", "backslashreplace")
    shown, room = "", _SHOWN
    for argument in command[1:]:
        if room <= 0:
            break
        shown += f"'{argument[:room].decode('utf-8', 'backslashreplace')}' "
        room = _SHOWN - len(shown)
    return CommandError(f"ERR unknown command '{name}', with args beginning with: {shown}")


def unknown_subcommand(command: Command) -> CommandError:
    """Redis's answer to a subcommand that is not in the table."""
    container = command[0].upper().decode()
    name = command[1][:_SHOWN].decode("utf-8", "backslashreplace")
    return CommandError(f"ERR unknown subcommand '{name}'. Try {container} HELP.")


def wrong_arity(name: str) -> CommandError:
    """`name` as in the table: in lower case, with a bar before the subcommand."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")


def exec_refused(reason: CommandError) -> CommandError:
    """What EXEC says that is refused itself, and has ended the transaction."""
    return CommandError(f"EXECABORT Transaction discarded because of: {str(reason).removeprefix('ERR ')}")


def not_an_integer() -> CommandError:
    """An argument should have been a number of 64 bits."""
    return CommandError("ERR value is not an integer or out of range")


def must_be_positive() -> CommandError:
    """A count below zero."""
    return CommandError("ERR value is out of range, must be positive")


def syntax_error() -> CommandError:
    """Words that make no sense where they stand."""
    return CommandError("ERR syntax error")


def out_of_range() -> CommandError:
    """A number that is one, but larger than can be."""
    return CommandError("ERR value is out of range")


def invalid_cursor() -> CommandError:
    """A cursor that no scan can have returned."""
    return CommandError("ERR invalid cursor")
