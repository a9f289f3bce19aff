"""The slow log: the latest commands that took long, as Redis's SLOWLOG has them. No I/O."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import time

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation

# Limits of one command in the log. They are Redis's.
_MAX_WORDS = 32
_MAX_WORD_BYTES = 128


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """A command: when it ended (seconds since 1970), its latency in seconds, its words and its client."""

    number: int
    ended: float
    seconds: float
    words: list[bytes]
    address: str
    client_name: str


class SlowLog:
    """The `length` latest commands that took `threshold` seconds or longer; none if it is negative."""

    def __init__(self, threshold: float, length: int, numbers: Iterator[int] | None = None) -> None:
        """`numbers` are those that the commands get: no two processes of one server give the same."""
        self.threshold = threshold if threshold >= 0 else float("inf")
        self.length = length
        self._numbers = numbers if numbers is not None else count()
        self._commands: deque[SlowCommand] = deque(maxlen=length)

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, seconds: float, words: Sequence[bytes], address: str, client_name: str) -> None:
        """Add a command that has just ended."""
        self._commands.append(
            SlowCommand(next(self._numbers), time(), seconds, shortened(words), address, client_name)
        )

    def latest(self, most: int) -> list[SlowCommand]:
        """Return up to `most` of the commands, latest first."""
        return list(self._commands)[: -most - 1 : -1]

    def reset(self) -> None:
        """Remove all commands."""
        self._commands.clear()


def shortened(
    words: Sequence[bytes], max_words: int = _MAX_WORDS, max_word_bytes: int = _MAX_WORD_BYTES
) -> list[bytes]:
    """Return the words without what is beyond the limits, and with a note of how much that is."""
    kept = list(words) if len(words) <= max_words else list(words[: max_words - 1])
    short = [
        word if len(word) <= max_word_bytes
        else word[:max_word_bytes] + b"... (%d more bytes)" % (len(word) - max_word_bytes)
        for word in kept
    ]  # fmt: skip
    if len(kept) < len(words):
        short.append(b"... (%d more arguments)" % (len(words) - len(kept)))
    return short


def messages_of_first_command(operation: Operation) -> list[bytes]:
    """Return the messages of the operation's first command as the client has sent them, and nothing else."""
    options = operation.options
    if operation.verb not in (verbs.PUT, verbs.REMOVE, verbs.CONTAINS):
        return []
    if options.has_flags or options.has_key or options.once:
        return []
    messages = operation.messages[: operation.sizes[0]]
    # See jobs.job_to_put.
    return [message.split(b" ", 5)[5] for message in messages] if options.is_job else messages
