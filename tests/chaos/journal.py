"""The journal: what clients saw beside messages, and what went wrong beside them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Pause(NamedTuple):
    """How many seconds longer than it had asked for a client waited for replies, for whatever reason."""

    seconds: float
    when: float
    by: str
    command: str


class Journal:
    """Clients and the stand write; the report reads."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        # One text of each code.
        self.texts: dict[str, str] = {}
        self.longest = Pause(0.0, 0.0, "nobody", "nothing")
        # What a server must never do.
        self.complaints: list[str] = []

    def error(self, reply: Exception) -> None:
        """A client got an error reply."""
        code = str(reply).partition(" ")[0]
        self.errors[code] += 1
        self.texts.setdefault(code, str(reply))

    def waited(self, pause: Pause) -> None:
        """A client has waited."""
        self.longest = max(self.longest, pause)

    def complain(self, text: str) -> None:
        """This must not happen, whatever breaks."""
        self.complaints.append(text)
