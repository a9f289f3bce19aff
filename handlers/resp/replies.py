"""The reply encoder: values in, bytes out, for RESP2 and RESP3. Sans-IO.

None is null, str a simple string, bytes a bulk string, an exception an error. The classes below are for
replies that have no type in Python. Error replies have Redis's texts, which clients may compare.
"""

from collections.abc import Callable
from typing import Any

from handlers.resp.parser import Words
from pressure_server.errors import CommandError, PressureError
from pressure_server.words import MAX_SHOWN

OK = "OK"

NULL = {2: b"$-1\r\n", 3: b"_\r\n"}
NULL_ARRAY = {2: b"*-1\r\n", 3: b"_\r\n"}


class NullArray:
    """A null array in RESP2, null in RESP3."""


class Raw(bytes):
    """A reply that is already encoded."""


class SetReply(list[Any]):
    """A set in RESP3, an array in RESP2."""


class Text(bytes):
    """A verbatim string in RESP3, a bulk string in RESP2."""


class Integers(dict[Any, bytes]):
    """A table of encoded entries of Operation.results: integers, and errors of single commands."""

    def __missing__(self, value: Any) -> bytes:
        """Encode a value that is not in the table. Do not add it."""
        return b":%d\r\n" % value if isinstance(value, int) else error(value)


INTEGERS = Integers({value: b":%d\r\n" % value for value in range(1024)})


def set_sign(protocol: int) -> bytes:
    """Return the first byte of a set. RESP2 has no sets, so the reply is an array."""
    return b"~" if protocol == 3 else b"*"


def bulk(value: bytes) -> bytes:
    """Return a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def error(value: Exception) -> bytes:
    """Return an error reply. Its text may quote a client, so line breaks become spaces."""
    text = f"{value.code} {value}" if isinstance(value, PressureError) else str(value)
    return b"-" + text.replace("\r", " ").replace("\n", " ").encode("utf-8", "backslashreplace") + b"\r\n"


def encode(value: Any, protocol: int) -> bytes:
    """Return a value's reply in RESP version `protocol` (2 or 3). Raise TypeError for other types."""
    parts: list[bytes] = []
    _append(parts, value, protocol)
    return b"".join(parts)


def _append(parts: list[bytes], value: Any, protocol: int) -> None:
    for kind in type(value).__mro__:
        if kind in _ENCODERS:
            _ENCODERS[kind](parts, value, protocol)
            return
    raise TypeError(f"no reply for {type(value).__name__}")


def _append_dict(parts: list[bytes], value: dict[Any, Any], protocol: int) -> None:
    parts.append(b"%%%d\r\n" % len(value) if protocol == 3 else b"*%d\r\n" % (2 * len(value)))
    for key, item in value.items():
        _append(parts, key, protocol)
        _append(parts, item, protocol)


def _append_items(sign: bytes, parts: list[bytes], value: list[Any], protocol: int) -> None:
    parts.append(b"%b%d\r\n" % (sign, len(value)))
    for item in value:
        if type(item) is bytes:
            parts.append(b"$%d\r\n%b\r\n" % (len(item), item))
        else:
            _append(parts, item, protocol)


_ENCODERS: dict[type, Callable[[list[bytes], Any, int], None]] = {
    type(None): lambda parts, _, protocol: parts.append(NULL[protocol]),
    NullArray: lambda parts, _, protocol: parts.append(NULL_ARRAY[protocol]),
    int: lambda parts, value, _: parts.append(b":%d\r\n" % value),
    bytes: lambda parts, value, _: parts.append(bulk(value)),
    Raw: lambda parts, value, _: parts.append(value),
    Text: lambda parts, value, protocol: parts.append(
        bulk(value) if protocol == 2 else b"=%d\r\ntxt:%b\r\n" % (len(value) + 4, value)
    ),
    str: lambda parts, value, _: parts.append(b"+%b\r\n" % value.encode()),
    Exception: lambda parts, value, _: parts.append(error(value)),
    list: lambda parts, value, protocol: _append_items(b"*", parts, value, protocol),
    tuple: lambda parts, value, protocol: _append_items(b"*", parts, value, protocol),
    SetReply: lambda parts, value, protocol: _append_items(set_sign(protocol), parts, value, protocol),
    dict: _append_dict,
}


class UnknownCommandError(CommandError):
    """The error for a command that is not in the table. The others are arguments of UnknownCommands.note."""

    def __init__(self, text: str, name: Words, logged: str, *, loses_work: bool = False) -> None:
        super().__init__(text)
        self.name = name
        self.logged = logged
        self.loses_work = loses_work


def unknown_command(command: Words) -> CommandError:
    """Return the error for a command that is not in the table."""
    name = command[0][:MAX_SHOWN].decode("utf-8", "backslashreplace")
    shown, room = "", MAX_SHOWN
    for argument in command[1:]:
        if room <= 0:
            break
        shown += f"'{argument[:room].decode('utf-8', 'backslashreplace')}' "
        room = MAX_SHOWN - len(shown)
    text = f"ERR unknown command '{name}', with args beginning with: {shown}"
    return UnknownCommandError(text, command[:1], "-ERR unknown command")


def unknown_subcommand(command: Words) -> CommandError:
    """Return the error for a subcommand that is not in the table."""
    container = command[0].upper().decode()
    name = command[1][:MAX_SHOWN].decode("utf-8", "backslashreplace")
    text = f"ERR unknown subcommand '{name}'. Try {container} HELP."
    return UnknownCommandError(text, command[:2], "-ERR unknown subcommand")


def wrong_arity(name: str) -> CommandError:
    """Return the error for a wrong number of words. `name` is the name in the table."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")


def too_many_arguments(command: Words) -> CommandError:
    """Return the error for a subcommand with more words than it takes, as some in Redis have it."""
    name, container = command[1].decode("utf-8", "replace"), command[0].upper().decode()
    return CommandError(
        f"ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."
    )
