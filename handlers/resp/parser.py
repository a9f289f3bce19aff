"""The request parser: bytes in, commands out. Sans-IO. Lengths are checked before memory is allocated.

A command is a list of byte strings, from an array of bulk strings or from an inline command. Limits and
error texts are Redis's (networking.c, processMultibulkBuffer and processInlineBuffer).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pressure_server.compiled import is_compiled, mypyc_attr
from pressure_server.net.line_parser import FEW_WORDS
from pressure_server.words import integer_from

Words = list[bytes]

MAX_LINE: Final = 64 * 1024
MAX_ARGUMENTS: Final = 1024 * 1024
# Estimated bytes for an argument besides its content.
ARGUMENT_COST: Final = 64
# Bytes that a command may have in addition to the largest argument.
REQUEST_ALLOWANCE: Final = 64 << 20

# Limits for a command of a client that has not logged in.
_LOGIN_ARGUMENTS: Final = 10
_LOGIN_BYTES: Final = 16 * 1024

# _split is for commands of up to 64 arguments, each of up to _SHORT bytes. _read parses the others.
_COUNTS: Final = {b"*%d" % count: count for count in range(1, 65)}
_SHORT: Final = 4096
# Compiled code reads a SADD of one message byte by byte, with _read, in 0.16 µs, and by tokens in 0.47 µs.
# The interpreter takes 1.7 µs for the bytes, and 0.7 µs for the tokens.
_READS_BYTES: Final = is_compiled()
_CR: Final = 13
_STAR: Final = 42
_DOLLAR: Final = 36
_ZERO: Final = 48
_NINE: Final = 57
# A number with more digits is not a short one.
_MOST_DIGITS: Final = 5
# Only reads of at least this many tokens are searched for repeated commands.
_WORTH_A_LOOK: Final = 20
_MAX_REPEATED: Final = 512
# Tokens of the longest command of which many become one Repeated: seven words.
_MOST_TOKENS: Final = 15

# An argument of an inline command: bytes without quotes, then maybe a quoted string, which ends it. Nothing
# but spaces may be left. The characters of C's isspace separate arguments; only some of them end one without
# quotes. Possessive: backtracking would take an escaped quote for the closing one.
_ARGUMENT: Final = re.compile(
    rb"""[ \t\r\n\v\f]*+
    (?: \Z | ([^ \t\r\n"']*+) (?: "((?:[^"\\]|\\.)*+)" | '((?:[^'\\]|\\'|\\)*+)' )? (?=[ \t\r\n\v\f]|\Z) )""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


@dataclass(frozen=True)
class Repeated:
    """`count` commands in a row that have the first two words in common, as most pipelines have.

    `words` are these two, `thirds` the third words, empty if there are none; `rest` has, for each place after
    the third, the words of all commands.
    """

    words: Words
    thirds: list[bytes]
    count: int
    rest: tuple[list[bytes], ...] = ()

    @property
    def size(self) -> int:
        """The number of words of each command."""
        return len(self.words) + bool(self.thirds) + len(self.rest)

    def split(self, count: int) -> list[Repeated]:
        """Return the first `count` commands, and the others."""
        first, others = (
            tuple(words[part] for words in self.rest) for part in (slice(count), slice(count, None))
        )
        return [
            Repeated(self.words, self.thirds[:count], count, first),
            Repeated(self.words, self.thirds[count:], self.count - count, others),
        ]

    def requests(self) -> list[Words]:
        """Return the commands one by one."""
        if self.thirds:
            return [[*self.words, *others] for others in zip(self.thirds, *self.rest, strict=True)]
        return [list(self.words) for _ in range(self.count)]


class RequestError(Exception):
    """The bytes are not a valid request. The bytes after them cannot be parsed either."""


class Limits:
    """The limits of requests. `max_bulk` is the largest argument in bytes; a command may have 64 MiB more."""

    def __init__(self, max_bulk: int) -> None:
        self.max_bulk = max_bulk
        self.most_bytes = max_bulk + REQUEST_ALLOWANCE
        # The lengths of short arguments, by the tokens that announce them.
        self.lengths = {b"$%d" % size: size for size in range(min(_SHORT, max_bulk) + 1)}


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestParser:
    """The parser of one client's requests."""

    __slots__ = ("_announced", "_arguments", "_awaited", "_limits", "_missing", "_unread", "many_words")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unread: bytearray | None = None
        self._arguments: Words = []  # of the incomplete command
        self._missing = 0  # the number of arguments still to be read
        self._awaited = -1  # the length of the next argument; -1 if not known yet
        self._announced = 0  # the command's size in bytes, by its lengths so far
        self.many_words = 0  # see session.Parser

    @property
    def exceeds_login_limits(self) -> bool:
        """Whether the incomplete command exceeds Redis's limits for a client that has not logged in."""
        return self._missing + len(self._arguments) > _LOGIN_ARGUMENTS or self._awaited > _LOGIN_BYTES

    def feed(self, data: bytes) -> list[Words | Repeated | RequestError]:
        """Return the commands that end in `data`. If the last one is a RequestError, feed no more data."""
        commands: list[Words | Repeated | RequestError] = []
        self.many_words = 0
        if self._unread:
            # One buffer: a list of small pieces would take many times their size.
            self._unread += data
            if len(self._unread) < self._awaited + 2:
                return commands
            data = bytes(self._unread)
            self._unread = None
        try:
            if self._missing or _READS_BYTES:
                data = self._read(data, commands, stop_after_one=True)
            if data and not self._missing:
                if not _READS_BYTES or (commands and _may_repeat(commands[-1], data)):
                    data = self._split(data, commands)
                if data:
                    data = self._read(data, commands)
        except RequestError as error:
            commands.append(error)
            return commands
        if data:
            self._unread = bytearray(data)
        return commands

    @property
    def unparsed(self) -> int:
        """The bytes in memory of the incomplete command."""
        awaited = max(0, self._awaited) + self._missing * ARGUMENT_COST if self._missing else self._announced
        return self._announced - awaited + (len(self._unread) if self._unread else 0)

    def _split(self, data: bytes, commands: list[Words | Repeated | RequestError]) -> bytes:
        """Read short, complete commands by tokens; return the bytes from the first other command on."""
        lengths = self._limits.lengths
        tokens = data.split(b"\r\n")
        last = len(tokens) - 1
        start = 0
        repeats = last >= _WORTH_A_LOOK
        while start < last:
            count = _COUNTS.get(tokens[start])
            if count is None:
                break
            end = start + 1 + 2 * count
            if end > last:
                break
            if repeats and (repeated := self._repeated(tokens, start, end - start, last)) is not None:
                commands.append(repeated)
                start += repeated.count * (end - start)
                continue
            repeats = False
            command = tokens[start + 2 : end : 2]
            at = start + 1
            for word in command:
                if lengths.get(tokens[at]) != len(word):
                    break  # also if a payload contains a CRLF
                at += 2
            else:
                commands.append(command)
                if count > FEW_WORDS:
                    self.many_words += count
                start = end
                continue
            break
        if start == last:
            return tokens[last]
        return b"\r\n".join(tokens[start:])

    def _repeated(self, tokens: list[bytes], start: int, stride: int, last: int) -> Repeated | None:
        """Return the commands from `start` on, if all have the first two words in common; otherwise None.

        Comparing columns of tokens takes 0.4 µs per command, and the handler saves as much, or more.
        """
        if not 5 <= stride <= _MOST_TOKENS:
            return None
        count = min((last - start) // stride, _MAX_REPEATED)
        end = start + count * stride
        lengths = self._limits.lengths.get
        for column in range(5):
            values = tokens[start + column : end : stride]
            if values.count(values[0]) != count:
                return None
        words = tokens[start + 2 : start + 5 : 2]
        if list(map(lengths, tokens[start + 1 : start + 4 : 2])) != list(map(len, words)):
            return None
        columns: list[list[bytes]] = []
        for column in range(6, stride, 2):
            values = tokens[start + column : end : stride]
            if list(map(lengths, tokens[start + column - 1 : end : stride])) != list(map(len, values)):
                return None
            columns.append(values)
        return Repeated(words, columns[0] if columns else [], count, tuple(columns[1:]))

    def _read(
        self, data: bytes, commands: list[Words | Repeated | RequestError], *, stop_after_one: bool = False
    ) -> bytes:
        """Read commands of any form. Keep the arguments of an incomplete one; return the unread bytes."""
        position = 0
        counted = len(self._arguments)  # in the read before
        may_be_short = True
        while position < len(data):
            if self._missing:
                if self._awaited < 0 and may_be_short and self._missing > _WORTH_A_LOOK:
                    position = self._read_short(data, position)
                    may_be_short = False
                    continue
                if self._awaited < 0:
                    after = self._read_length(data, position)
                    if after < 0:
                        break
                    position = after
                end = position + self._awaited
                if end + 2 > len(data):
                    break
                self._arguments.append(data[position:end])
                self._awaited = -1
                self._missing -= 1
                position = end + 2
                if not self._missing:
                    commands.append(self._arguments)
                    self._count_words(self._arguments, counted)
                    counted = 0
                    self._arguments = []
                    if stop_after_one:
                        break
            elif data[position] == _STAR:
                self._missing, after = _short_number(data, position + 1)
                if after < 0:
                    after = _line_end(data, position, "too big mbulk count string")
                    if after < 0:
                        break
                    self._missing = _array_length(data[position + 1 : after - 2])
                self._announced = self._missing * ARGUMENT_COST
                position = after
            else:
                end = data.find(b"\n", position)
                # Check complete lines, too. Redis does not, so its result depends on how the bytes arrive.
                if end - position > MAX_LINE or (end < 0 and len(data) - position > MAX_LINE):
                    raise RequestError("Protocol error: too big inline request")
                if end < 0:
                    break
                arguments = split_inline(data[position:end])
                if arguments is None:
                    raise RequestError("Protocol error: unbalanced quotes in request")
                if arguments:
                    commands.append(arguments)
                    self._count_words(arguments, 0)
                position = end + 1
        self._count_words(self._arguments, counted)
        return data[position:]

    def _count_words(self, arguments: Words, counted: int) -> None:
        """Count the arguments of a command, but for the first `counted`."""
        if len(arguments) > FEW_WORDS:
            self.many_words += len(arguments) - counted

    def _read_short(self, data: bytes, position: int) -> int:
        """Read many arguments, but the command's last, if all in `data` are short. Return the position after.

        This takes a tenth of the time.
        """
        tokens = data[position:].split(b"\r\n", 2 * self._missing - 2)
        last = 2 * min(self._missing - 1, (len(tokens) - 1) // 2)
        sizes = tokens[0:last:2]
        lengths = list(map(self._limits.lengths.get, sizes))
        values = tokens[1:last:2]
        if lengths != list(map(len, values)):
            return position
        size = sum(map(len, values))
        if self._announced + size > self._limits.most_bytes:
            return position
        self._announced += size
        self._missing -= len(values)
        self._arguments += values
        return position + sum(map(len, sizes)) + size + 4 * len(values)

    def _read_length(self, data: bytes, position: int) -> int:
        """Read the length of an argument. Return the position after it, or -1 if the line is incomplete."""
        length, after = _short_number(data, position + 1)
        if after < 0 or data[position] != _DOLLAR:
            after = _line_end(data, position, "too big bulk count string")
            if after < 0:
                return -1
            if data[position] != _DOLLAR:
                raise RequestError(f"Protocol error: expected '$', got '{_shown(data[position])}'")
            number = integer_from(data[position + 1 : after - 2])
            length = -1 if number is None else number
        if not 0 <= length <= self._limits.max_bulk:
            raise RequestError("Protocol error: invalid bulk length")
        self._announced += length
        if self._announced > self._limits.most_bytes:
            raise RequestError("Protocol error: too big request")
        self._awaited = length
        return after


def _may_repeat(command: Words | Repeated | RequestError, data: bytes) -> bool:
    """Return whether `data` begins with a command that has the first two words of this one."""
    if type(command) is not list or len(command) < 2:
        return False
    first, second = command[0], command[1]
    beginning = (len(command), len(first), first, len(second), second)
    return data.startswith(b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % beginning)


def _short_number(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that most lines have, and the position after the line; -1 for any other line.

    Its first digit is not 0, and there are at most _MOST_DIGITS.
    """
    number, at, last = 0, position, len(data) - 1
    if at < last and data[at] != _ZERO:
        while at < last and at - position < _MOST_DIGITS and _ZERO <= (digit := data[at]) <= _NINE:
            number = 10 * number + digit - _ZERO
            at += 1
        if at > position and at < last and data[at] == _CR:
            return number, at + 2
    return 0, -1


def _line_end(data: bytes, position: int, too_long: str) -> int:
    """Return the position after the line's CRLF, or -1 if the line is incomplete."""
    end = data.find(b"\r", position)
    if end - position > MAX_LINE or (end < 0 and len(data) - position > MAX_LINE):
        raise RequestError(f"Protocol error: {too_long}")
    return end + 2 if 0 <= end < len(data) - 1 else -1


def _array_length(text: bytes) -> int:
    """Return the number of arguments. Like Redis, read a negative number as 0: an empty command."""
    length = integer_from(text)
    if length is None or length > MAX_ARGUMENTS:
        raise RequestError("Protocol error: invalid multibulk length")
    return max(0, length)


def _shown(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"


def split_inline(line: bytes) -> list[bytes] | None:
    """Return the arguments of a line, maybe none; None if its quotes are not balanced."""
    # Redis reads the line as a C string, which ends at a NUL.
    line = line.partition(b"\0")[0]
    arguments: list[bytes] = []
    position = 0
    while position < len(line):
        found = _ARGUMENT.match(line, position)
        if found is None:
            return None
        position = found.end()
        argument, double, single = found.groups()
        if argument is None:
            break
        if double is not None:
            argument += _ESCAPE.sub(_unescape, double)
        elif single is not None:
            argument += single.replace(b"\\'", b"'")
        arguments.append(argument)
    return arguments


def _unescape(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else _ESCAPES.get(code, code)
