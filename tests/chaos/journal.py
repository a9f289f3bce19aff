"""The journal of a run: error replies, pauses, hang-ups, repeated puts and complaints."""

import re
from collections import Counter
from typing import NamedTuple

_NAMES_AND_NUMBERS = re.compile(r"'[^']*'|\b\d[\d.:]*\b")


class Pause(NamedTuple):
    """The seconds that a client waited for replies beyond the time for which its commands may block."""

    seconds: float
    when: float
    by: str
    command: str


class Journal:
    """Notes of the clients and the stand, for the report."""

    def __init__(self) -> None:
        # Error replies by their text, without numbers and names.
        self.errors: Counter[str] = Counter()
        self.longest_pause = Pause(0.0, 0.0, "nobody", "nothing")
        # Clients that hung up before they had read their reply, by the commands they had sent.
        self.hang_ups: Counter[str] = Counter()
        # Jobs by what their workers did with them.
        self.jobs: Counter[str] = Counter()
        # Puts with a transaction id that were sent again, by why, and whether they had been done.
        self.resends: Counter[str] = Counter()
        # Events that must not happen whatever breaks.
        self.complaints: list[str] = []
        # Replies that contradict earlier ones. They must not be unless changes may be lost.
        self.contradictions: list[str] = []

    def note_error(self, reply: Exception) -> None:
        """Count an error reply."""
        self.errors[_NAMES_AND_NUMBERS.sub("…", str(reply))] += 1

    def note_pause(self, pause: Pause) -> None:
        """Keep the longest pause."""
        self.longest_pause = max(self.longest_pause, pause)

    def complain(self, text: str) -> None:
        """Note an event that must not happen."""
        self.complaints.append(text)

    def contradict(self, text: str) -> None:
        """Note a reply that contradicts earlier ones."""
        self.contradictions.append(text)
