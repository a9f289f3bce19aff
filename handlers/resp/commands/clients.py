"""The lines of CLIENT LIST, and the filters of CLIENT KILL."""

from __future__ import annotations

from collections.abc import Callable

from handlers.resp.client import RespClient
from handlers.resp.errors import syntax_error
from handlers.resp.parser import integer_from
from handlers.resp.replies import CommandError


def address_of(client: RespClient, *, ours: bool = False) -> str:
    """Return the client's address, or the server's if `ours` is set, in Redis's format."""
    name = client.transport.get_extra_info("sockname" if ours else "peername")
    if isinstance(name, tuple) and len(name) >= 2:
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    path = client.transport.get_extra_info("sockname")
    return f"{path if isinstance(path, str) else ''}:0"


def client_line(client: RespClient) -> bytes:
    """Return the client's line in CLIENT LIST, without the line break."""
    library = client.library or (b"", b"")
    now = client.clients.now
    fields: dict[str, object] = {
        "id": client.id,
        "addr": address_of(client),
        "laddr": address_of(client, ours=True),
        "name": client.name.decode(),
        "age": max(0, int(now - client.since)),
        "idle": max(0, int(now - client.active)),
        "flags": _flags(client),
        "db": client.database.database_number,
        "sub": 0,
        "psub": 0,
        "multi": -1 if client.transaction is None else len(client.transaction.queued),
        "obl": client.transport.get_write_buffer_size(),
        "user": client.user_name,
        "resp": client.protocol,
        "lib-name": library[0].decode(),
        "lib-ver": library[1].decode(),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()).encode()


def _flags(client: RespClient) -> str:
    flags = "b" * client.is_waiting + "x" * (client.transaction is not None)
    return flags or "N"


def kill_filter(words: list[bytes]) -> tuple[Callable[[RespClient], bool], bool]:
    """Return the filter for the words after CLIENT KILL, and whether it spares the caller's connection."""
    if len(words) == 1:
        address = words[0].decode("utf-8", "backslashreplace")
        return (lambda client: address_of(client) == address), False
    if len(words) % 2:
        raise syntax_error()
    tests: list[Callable[[RespClient], bool]] = []
    skip_me = True
    for name, value in zip(words[::2], words[1::2], strict=True):
        text = value.decode("utf-8", "backslashreplace")
        match name.upper():
            case b"ID":
                number = integer_from(value)
                if number is None or number < 1:
                    raise CommandError("ERR client-id should be greater than 0")
                tests.append(lambda client, number=number: client.id == number)  # type: ignore[misc] # mypy cannot infer lambdas with defaults
            case b"ADDR":
                tests.append(lambda client, text=text: address_of(client) == text)  # type: ignore[misc] # as above
            case b"LADDR":
                tests.append(lambda client, text=text: address_of(client, ours=True) == text)  # type: ignore[misc] # as above
            case b"SKIPME" if value.lower() in (b"yes", b"no"):
                skip_me = value.lower() == b"yes"
            case _:
                raise syntax_error()
    return (lambda client: all(test(client) for test in tests)), skip_me
