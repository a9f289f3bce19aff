"""Text for people: names of queues and users, which are any bytes, and counts. Patterns of names. No I/O."""

from __future__ import annotations

import re

from pressure_server.errors import PatternError

# In bytes. A compiled pattern takes about a hundred times its length in memory.
_MAX_PATTERN_BYTES = 4096


def printable(name: bytes) -> str:
    """Return a name as printable text: the first 128 bytes, with undecodable bytes escaped."""
    text = name[:128].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text + "…" if len(name) > 128 else text


def counted(number: float, thing: str, things: str = "") -> str:
    """Return a number of things: "1 message", "2 messages". `things` is the plural, by default with an s."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {thing if number == 1 else things or f'{thing}s'}"


def reason_of(error: OSError) -> str:
    """Return why a call of the operating system has failed, without the number that Python puts before it."""
    return error.strerror or str(error) or type(error).__name__


def glob_regex(pattern: bytes) -> re.Pattern[bytes]:
    r"""Return an expression whose `fullmatch` matches like Redis's glob pattern (stringmatchlen in util.c).

    A pattern has `*`, `?`, `[a-z]`, `[^a]` and `\`. Backtracking is bounded. Raise PatternError for a
    pattern of more than 4096 bytes.
    """
    if len(pattern) > _MAX_PATTERN_BYTES:
        raise PatternError(f"pattern is too long: at most {_MAX_PATTERN_BYTES} bytes")
    parts: list[list[bytes]] = [[]]  # the parts between stars
    position = 0
    while position < len(pattern):
        char = pattern[position : position + 1]
        position += 1
        if char == b"*":
            if parts[-1] or len(parts) == 1:
                parts.append([])
        elif char == b"?":
            parts[-1].append(b".")
        elif char == b"[":
            expression, position = _class(pattern, position)
            parts[-1].append(expression)
        else:
            if char == b"\\" and position < len(pattern):
                char = pattern[position : position + 1]
                position += 1
            parts[-1].append(re.escape(char))
    chunks = [b"".join(part) for part in parts]
    if len(chunks) == 1:
        return re.compile(chunks[0], re.DOTALL)
    # Take the first match of each middle part: a later one can never help. Python's fnmatch does the same.
    middle = b"".join(b"(?>.*?%b)" % chunk for chunk in chunks[1:-1] if chunk)
    return re.compile(chunks[0] + middle + b".*" + chunks[-1], re.DOTALL)


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
    if len(members) == (256 if negated else 0):
        expression = b"(?!)"
    elif not members or len(members) == 256:
        expression = b"."
    else:
        body = b"".join(b"\\x%02x" % member for member in sorted(members))
        expression = b"[%b%b]" % (b"^" if negated else b"", body)
    return expression, position + 1
