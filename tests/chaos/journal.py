"""The journal: what clients saw beside messages, and what went wrong beside them."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

_PARTICULARS = re.compile(r"'[^']*'|\b\d[\d.:]*\b")


class Pause(NamedTuple):
    """How many seconds longer than it had asked for a client waited for replies, for whatever reason."""

    seconds: float
    when: float
    by: str
    command: str


class Journal:
    """Clients and the stand write; the report reads."""

    def __init__(self) -> None:
        # By text, without numbers and names.
        self.errors: Counter[str] = Counter()
        self.longest = Pause(0.0, 0.0, "nobody", "nothing")
        # How many clients hung up before their reply, by what they had sent.
        self.hang_ups: Counter[str] = Counter()
        # What a server must never do.
        self.complaints: list[str] = []

    def error(self, reply: Exception) -> None:
        """A client got an error reply."""
        self.errors[_PARTICULARS.sub("…", str(reply))] += 1

    def waited(self, pause: Pause) -> None:
        """A client has waited."""
        self.longest = max(self.longest, pause)

    def complain(self, text: str) -> None:
        """This must not happen, whatever breaks."""
        self.complaints.append(text)
