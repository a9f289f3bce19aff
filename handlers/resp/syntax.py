"""The parser of syntax lines in the notation of Redis's documentation: `key [count] member [member ...]`.

A word in upper case is a token; in brackets, several in a row are one. `THIS|THAT` is an argument with one of
these values.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_TOKEN = re.compile(r"\[|\]|[^\s\[\]]+")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. `token` is the word before it; an argument without a `name` is its token alone."""

    name: str
    token: str = ""
    optional: bool = False
    multiple: bool = False

    @property
    def words(self) -> int:
        """The number of words in a request."""
        return len(self.token.split()) + (1 if self.name else 0)

    @property
    def type(self) -> str:
        """The argument's type, as COMMAND DOCS names it."""
        if self.name in _KEYS:
            return "key"
        if not self.name:
            return "pure-token"
        if self.name == "pattern":
            return "pattern"
        return "integer" if self.name in _INTEGERS else "string"


_KEYS = {"key", "source", "destination"}
_INTEGERS = {
    "numkeys", "bound", "limit", "count", "priority", "id", "cursor", "start", "stop", "index", "seconds",
    "protover", "client-id",
}  # fmt: skip


def parse_syntax(line: str) -> tuple[Argument, ...]:
    """Return the arguments of a command. `name [name ...]` is one argument that may be repeated."""
    return tuple(_parse(iter(_TOKEN.findall(line)), optional=False))


def _parse(words: Iterator[str], *, optional: bool) -> list[Argument]:
    """Return the arguments up to the bracket that closes this group."""
    arguments: list[Argument] = []
    token = ""
    for word in words:
        is_token = word.isupper() and "|" not in word
        if token and optional and is_token:
            token += f" {word}"
            continue
        if token and (is_token or word in "[]"):
            arguments.append(Argument("", token, optional))
            token = ""
        if word == "]":
            break
        if word == "[":
            group = _parse(words, optional=True)
            if group[-1].name == "...":
                repeated = group[0]
                if arguments and arguments[-1].name == repeated.name:
                    repeated = arguments.pop()
                group = [replace(repeated, multiple=True)]
            arguments += group
        elif is_token:
            token = word
        else:
            arguments.append(Argument(word, token, optional))
            token = ""
    if token:
        arguments.append(Argument("", token, optional))
    return arguments


def arity_of(arguments: tuple[Argument, ...], named: int) -> int:
    """Return Redis's arity: the number of words, `named` of them for the name; negative for a minimum."""
    needed = named + sum(argument.words for argument in arguments if not argument.optional)
    return -needed if any(argument.optional or argument.multiple for argument in arguments) else needed


def position_of_numkeys(arguments: tuple[Argument, ...], named: int) -> int:
    """Return the position of numkeys, the number of the keys that follow it; 0 if there is none."""
    position = named
    for argument in arguments:
        if argument.name == "numkeys":
            return position
        position += argument.words
    return 0


def option_tokens(arguments: tuple[Argument, ...]) -> set[bytes]:
    """Return the first words of options, which end the keys of a command with any number of keys."""
    options = (argument for argument in arguments if argument.optional and argument.token)
    return {argument.token.split()[0].encode() for argument in options}


def keys_of(arguments: tuple[Argument, ...], named: int) -> tuple[int, int, int]:
    """Return the positions of the first and last key, and the step between keys; zeros without keys.

    Options may follow any number of keys: see `option_tokens`.
    """
    if position_of_numkeys(arguments, named):
        return (0, 0, 0)  # the positions depend on the request
    position, positions, behind = named, [], None
    for argument in arguments:
        if behind is not None and not argument.optional:
            behind += argument.words
        if argument.type == "key":
            positions.append(position)
            if argument.multiple:
                behind = 0
        position += argument.words
    if not positions:
        return (0, 0, 0)
    return (positions[0], positions[-1] if behind is None else -1 - behind, 1)
