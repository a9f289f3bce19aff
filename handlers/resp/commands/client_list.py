"""The lines of CLIENT LIST, and the filters of CLIENT KILL, for the connections of all protocols."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from handlers.resp.session import RespSession
from pressure_server.errors import CommandError
from pressure_server.net.client_facts import ClientFacts
from pressure_server.words import integer_from, syntax_error

# Redis's types of clients. All clients of this server are normal ones.
_TYPES = (b"normal", b"master", b"replica", b"slave", b"pubsub")
# The most queues in the field `waiting`.
_MAX_WAITING = 16


def client_line(facts: ClientFacts) -> bytes:
    """Return the client's line in CLIENT LIST, without the line break.

    Fields of Redis without a meaning here have the value that they have for an idle client of Redis.
    """
    commands = facts.details.get("multi", -1)  # since MULTI
    flags = "O" * facts.is_monitor + "x" * (commands >= 0) + "b" * facts.is_waiting or "N"
    events = "r" * facts.is_read + "w" * bool(facts.unsent_bytes)
    # Names of queues without spaces and commas, and how many more there are.
    waiting = [quote(queue, safe="") for queue in facts.waits_on[:_MAX_WAITING]]
    if more := len(facts.waits_on) - len(waiting):
        waiting.append(f"+{more}")
    return (
        f"id={facts.id} addr={facts.address} laddr={facts.local_address} fd={facts.file_descriptor} "
        f"name={facts.name} age={facts.age} idle={facts.idle} flags={flags} db={facts.database} sub=0 psub=0 "
        f"ssub=0 multi={commands} qbuf={facts.unparsed_bytes} qbuf-free=0 argv-mem=0 "
        f"multi-mem={facts.details.get('multi-mem', 0)} rbs=0 rbp=0 obl={facts.unsent_bytes} oll=0 omem=0 "
        f"tot-mem={facts.held_bytes} events={events} cmd={facts.command or 'NULL'} user={facts.user} "
        f"redir=-1 resp={facts.details.get('resp', 2)} lib-name={facts.library_name} "
        f"lib-ver={facts.library_version} protocol={facts.protocol} waiting={','.join(waiting)}"
    ).encode()


def of_type(word: bytes) -> bool:
    """Return whether a client of this server has the type. Raise CommandError if Redis has no such type."""
    if word.lower() not in _TYPES:
        raise CommandError(f"ERR Unknown client type '{text_of(word)}'")
    return word.lower() == _TYPES[0]


def kill_filter(words: list[bytes], client: RespSession) -> tuple[Callable[[ClientFacts], bool], bool]:
    """Return the filter for the words after CLIENT KILL, and whether it spares the client's connection."""
    if len(words) == 1:
        address = text_of(words[0])
        return (lambda one: one.address == address), False
    if len(words) % 2:
        raise syntax_error()
    tests: list[Callable[[ClientFacts], bool]] = []
    skip_me = True
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name.upper() == b"SKIPME" and value.lower() in (b"yes", b"no"):
            skip_me = value.lower() == b"yes"
        else:
            tests.append(_test(name.upper(), value, client))
    return (lambda one: all(test(one) for test in tests)), skip_me


def _test(name: bytes, value: bytes, client: RespSession) -> Callable[[ClientFacts], bool]:
    """Return one test of CLIENT KILL."""
    text, number = text_of(value), integer_from(value)
    match name:
        case b"ID":
            if number is None or number < 1:
                raise CommandError("ERR client-id should be greater than 0")
            return lambda one: one.id == number
        case b"ADDR":
            return lambda one: one.address == text
        case b"LADDR":
            return lambda one: one.local_address == text
        case b"TYPE":
            is_normal = of_type(value)
            return lambda _: is_normal
        case b"USER":
            if text not in client.clients.access.users.by_name:
                raise CommandError(f"ERR No such user '{text}'")
            return lambda one: one.user == text
        case b"MAXAGE":
            if number is None:
                raise CommandError("ERR maxage is not an integer or out of range")
            if number < 1:
                raise CommandError("ERR maxage should be greater than 0")
            return lambda one: one.age >= number
        case _:
            raise syntax_error()


def text_of(word: bytes) -> str:
    """Return a word as text for an error, or to compare it."""
    return word.decode("utf-8", "backslashreplace")
