"""The cases: for each command of the table, the largest requests that the limits let through."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from typing import Any

from handlers.resp import commands
from handlers.resp.parser import ARGUMENT_COST, MAX_ARGUMENTS
from handlers.resp.syntax import Argument
from handlers.resp.table import COMMANDS, Command

KINDS = ("fifo", "jobs", "lifo", "random", "log", "group")
MAX_PATTERN = 4096
# Commands that end the connection, or reply with a stream.
STREAMS = {"quit", "monitor"}
# Commands that are not sent in a transaction: they end it, are not queued in one, or delete, again and again,
# what the others put and wait for.
_NOT_IN_MULTI = {"multi", "exec", "discard", "reset", "watch", "flushdb", "flushall"}


@dataclass(frozen=True)
class Size:
    """How large the requests and the queues are. `--max-message-bytes` of the server is `message`."""

    words: int = MAX_ARGUMENTS
    request: int = 96 << 20
    message: int = 32 << 20
    queued: int = 100_000
    queues: int = 5_000
    transaction: int = 10_000


SMALL = Size(words=300, request=1 << 20, message=4096, queued=100, queues=10, transaction=20)


@dataclass(frozen=True)
class Case:
    """A request. `kind` is the kind of the queues that it names; `about` says what is large in it.

    If there are `times`, it is sent so often between MULTI and EXEC.
    """

    command: Command
    kind: str
    about: str
    words: Callable[[], list[bytes]]
    times: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.command.name.upper().replace("|", " "), self.kind, self.about)))


def queue(kind: str) -> bytes:
    """Return the name of the queue of a kind; `fat` is a list of a few messages of the largest size."""
    return b"log+g" if kind == "group" else kind.encode()


def numbered(prefix: bytes) -> Iterator[bytes]:
    number = 0
    while True:
        yield b"%b%d" % (prefix, number)
        number += 1


def patterns(longest: int = MAX_PATTERN) -> dict[str, bytes]:
    """Return patterns that take the longest to match with texts of many a."""
    return {
        "literal": b"*" + b"a" * (longest - 3) + b"b*",
        "questions": b"*" + b"a?" * ((longest - 4) // 2) + b"b*",
        "classes": b"*" + b"[a-b]" * ((longest - 4) // 5) + b"c*",
        "stars": b"*a" * ((longest - 2) // 2) + b"b",
        "stars and classes": b"*[a-y]" * ((longest - 2) // 6) + b"b",
        "distinct classes": b"".join(
            b"*[%c-%c]" % (33 + i % 50, 90 + i % 37) for i in range((longest - 2) // 6)
        ),
    }


_TEXTS = {
    "timeout": b"0.001", "seconds": b"0.001", "cursor": b"0", "start": b"0", "stop": b"-1", "index": b"-1",
    "offset": b"0", "count": b"9007199254740992", "limit": b"0", "priority": b"1", "bound": b"0",
    "numreplicas": b"0", "protover": b"2", "token": b"t", "group": b"g", "consumer": b"c", "rank": b"-1",
    "length": b"0", "id": b"1", "name": b"n", "queue": b"dead", "client-type": b"replica", "client-id": b"1",
    "ip:port": b"127.0.0.1:1", "addr": b"127.0.0.1:1", "yes/no": b"yes", "type": b"set", "bytes": b"0",
    "attribute": b"LIB-NAME", "username": b"u", "password": b"p", "clientname": b"n", "connection-name": b"n",
    "value": b"v", "destination": b"destination", "section": b"all", "parameter": b"*", "command": b"get",
    "command-name": b"get", "ignored": b"i", "argument": b"a",
}  # fmt: skip
# Words that are large: these become messages of the largest size.
_MESSAGES = {"message", "member", "element"}
# Arguments of which a request may have many, and the beginning of each.
_MANY = {
    "key": b"k", "member": b"", "element": b"", "id": b"", "client-id": b"", "parameter": b"*a",
    "command": b"c", "command-name": b"n", "section": b"s", "ignored": b"i", "argument": b"a",
}  # fmt: skip


def _text(argument: Argument, kind: str, pattern: bytes, message: bytes) -> bytes:
    name = argument.name
    if name in ("key", "source"):
        return queue(kind)
    if name == "pattern":
        return pattern
    if name in _MESSAGES:
        return message
    return _TEXTS.get(name) or name.split("|")[0].encode()


def _words_of(
    command: Command,
    kind: str,
    *,
    many: Argument | None = None,
    some: list[bytes] | None = None,
    options: tuple[Argument, ...] = (),
    pattern: bytes = b"*",
    message: bytes = b"m",
) -> list[bytes]:
    """Return a request: `some` words for the argument `many`, and of the optional arguments `options`."""
    words = [word.encode() for word in command.name.upper().split("|")]
    for argument in command.arguments:
        if argument.optional and argument not in options and argument is not many:
            continue
        words += argument.token.encode().split()
        if argument is many and some is not None:
            words += some
        elif argument.name == "numkeys":
            words.append(b"%d" % (len(some) if some is not None else 1))
        elif argument.name:
            words.append(_text(argument, kind, pattern, message))
    return words


def cases(size: Size, kinds: tuple[str, ...] = KINDS) -> Iterator[Case]:
    """Yield the cases of all commands."""
    commands.load()
    for container in COMMANDS.values():
        for command in container.subcommands.values() or [container]:
            if command.name in STREAMS:
                continue
            for kind in (*kinds, "fat") if command.names_queues else ("",):
                yield from _of(command, kind, size)


def _of(command: Command, kind: str, size: Size) -> Iterator[Case]:
    def case(about: str, **options: Any) -> Case:
        return Case(command, kind, about, partial(_words_of, command, kind, **options))

    names = {argument.name for argument in command.arguments}
    yield case("")
    if command.name not in _NOT_IN_MULTI and kind in ("", "fifo", "jobs"):
        yield replace(case("in MULTI"), times=size.transaction)
    if command.name == "client|kill":
        return  # its filters choose the clients that measure
    if command.names_queues and kind not in ("fifo", "fat") and not names & {"key", "source"}:
        return
    if "pattern" in names:
        tokens = tuple(one for one in command.arguments if one.name in ("pattern", "count"))
        for about, pattern in patterns().items():
            yield case(f"pattern of {about}", pattern=pattern, options=tokens)
    if names & _MESSAGES:
        yield case("large message", message=b"a" * size.message)
    for argument in command.arguments:
        if argument.optional and not argument.multiple and argument.name not in ("pattern", "seconds"):
            yield case(f"with {argument.token or argument.name}", options=(argument,))
        if argument.multiple:
            prefix = _MANY[argument.name]
            first = _text(argument, kind, b"*", b"m")
            yield Case(command, kind, "many equal", _many(command, kind, argument, repeat(first), size))
            distinct = numbered(prefix)
            yield Case(command, kind, "many distinct", _many(command, kind, argument, distinct, size))
            if argument.name == "parameter":
                for about, pattern in patterns().items():
                    some = [pattern] * 64
                    yield case(f"64 patterns of {about}", many=argument, some=some)


def _many(
    command: Command, kind: str, argument: Argument, texts: Iterator[bytes], size: Size
) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        some: list[bytes] = []
        left = size.request - (64 << 10)
        for text in islice(texts, size.words - 16):
            left -= ARGUMENT_COST + len(text)
            if left < 0:
                break
            some.append(text)
        return _words_of(command, kind, many=argument, some=some)

    return make
