"""The library's reply to one block (lua/core/batch.lua), as a type that tells its forms apart. Pure.

Nothing else reads the words of a reply. A caller has to say what it does with each of the three forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

# The first value of a block that was refused; of a put that is done in part; the value of a command that
# found the queue full.
_REFUSED, _PART, _FULL = b"refused", b"part", -1


class Due(NamedTuple):
    """When a queue may have another job by itself.

    `seconds` from now on; None if no job changes by itself. `note` is the backend's note of that (jobs.lua),
    which other servers and listeners watch.
    """

    seconds: float | None = None
    note: bytes | None = None


class News(NamedTuple):
    """What a reply says beside the results of the runs.

    `later` are results that waiting runs have got since, each with the number of its run, from 1 on. Native
    clients hold the roles that `held` names, and waiting operations need them. `left_for_others`: messages
    were left for clients of other servers. `due` is None if the queue has no jobs. `room_after`: the
    seconds until a message expires that is in the way of puts. `log_suffix` is how many bytes a group's name
    is longer than the name of its log; 0 if the queue is not a group's. `keeps` is whether pops must reserve
    (ACK NEXT), if the caller did not know. `is_limited`: the queue may limit how many jobs are reserved, so
    the end of a reservation may serve operations that wait.
    """

    later: tuple[tuple[int, Any], ...] = ()
    held: tuple[bytes, ...] = ()
    left_for_others: bool = False
    due: Due | None = None
    room_after: float | None = None
    log_suffix: int = 0
    keeps: bool | None = None
    is_limited: bool = False

    @classmethod
    def of(cls, words: Sequence[Any]) -> News:
        """Return what the pairs of a number and a value mean that follow the first value of a reply."""
        later: list[tuple[int, Any]] = []
        held: list[bytes] = []
        left_for_others, due, room_after, log_suffix, keeps, is_limited = False, None, None, 0, None, False
        for number, value in zip(words[::2], words[1::2], strict=True):
            if number:
                later.append((number, value))
                continue
            match value.split(b" ", 2):
                case [b"others"]:
                    left_for_others = True
                case [b"due", milliseconds, note]:
                    due = Due(None if milliseconds == b"-1" else int(milliseconds) / 1000, note or None)
                case [b"room", milliseconds]:
                    room_after = int(milliseconds) / 1000
                case [b"source", count]:
                    log_suffix = int(count)
                case [b"limited"]:
                    is_limited = True
                case [b"keeps", is_so]:
                    keeps = is_so == b"1"
                case [role]:
                    held.append(role)
        return cls(tuple(later), tuple(held), left_for_others, due, room_after, log_suffix, keeps, is_limited)


NO_NEWS: Final = News()


class Done(NamedTuple):
    """All runs of the block are done. `results` has one for each; an exception if the run was refused."""

    results: list[Any]
    news: News


class Unfinished(NamedTuple):
    """Only a part of the block is done, as it would take too long: send the rest again, at once.

    `results` has one for each run that has begun. Of the last of these, `left` units are not done, which is
    all of it if nothing has been done.
    """

    results: list[Any]
    left: int
    news: News


class Refused(NamedTuple):
    """A transaction that is refused as a whole, because of the queue with this base key: nothing is done."""

    base: bytes
    reason: str

    @property
    def must_be_repeated(self) -> bool:
        """Whether jobs that are due came first, so that the block must be sent again at once."""
        return self.reason == "DUE"


def refusal_of(reply: Sequence[Any]) -> Refused | None:
    """Return why a transaction was refused as a whole; None if it was done."""
    return Refused(reply[1], reply[2].decode("utf-8", "replace")) if reply[0] == _REFUSED else None


def read_reply(reply: Sequence[Any], runs: int) -> Done | Unfinished | Refused:
    """Return what the reply to a block means; `runs` is the number of its runs."""
    if refusal := refusal_of(reply):
        return refusal
    left, results = reply[0], list(reply[1:])
    news = NO_NEWS
    if isinstance(left, list):
        left, news = left[0], News.of(left[1:])
    if left > 0 or len(results) < runs:
        return Unfinished(results, max(left, 0), news)
    return Done(results, news)


def accepts(result: Any) -> bool:
    """Return whether a run that puts one message has put it, or left it out as it is queued (put.lua)."""
    return isinstance(result, int) or result[0] not in (_PART, _FULL)
