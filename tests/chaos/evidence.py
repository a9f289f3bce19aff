"""Evidence: what became of a message in the backend, from the append-only file that has all it ever wrote.

It has the effects of scripts: what was pushed, and how many were popped; so the lists are followed from the
beginning, with the commands that a list of ours can get.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Command = list[bytes]
_Lists = dict[bytes, deque[bytes]]
_LONGEST = 100
# Commands of a step that say who did it.
_NOTES = (b"SET", b"HSET", b"HDEL")


def commands(file: Path) -> Iterator[Command]:
    """Those of an append-only file, up to where it ends or was cut off."""
    with file.open("rb") as lines:
        while (line := lines.readline()).endswith(b"\r\n"):
            if not line.startswith(b"*"):
                continue  # a time
            words = []
            for _ in range(int(line[1:])):
                size = int(lines.readline()[1:] or 0)
                words.append(lines.read(size + 2)[:-2])
            yield words


def follow(names: Sequence[bytes], files: Sequence[Path]) -> dict[bytes, list[str]]:
    """Every step that has to do with messages of these names, as text, with what else was noted in it."""
    following = _Following(names)
    if names:
        for file in files:
            following.read(file)
    return following.found


class _Following:
    def __init__(self, names: Sequence[bytes]) -> None:
        self.found: dict[bytes, list[str]] = {name: [] for name in names}
        self._lists: _Lists = {}
        self._step: list[Command] = []
        self._touched: dict[bytes, list[str]] = {}

    def read(self, file: Path) -> None:
        for words in commands(file):
            verb = words[0].upper()
            if verb == b"MULTI":
                self._end_step()
            self._step.append(words)
            moved = _STEPS[verb](self._lists, words) if verb in _STEPS else []
            for data in (*moved, *words[2:]):
                name = data.partition(b":")[0]
                if name in self.found:
                    self._touched.setdefault(name, []).append(_shown(words))
            if verb == b"EXEC":
                self._end_step()
        self._end_step()

    def _end_step(self) -> None:
        noted = "; ".join(_shown(words) for words in self._step if words[0].upper() in _NOTES)
        for name, touches in self._touched.items():
            self.found[name].append(f"{'; '.join(dict.fromkeys(touches))} (with {noted or 'nothing'})")
        self._touched.clear()
        self._step.clear()


def _shown(words: Command) -> str:
    text = b" ".join(words[:4]).decode(errors="replace").encode("unicode_escape").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _push(lists: _Lists, words: Command) -> list[bytes]:
    there = lists.setdefault(words[1], deque())
    if words[0].upper().startswith(b"L"):
        there.extendleft(words[2:])
    else:
        there.extend(words[2:])
    return []  # its words say what


def _pop(lists: _Lists, words: Command) -> list[bytes]:
    there = lists.get(words[1], deque())
    pop = there.popleft if words[0].upper().startswith(b"L") else there.pop
    return [pop() for _ in range(min(int(words[2]) if len(words) > 2 else 1, len(there)))]


def _remove(lists: _Lists, words: Command) -> list[bytes]:
    there, count = lists.get(words[1], deque()), int(words[2])
    for _ in range(min(abs(count) or len(there), there.count(words[3]))):
        if count < 0:
            there.reverse()
        there.remove(words[3])
        if count < 0:
            there.reverse()
    return []


def _trim(lists: _Lists, words: Command) -> list[bytes]:
    there = list(lists.get(words[1], deque()))
    first, last = (int(word) + (len(there) if word.startswith(b"-") else 0) for word in words[2:4])
    kept = there[max(first, 0) : last + 1]
    lists[words[1]] = deque(kept)
    return [*there[: max(first, 0)], *there[last + 1 :]]


def _delete(lists: _Lists, words: Command) -> list[bytes]:
    return [data for key in words[1:] for data in lists.pop(key, deque())]


_STEPS: dict[bytes, Callable[[_Lists, Command], list[bytes]]] = {
    b"LPUSH": _push,
    b"RPUSH": _push,
    b"LPOP": _pop,
    b"RPOP": _pop,
    b"LREM": _remove,
    b"LTRIM": _trim,
    b"DEL": _delete,
    b"UNLINK": _delete,
}
