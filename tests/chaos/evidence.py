"""Evidence: follows messages through the backend's append-only file.

The file has the effects of scripts: which values were pushed, and how many were popped. So the contents of
all lists are followed from the beginning. Jobs are followed by their ids.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Command = list[bytes]
_Lists = dict[bytes, deque[bytes]]
_MAX_LENGTH = 100
# The numbers of a job, and the name that its message begins with.
_JOB = re.compile(rb"(?:\d+ )+([\d.]+):")
# The id in a place, or in the field of a job's state (job_ids.lua).
_ID = re.compile(rb"([0-9a-f]{13}):?")
_JOBS = b":ext:jobs"
# Commands that show who made a step, such as those that write call records.
_NOTES = (b"SET", b"HSET", b"HDEL")


def commands(file: Path) -> Iterator[Command]:
    """Yield the commands of an append-only file, up to its end or an incomplete command."""
    with file.open("rb") as lines:
        while (line := lines.readline()).endswith(b"\r\n"):
            if not line.startswith(b"*"):
                continue  # a timestamp
            words = []
            for _ in range(int(line[1:])):
                size = int(lines.readline()[1:] or 0)
                words.append(lines.read(size + 2)[:-2])
            yield words


def follow(names: Sequence[bytes], files: Sequence[Path]) -> dict[bytes, list[str]]:
    """Return, for each of the messages, the text of every step that touched it."""
    follower = _Follower(names)
    if names:
        for file in files:
            follower.read(file)
    return follower.steps


class _Follower:
    """Follows messages through files. A step is one command, or a transaction."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self.steps: dict[bytes, list[str]] = {name: [] for name in names}
        self._lists: _Lists = {}
        # By the queue's base key and the id.
        self._jobs: dict[tuple[bytes, bytes], bytes] = {}
        self._step: list[Command] = []
        self._touched: dict[bytes, list[str]] = {}

    def read(self, file: Path) -> None:
        for words in commands(file):
            verb = words[0].upper()
            if verb == b"MULTI":
                self._end_step()
            self._step.append(words)
            removed = _EFFECTS[verb](self._lists, words) if verb in _EFFECTS else []
            for data in (*removed, *words[2:]):
                name = data.partition(b":")[0]
                if name in self.steps:
                    self._touched.setdefault(name, []).append(_shown(words))
            self._follow_jobs(words)
            if verb == b"EXEC":
                self._end_step()
        self._end_step()

    def _follow_jobs(self, words: Command) -> None:
        base, ext, _ = words[1].partition(b":ext:") if len(words) > 2 else (b"", b"", b"")
        if not ext:
            return
        if words[1].endswith(_JOBS) and words[0].upper() == b"HSET":
            for job, data in zip(words[2::2], words[3::2], strict=True):
                found = _JOB.match(data)
                if found and found[1] in self.steps:
                    self._jobs[base, job] = found[1]
        for word in words[2:]:
            number = _ID.fullmatch(word)
            name = self._jobs.get((base, number[1])) if number else None
            if name:
                self._touched.setdefault(name, []).append(_shown([*words[:2], word]))

    def _end_step(self) -> None:
        noted = "; ".join(_shown(words) for words in self._step if words[0].upper() in _NOTES)
        for name, touches in self._touched.items():
            self.steps[name].append(f"{'; '.join(dict.fromkeys(touches))} (with {noted or 'nothing'})")
        self._touched.clear()
        self._step.clear()


def _shown(words: Command) -> str:
    text = b" ".join(words[:4]).decode(errors="replace").encode("unicode_escape").decode()
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


# Each effect changes the lists, and returns the removed values that the command itself does not name.


def _push(lists: _Lists, words: Command) -> list[bytes]:
    values = lists.setdefault(words[1], deque())
    if words[0].upper().startswith(b"L"):
        values.extendleft(words[2:])
    else:
        values.extend(words[2:])
    return []


def _pop(lists: _Lists, words: Command) -> list[bytes]:
    values = lists.get(words[1], deque())
    pop = values.popleft if words[0].upper().startswith(b"L") else values.pop
    return [pop() for _ in range(min(int(words[2]) if len(words) > 2 else 1, len(values)))]


def _remove(lists: _Lists, words: Command) -> list[bytes]:
    values, count = lists.get(words[1], deque()), int(words[2])
    if count < 0:
        values.reverse()
    for _ in range(min(abs(count) or len(values), values.count(words[3]))):
        values.remove(words[3])
    if count < 0:
        values.reverse()
    return []


def _trim(lists: _Lists, words: Command) -> list[bytes]:
    values = list(lists.get(words[1], deque()))
    first, last = (int(word) + (len(values) if word.startswith(b"-") else 0) for word in words[2:4])
    lists[words[1]] = deque(values[max(first, 0) : last + 1])
    return [*values[: max(first, 0)], *values[last + 1 :]]


def _delete(lists: _Lists, words: Command) -> list[bytes]:
    return [data for key in words[1:] for data in lists.pop(key, deque())]


_EFFECTS: dict[bytes, Callable[[_Lists, Command], list[bytes]]] = {
    b"LPUSH": _push,
    b"RPUSH": _push,
    b"LPOP": _pop,
    b"RPOP": _pop,
    b"LREM": _remove,
    b"LTRIM": _trim,
    b"DEL": _delete,
    b"UNLINK": _delete,
}
