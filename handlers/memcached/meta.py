"""Meta commands: their flags, and the lines of their replies. Pure.

A flag is a word of one letter, with a token after some letters. As in memcached, every meta command accepts
the flags of all of them, and ignores those that mean nothing to it.
"""

from binascii import b2a_base64
from collections.abc import Callable
from functools import partial

from handlers.memcached.arguments import expiry_of, flags_of, key_of, number_of
from handlers.memcached.parser import Request
from handlers.memcached.replies import CODE_OF_LINE, ClientError

_BAD_NUMBER = "bad token in command line format"
# With its letter, in bytes.
_MAX_OPAQUE = 32


def _mode(token: bytes) -> bytes:
    if len(token) != 1:
        raise ClientError("incorrect length for M token")
    return token


def _opaque(token: bytes) -> bytes:
    if len(token) >= _MAX_OPAQUE:
        raise ClientError("opaque token too long")
    return token


# The flags of memcached 1.6.18, and what their tokens become. P and L are for proxies.
_FLAGS: dict[int, Callable[[bytes], bytes]] = {
    **dict.fromkeys(b"IPLbcfhklqstuv", bytes),
    **dict.fromkeys(b"NRT", partial(expiry_of, otherwise=_BAD_NUMBER)),
    ord("F"): flags_of,
    ord("C"): partial(number_of, otherwise=_BAD_NUMBER),
    ord("D"): partial(number_of, otherwise="invalid numeric delta value"),
    ord("J"): partial(number_of, otherwise="invalid numeric initial value"),
    ord("M"): _mode,
    ord("O"): _opaque,
}


class Meta(dict[str, bytes]):
    """The flags of a meta command, in the order in which they came, with their tokens; and its key."""

    __slots__ = ("key",)

    def __init__(self, key: bytes, flags: list[bytes], refused: str = "", why: str = "") -> None:
        """`refused` are the letters that this command does not support here, and `why` is the reason.

        Raise ClientError for an invalid key or flag.
        """
        super().__init__()
        for flag in flags:
            parse = _FLAGS.get(flag[0])
            letter = chr(flag[0])
            if parse is None:
                raise ClientError("invalid flag")
            if letter in self:
                raise ClientError("duplicate flag")
            if letter in refused:
                raise ClientError(f"invalid flag: {letter} is not supported, because {why}")
            self[letter] = parse(flag[1:])
        self.key = key if "b" in self else key_of(key)

    def line(self, code: bytes, facts: dict[str, bytes] | None = None, marks: bytes = b"") -> bytes:
        """Return a line of a reply: the flags that were asked for, and then the `marks` W, X and Z.

        `facts` are what flags such as c return: without them, only the opaque token and the key are returned.
        """
        words = [code]
        for letter, token in self.items():
            if letter == "O":
                words.append(b"O" + token)
            elif letter == "k":
                words.append(b"k" + self.sent_key + (b" b" if "b" in self else b""))
            elif facts is not None and letter in facts:
                words.append(letter.encode() + facts[letter])
        return b" ".join(words) + b"".join(b" %c" % mark for mark in marks) + b"\r\n"

    @property
    def sent_key(self) -> bytes:
        """The key as the client has sent it."""
        return b2a_base64(self.key, newline=False) if "b" in self else self.key

    def item(self, data: bytes, size: int, facts: dict[str, bytes], marks: bytes = b"") -> bytes:
        """Return the reply that has an item: with its data, if the command has the flag v."""
        if "v" in self:
            return self.line(b"VA %d" % size, facts, marks) + data + b"\r\n"
        return self.line(b"HD", facts, marks)

    def miss(self) -> bytes:
        """Return the reply of mg if there is no item: nothing with the flag q."""
        return b"" if "q" in self else self.line(b"EN")

    def outcome(self, line: bytes, facts: dict[str, bytes]) -> bytes:
        """Return the reply that means the same as this one of a classic command, without its line end."""
        code = CODE_OF_LINE.get(line)
        if code is None:
            return line + b"\r\n"  # an error
        return b"" if code == b"HD" and "q" in self else self.line(code, facts)


class Classic(Meta):
    """A classic command as a meta command: its words stand for flags, and its replies are lines."""

    __slots__ = ()

    def __init__(self, key: bytes, **flags: bytes) -> None:
        """Raise ClientError for an invalid key."""
        dict.__init__(self, flags)
        self.key = key_of(key)

    def item(self, data: bytes, size: int, facts: dict[str, bytes], marks: bytes = b"") -> bytes:
        """See Meta."""
        return data + b"\r\n"

    def outcome(self, line: bytes, facts: dict[str, bytes]) -> bytes:
        """See Meta."""
        return line + b"\r\n"


def flags_of_delete(request: Request, refused: str = "", why: str = "") -> Meta:
    """Return the flags of md, or those of delete, which has none; see Meta. Raise ClientError."""
    name, key, *words = request.words
    if name == b"md":
        return Meta(key, words, refused, why)
    # Old clients send a time.
    if words not in ([], [b"0"]):
        raise ClientError("bad command line format.  Usage: delete <key> [noreply]")
    return Classic(key)
