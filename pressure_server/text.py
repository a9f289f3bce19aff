"""Text for people: names of queues and users, which are any bytes, and counts. Patterns of names. No I/O."""

import re
from collections.abc import Generator, Sequence
from itertools import groupby

from pressure_server.errors import PatternError

# In bytes. A compiled pattern takes about a hundred times its length in memory.
_MAX_PATTERN_BYTES = 4096
# The most bytes of a pattern and of a text that are matched at once, by one expression for the whole pattern.
_SHORT_PATTERN = 128
_SHORT_TEXT = 4096
# The most positions of a text at which one step looks for a part, and the bytes that it translates for it.
_AT_ONCE = 1 << 16
_MASKED_BYTES = 2 << 20
_BYTES = 256
_ANY = bytes(range(_BYTES))
_ONE = ord("1")


def printable(name: bytes, most: int = 128) -> str:
    """Return a name as printable text: the first `most` bytes, with undecodable bytes escaped."""
    text = name[:most].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text + "…" if len(name) > most else text


def counted(number: float, thing: str, things: str = "") -> str:
    """Return a number of things: "1 message", "2 messages". `things` is the plural, by default with an s."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {thing if number == 1 else things or f'{thing}s'}"


def reason_of(error: OSError) -> str:
    """Return why a call of the operating system has failed, without the number that Python puts before it."""
    return error.strerror or str(error) or type(error).__name__


class Glob:
    r"""A glob pattern with the meaning that it has in Redis (stringmatchlen in util.c).

    A pattern has `*`, `?`, `[a-z]`, `[^a]` and `\`. Raise PatternError for a pattern of more than 4096 bytes.
    The first match of each part between two stars is taken: a later one can never help. `at_once` limits the
    work of a step.
    """

    def __init__(self, pattern: bytes, at_once: int = _AT_ONCE) -> None:
        if len(pattern) > _MAX_PATTERN_BYTES:
            raise PatternError(f"pattern is too long: at most {_MAX_PATTERN_BYTES} bytes")
        self._parts = [_Part(elements, at_once) for elements in _split(pattern)]
        self._least = sum(part.size for part in self._parts)
        self._regex = self._as_regex() if len(pattern) <= _SHORT_PATTERN else None

    def _as_regex(self) -> re.Pattern[bytes]:
        first, *others = (part.expression for part in self._parts)
        if others:
            # Python's fnmatch does the same.
            first += b"".join(b"(?>.*?%b)" % middle for middle in others[:-1]) + b".*" + others[-1]
        return re.compile(first, re.DOTALL)

    @property
    def parts(self) -> list[Sequence[bytes]]:
        """The parts between the stars: the elements of each, as the bytes that an element matches, sorted."""
        return [part.elements for part in self._parts]

    def matches(self, text: bytes) -> bool:
        """Return whether the whole text matches."""
        steps = self.steps(text)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return bool(end.value)

    def steps(self, text: bytes) -> Generator[None, None, bool]:
        """Do the work of `matches` in steps of a few milliseconds.

        A text is searched once for each part; for parts with classes, once for each different one.
        """
        if self._regex is not None and len(text) <= _SHORT_TEXT:
            return self._regex.fullmatch(text) is not None
        first, *others = self._parts
        if len(text) < self._least or (not others and len(text) > first.size) or not first.is_at(text, 0):
            return False
        if not others:
            return True
        end = len(text) - others[-1].size
        if not others[-1].is_at(text, end):
            return False
        at = first.size
        for part in others[:-1]:
            found = -1
            while found < 0:
                stop = min(at + part.positions_of_step, end - part.size + 1)
                if at >= stop:
                    return False
                found = part.find(text, at, stop + part.size - 1)
                at = stop
                yield
            at = found + part.size
        return True


class _Part:
    """A part of a pattern without a star: as many bytes as it has elements."""

    def __init__(self, elements: Sequence[bytes], at_once: int) -> None:
        """Each element is the bytes that it matches, sorted."""
        self.size = len(elements)
        self.elements = elements
        self._text = b"".join(elements) if set(map(len, elements)) <= {1} else None
        # At how many positions of a text it is looked for in one step.
        self.positions_of_step = at_once
        if self._text is None:
            self.positions_of_step = min(at_once, max(self.size, _MASKED_BYTES // len(set(elements))))

    @property
    def expression(self) -> bytes:
        """A regular expression."""
        return b"".join(map(_expression, self.elements))

    def is_at(self, text: bytes, position: int) -> bool:
        """Return whether the part matches the bytes from this position on."""
        if self._text is not None:
            return text.startswith(self._text, position)
        found = text[position : position + self.size]
        return all(byte in element for byte, element in zip(found, self.elements, strict=True))

    def find(self, text: bytes, start: int, end: int) -> int:
        """Return the first position in a slice of the text at which the part matches; -1 if there is none."""
        if self._text is not None:
            return text.find(self._text, start, end)
        # All positions at once, as the bits of a number: the first one has the lowest bit.
        backwards = text[start:end][::-1]
        found = (1 << (end - start - self.size + 1)) - 1
        masks: dict[bytes, int] = {}
        for offset, element in enumerate(self.elements):
            if len(element) == _BYTES:
                continue
            if element not in masks:
                table = bytearray(b"0" * _BYTES)
                for byte in element:
                    table[byte] = _ONE
                masks[element] = int(backwards.translate(table), 2)
            found &= masks[element] >> offset
            if not found:
                return -1
        return start + (found & -found).bit_length() - 1


def _expression(element: bytes) -> bytes:
    """Return the regular expression for one of these bytes, which are sorted."""
    if len(element) == _BYTES:
        return b"."
    if len(element) == 1:
        return re.escape(element)
    # Ranges are compiled in a fraction of the time.
    grouped = groupby(enumerate(element), lambda one: one[1] - one[0])
    runs = [[member for _, member in group] for _, group in grouped]
    return b"[%b]" % b"".join(b"\\x%02x-\\x%02x" % (run[0], run[-1]) for run in runs) if runs else b"(?!)"


def _split(pattern: bytes) -> list[list[bytes]]:
    """Return the parts between stars, each as its elements: the bytes that one matches, sorted."""
    parts: list[list[bytes]] = [[]]
    position = 0
    while position < len(pattern):
        char = pattern[position : position + 1]
        position += 1
        if char == b"*":
            if parts[-1] or len(parts) == 1:
                parts.append([])
        elif char == b"?":
            parts[-1].append(_ANY)
        elif char == b"[":
            element, position = _class(pattern, position)
            parts[-1].append(element)
        else:
            if char == b"\\" and position < len(pattern):
                char = pattern[position : position + 1]
                position += 1
            parts[-1].append(char)
    return parts


def _class(pattern: bytes, position: int) -> tuple[bytes, int]:
    """Return the class that begins after `[`, and the position after it. The pattern's end also closes it."""
    negated = pattern[position : position + 1] == b"^"
    position += negated
    members: set[int] = set()
    while position < len(pattern) and pattern[position] != ord("]"):
        if pattern[position] == ord("\\") and position + 1 < len(pattern):
            members.add(pattern[position + 1])
            position += 2
        elif position + 2 < len(pattern) and pattern[position + 1] == ord("-"):
            low, high = sorted((pattern[position], pattern[position + 2]))
            members.update(range(low, high + 1))
            position += 3
        else:
            members.add(pattern[position])
            position += 1
    return bytes(sorted(members ^ set(_ANY)) if negated else sorted(members)), position + 1
