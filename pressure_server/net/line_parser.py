"""What the parsers of line protocols share: an incomplete request is kept until it can be complete."""

from abc import abstractmethod
from typing import Any, ClassVar, Final, NamedTuple

from pressure_server.compiled import mypyc_attr

# The memory of so few words is in the estimate for a request.
FEW_WORDS: Final = 8


class Refused(NamedTuple):
    """A request that is refused, with its reply. If it `closes`, close the connection."""

    reply: bytes
    closes: bool = False


@mypyc_attr(allow_interpreted_subclasses=True)
class LineParser:
    """The parser of one client's requests: a request is a line, and after some lines a message."""

    __slots__ = ("_awaited", "_longest", "_skip", "_unread", "many_words")
    # The largest request before a login.
    MAX_LOGIN_BYTES: ClassVar[int]

    def __init__(self) -> None:
        self._unread: bytearray | None = None
        # Read the incomplete request again when it has `_awaited` bytes or, if its line is incomplete, when
        # the line ends or exceeds `_longest` bytes.
        self._awaited = 0
        self._longest = 0
        self._skip = 0  # the bytes of a refused message still to come
        self.many_words = 0  # see session.Parser

    @property
    def unparsed(self) -> int:
        """The bytes in memory of an incomplete request."""
        return len(self._unread) if self._unread is not None else 0

    @property
    def awaited(self) -> int:
        """The size of the incomplete request in bytes, as far as it is known."""
        return max(self._awaited, self._skip, self.unparsed)

    @property
    def exceeds_login_limits(self) -> bool:
        """Whether the incomplete request is too large for a login."""
        return self.awaited > self.MAX_LOGIN_BYTES

    def feed(self, data: bytes) -> list[Any]:
        """Return the requests that `data` completes. Feed nothing after a refusal that closes."""
        self.many_words = 0
        if self._unread is not None:
            # Use one buffer: a list of small pieces takes many times their size.
            self._unread += data
            size = len(self._unread)
            if size < self._awaited or (size <= self._longest and b"\n" not in data):
                return []
            data = bytes(self._unread)
            self._unread = None
        self._awaited = self._longest = 0
        requests: list[Any] = []
        position = self._read(data, requests)
        if position < len(data):
            self._unread = bytearray(memoryview(data)[position:])
        return requests

    @abstractmethod
    def _read(self, data: bytes, requests: list[Any]) -> int:
        """Append all complete requests. Return the position of the first incomplete one."""
