"""Unrelated questions, asked by another client while a client waits. A new one is one line.

events.py explains the words in braces; {other} is the id of a job of {q} that the token `asker` has
reserved.
"""

from dataclasses import dataclass

from tests.waiting.matrix.wires import BEANSTALK, RESP


@dataclass(frozen=True)
class Question:
    """A question: with `takes`, it takes a message if there is one; with `of_all`, it is about all queues."""

    name: str
    ask: str = ""
    by: str = RESP
    takes: bool = False
    of_all: bool = False

    @property
    def of_other(self) -> bool:
        """Whether it needs another reserved job."""
        return "{other}" in self.ask


NONE = Question("none")
QUESTIONS = (
    Question("LLEN", "LLEN {q}"),
    Question("EXISTS", "EXISTS {q}"),
    Question("INFO queues", "INFO queues", of_all=True),
    Question("PRESSURE.INFO", "PRESSURE.INFO {q}"),
    Question("PEEK", "PRESSURE.PEEK {q} READY"),
    Question("SPOP", "SPOP {q}", takes=True),
    Question("SISMEMBER", "SISMEMBER {q} nothing"),
    Question("stats-tube", "stats-tube {q}", BEANSTALK),
    Question("ACK of another", "PRESSURE.ACK {q} {other} TOKEN asker"),
    Question("TOUCH of another", "PRESSURE.TOUCH {q} {other} TOKEN asker"),
    Question("BURY of another", "PRESSURE.BURY {q} {other} TOKEN asker"),
)
