"""Inline commands: splits a line into arguments, with the quotes and escapes of Redis and redis-cli.

It follows Redis's sdssplitargs (sds.c).
"""

from __future__ import annotations

import re

# The characters of C's isspace separate arguments. Only some of them end an argument without quotes.
_SPACE = re.compile(rb"[ \t\r\n\v\f]*")
_BARE = re.compile(rb"[^ \t\r\n\"']+")
# Possessive: backtracking would take an escaped quote for the closing one.
_DOUBLE = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_SINGLE = re.compile(rb"'((?:[^'\\]|\\'|\\)*+)'", re.DOTALL)
_END = re.compile(rb"[ \t\r\n\v\f]|\Z")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_inline(line: bytes) -> list[bytes] | None:
    """Return the arguments of a line, maybe none; None if its quotes are not balanced."""
    # Redis reads the line as a C string, which ends at a NUL.
    line = line.partition(b"\0")[0]
    arguments: list[bytes] = []
    position = _end(_SPACE, line, 0)
    while position < len(line):
        argument = b""
        while position < len(line) and line[position] not in b" \t\r\n":
            if (bare := _BARE.match(line, position)) is not None:
                argument += bare[0]
                position = bare.end()
                continue
            quoted = _DOUBLE.match(line, position) or _SINGLE.match(line, position)
            if quoted is None:
                return None
            position = quoted.end()
            argument += _unescape(quoted)
            if _END.match(line, position) is None:
                return None
            break
        arguments.append(argument)
        position = _end(_SPACE, line, position)
    return arguments


def _end(pattern: re.Pattern[bytes], line: bytes, position: int) -> int:
    match = pattern.match(line, position)
    return match.end() if match else position


def _unescape(quoted: re.Match[bytes]) -> bytes:
    if quoted.re is _SINGLE:
        return quoted[1].replace(b"\\'", b"'")
    return _ESCAPE.sub(lambda m: _escaped(m[1]), quoted[1])


def _escaped(code: bytes) -> bytes:
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    return _ESCAPES.get(code, code)
