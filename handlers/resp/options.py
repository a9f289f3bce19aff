"""Options of commands: words after the arguments, some followed by a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from handlers.resp.errors import syntax_error

# By name, one or more words in upper case: the parser of the option's value, or None if it has no value.
Parsers = Mapping[bytes, Callable[[bytes], Any] | None]


def options_in(words: list[bytes], parsers: Parsers) -> dict[bytes, Any]:
    """Return the values of the options by name; True for those without a value.

    Raise CommandError for an option that is unknown, repeated, or lacks its value. Parsers may raise it, too.
    """
    found: dict[bytes, Any] = {}
    by_first_word = {name.split()[0]: name for name in parsers}
    rest = iter(words)
    for word in rest:
        name = by_first_word.get(word.upper(), b"")
        others = name.split()[1:]
        if not name or name in found or [next(rest, b"").upper() for _ in others] != others:
            raise syntax_error()
        parse = parsers[name]
        if parse is None:
            found[name] = True
            continue
        value = next(rest, None)
        if value is None:
            raise syntax_error()
        found[name] = parse(value)
    return found


def one_of(**choices: Any) -> Callable[[bytes], Any]:
    """Return the parser of a value that is one of these words, in upper case here and in any case there."""
    values = {word.encode(): value for word, value in choices.items()}

    def parse(word: bytes) -> Any:
        if word.upper() not in values:
            raise syntax_error()
        return values[word.upper()]

    return parse
