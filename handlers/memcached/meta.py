"""Meta commands: their flags, and the lines of their replies. Pure.

A flag is a word of one letter, with a token after some letters. As in memcached, every meta command accepts
the flags of all of them, and ignores those that mean nothing to it.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable

from handlers.memcached.arguments import expiry_of, flags_of, key_of, number_of
from handlers.memcached.replies import CODE_OF_LINE, ClientError

_BAD_NUMBER = "bad token in command line format"
# With its letter, in bytes.
_MAX_OPAQUE = 32


def _expiry(token: bytes) -> bytes:
    return expiry_of(token, _BAD_NUMBER)


def _flags(token: bytes) -> bytes:
    return b"%d" % flags_of(token)


def _number(otherwise: str) -> Callable[[bytes], bytes]:
    return lambda token: b"%d" % number_of(token, otherwise)


def _mode(token: bytes) -> bytes:
    if len(token) != 1:
        raise ClientError("incorrect length for M token")
    return token


def _opaque(token: bytes) -> bytes:
    if len(token) >= _MAX_OPAQUE:
        raise ClientError("opaque token too long")
    return token


def _unused(token: bytes) -> bytes:
    return token


# The flags of memcached 1.6.18, and what their tokens become. P and L are for proxies.
_FLAGS: dict[int, Callable[[bytes], bytes]] = {
    **dict.fromkeys(b"IPLbcfhklqstuv", _unused),
    **dict.fromkeys(b"NRT", _expiry),
    ord("F"): _flags,
    ord("C"): _number(_BAD_NUMBER),
    ord("D"): _number("invalid numeric delta value"),
    ord("J"): _number("invalid numeric initial value"),
    ord("M"): _mode,
    ord("O"): _opaque,
}


class Meta:
    """A meta command: its key, and its flags in the order in which they came, with their tokens."""

    __slots__ = ("key", "tokens")

    def __init__(self, key: bytes, flags: list[bytes], refused: str = "", why: str = "") -> None:
        """`refused` are the letters that this command does not support here, and `why` is the reason.

        Raise ClientError for an invalid key or flag.
        """
        self.tokens: dict[str, bytes] = {}
        for flag in flags:
            parse = _FLAGS.get(flag[0])
            letter = chr(flag[0])
            if parse is None:
                raise ClientError("invalid flag")
            if letter in self.tokens:
                raise ClientError("duplicate flag")
            if letter in refused:
                raise ClientError(f"invalid flag: {letter} is not supported, because {why}")
            self.tokens[letter] = parse(flag[1:])
        self.key = key if "b" in self.tokens else key_of(key)

    def __contains__(self, letter: str) -> bool:
        """Return whether the command has this flag."""
        return letter in self.tokens

    def token(self, letter: str, otherwise: bytes = b"") -> bytes:
        """Return the flag's token, or `otherwise` if the command does not have the flag."""
        return self.tokens.get(letter, otherwise)

    def line(self, code: bytes, facts: dict[str, bytes] | None = None, marks: bytes = b"") -> bytes:
        """Return a line of a reply: the flags that were asked for, and then the `marks` W, X and Z.

        `facts` are what flags such as c return: without them, only the opaque token and the key are returned.
        """
        words = [code]
        for letter, token in self.tokens.items():
            if letter == "O":
                words.append(b"O" + token)
            elif letter == "k":
                words.append(b"k" + self.sent_key + (b" b" if "b" in self.tokens else b""))
            elif facts is not None and letter in facts:
                words.append(letter.encode() + facts[letter])
        return b" ".join(words) + b"".join(b" %c" % mark for mark in marks) + b"\r\n"

    @property
    def sent_key(self) -> bytes:
        """The key as the client has sent it."""
        return b2a_base64(self.key, newline=False) if "b" in self.tokens else self.key

    def item(self, data: bytes, size: int, facts: dict[str, bytes], marks: bytes = b"") -> bytes:
        """Return the reply that has an item: with its data, if the command has the flag v."""
        if "v" in self.tokens:
            return self.line(b"VA %d" % size, facts, marks) + data + b"\r\n"
        return self.line(b"HD", facts, marks)

    def miss(self) -> bytes:
        """Return the reply of mg if there is no item: nothing with the flag q."""
        return b"" if "q" in self.tokens else self.line(b"EN")

    def outcome(self, line: bytes, facts: dict[str, bytes]) -> bytes:
        """Return the reply that means the same as this one of a classic command, without its line end."""
        code = CODE_OF_LINE.get(line)
        if code is None:
            return line + b"\r\n"  # an error
        return b"" if code == b"HD" and "q" in self.tokens else self.line(code, facts)
