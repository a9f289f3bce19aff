"""The options of a command: a table of their names, and the values that a client gives them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pressure_server.errors import CommandError
from pressure_server.words import shown_word, syntax_error

# By name, one or more words in upper case: the parser of the option's value, or None if it has no value.
Parsers = Mapping[bytes, Callable[[bytes], Any] | None]


class OptionTable:
    """The options that a command takes.

    If one is given again, the last value counts with `last_counts`; otherwise that is an error. For a command
    `of_redis` the text of an error is Redis's, which does not say what is wrong.
    """

    def __init__(self, parsers: Parsers, *, last_counts: bool = False, of_redis: bool = False) -> None:
        self._known = b", ".join(parsers).decode()
        self._last_counts = last_counts
        self._of_redis = of_redis
        # By the first word: the name, its other words, and the parser.
        self._options: Final = {
            name.split()[0]: (name, name.split()[1:], parse) for name, parse in parsers.items()
        }

    def values(self, words: list[bytes]) -> dict[bytes, Any]:
        """Return the values of the options by name; True for those without a value.

        Raise CommandError for an option that is unknown, lacks its value or is given again. Parsers may raise
        it, too. As in Redis, the first error from the left is the one that is raised.
        """
        found: dict[bytes, Any] = {}
        rest = iter(words)
        for word in rest:
            option = self._options.get(word.upper())
            if option is None:
                raise self._error(f"{shown_word(word)} is none of the options {self._known}")
            name, others, parse = option
            if name in found and not self._last_counts:
                raise self._error(f"{name.decode()} is given twice")
            for other in others:
                if next(rest, b"").upper() != other:
                    raise self._error(f"write {name.decode()}")
            if parse is None:
                found[name] = True
                continue
            value = next(rest, None)
            if value is None:
                raise self._error(f"{name.decode()} needs a value after it")
            found[name] = parse(value)
        return found

    def after_names(self, words: list[bytes]) -> tuple[list[bytes], dict[bytes, Any]]:
        """Return the names before the first option, of which there is at least one, and the options' values.

        Raise CommandError as `values` does.
        """
        for at in range(1, len(words)):
            if words[at].upper() in self._options:
                return words[:at], self.values(words[at:])
        return words, {}

    def _error(self, why: str) -> CommandError:
        return syntax_error("" if self._of_redis else why)
