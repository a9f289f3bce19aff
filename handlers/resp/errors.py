"""Error replies with Redis's texts, which clients may compare."""

from __future__ import annotations

from handlers.resp.parser import Words
from handlers.resp.replies import CommandError

_SHOWN = 128


class UnknownCommandError(CommandError):
    """The error for a command that is not in the table; `name` has its words."""

    def __init__(self, text: str, name: Words) -> None:
        super().__init__(text)
        self.name = name


def unknown_command(command: Words) -> CommandError:
    """Return the error for a command that is not in the table."""
    name = command[0][:_SHOWN].decode("utf-8", "backslashreplace")
    shown, room = "", _SHOWN
    for argument in command[1:]:
        if room <= 0:
            break
        shown += f"'{argument[:room].decode('utf-8', 'backslashreplace')}' "
        room = _SHOWN - len(shown)
    text = f"ERR unknown command '{name}', with args beginning with: {shown}"
    return UnknownCommandError(text, command[:1])


def unknown_subcommand(command: Words) -> CommandError:
    """Return the error for a subcommand that is not in the table."""
    container = command[0].upper().decode()
    name = command[1][:_SHOWN].decode("utf-8", "backslashreplace")
    return UnknownCommandError(f"ERR unknown subcommand '{name}'. Try {container} HELP.", command[:2])


def wrong_arity(name: str) -> CommandError:
    """Return the error for a wrong number of words. `name` is the name in the table."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")


def exec_refused(reason: CommandError) -> CommandError:
    """Return the error for an EXEC that was refused itself, which ends the transaction."""
    return CommandError(f"EXECABORT Transaction discarded because of: {str(reason).removeprefix('ERR ')}")


def not_an_integer() -> CommandError:
    """Return the error for an argument that is not a 64-bit integer."""
    return CommandError("ERR value is not an integer or out of range")


def must_be_positive() -> CommandError:
    """Return the error for a count that is negative or not an integer."""
    return CommandError("ERR value is out of range, must be positive")


def syntax_error() -> CommandError:
    """Return the error for words that the command does not accept at this place."""
    return CommandError("ERR syntax error")


def out_of_range() -> CommandError:
    """Return the error for an integer that is out of range."""
    return CommandError("ERR value is out of range")


def invalid_cursor() -> CommandError:
    """Return the error for a cursor that no scan can have returned."""
    return CommandError("ERR invalid cursor")
