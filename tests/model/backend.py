"""The batch script in memory: the queues of a backend, and what blocks of a call do on them (batch.lua)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import hiredis

from pressure_server.lua.layout import CUT, RECOVER, BlockField, Header

PREFIX = b"p"
RECORDS = b"p!calls:me"
FREE = {b"producer": b":producer_free", b"consumer": b":consumer_free"}

# What goes on with a run that lacks something: its result, and what goes on then.
GoOn = Callable[[], tuple[Any, "GoOn | None"]]


def error(text: str) -> Exception:
    """Return an error reply."""
    return hiredis.ReplyError(text)


@dataclass
class Queue:
    """A queue of the backend; `held` are the roles that native clients hold."""

    bound: int = 0
    messages: list[bytes] = field(default_factory=list)
    is_closed: bool = False
    held: set[bytes] = field(default_factory=set)

    @property
    def room(self) -> float:
        """How many messages may be put."""
        return max(0, self.bound - len(self.messages)) if self.bound else math.inf


@dataclass
class Record:
    """What a call has answered, and what it has taken: base keys, each with messages."""

    reply: list[Any]
    entries: list[tuple[bytes, int, list[bytes]]]


class Backend:
    """Queues by base key. `changed` is told of each key that changes."""

    def __init__(self, chance: Random, changed: Callable[[bytes], None]) -> None:
        self.queues: dict[bytes, Queue] = {}
        self.records: dict[bytes, Record] = {}
        # Messages that went with a queue that was deleted.
        self.dropped: list[bytes] = []
        # In the order in which they were put, by base key.
        self.put: dict[bytes, list[bytes]] = {}
        # How often a queue was deleted; and how often it had been when a message was put.
        self.deletions: Counter[bytes] = Counter()
        self.put_after: dict[bytes, int] = {}
        # How many messages were left behind a message when it was taken last.
        self.left_behind: dict[bytes, int] = {}
        # How often, of a thousand, something is left undone, or refused.
        self.leaves = self.refuses = 0
        self._chance = chance
        self._changed = changed
        self._entries: list[tuple[bytes, int, list[bytes]]] = []
        self._has_changed = False

    def there(self, key: bytes) -> bool:
        """Return whether a key exists that the core watches."""
        base, colon, suffix = key[len(PREFIX) + 1 :].partition(b":")
        queue = self.queues.get(PREFIX + b":" + base)
        if queue is None:
            return False
        return {
            b"": bool(queue.messages),
            b":bound": True,
            b":closed": queue.is_closed,
            b":not_full": queue.room > 0,
            b":producer_free": b"producer" not in queue.held,
            b":consumer_free": b"consumer" not in queue.held,
        }[colon + suffix]

    def call(self, keys: list[bytes], arguments: list[bytes]) -> Any:
        """Return the reply to a call of the script."""
        header = arguments[: len(Header)]
        number = header[Header.NUMBER]
        if header[Header.AGAIN] and number in self.records:
            return self.records[number].reply
        if self._happens(self.refuses):
            return error("MISCONF nothing can be written")
        for done in header[Header.DONE].split():
            self.records.pop(done, None)
        replies: list[Any] = [0]
        entries: list[tuple[bytes, int, list[bytes]]] = []
        at, has_changed, keys = len(Header), False, list(keys)
        while at < len(arguments):
            count = int(arguments[at + BlockField.ARGUMENTS])
            how = arguments[at + BlockField.HOW]
            first = at + len(BlockField)
            words, at = arguments[first : first + count], first + count
            mine, keys = (
                keys[: int(arguments[first - len(BlockField)])],
                keys[int(arguments[first - len(BlockField)]) :],
            )
            self._entries, self._has_changed = [], False
            replies.append(self._block(mine[0], how, words, header))
            entries += [(base, len(replies) - 1, some) for base, _, some in self._entries]
            has_changed = has_changed or self._has_changed
            if self._happens(self.leaves):
                break
        if number and has_changed:
            replies[0] = 1
            self.records[number] = Record(replies, entries)
        return replies

    def _happens(self, often: int) -> bool:
        return bool(often) and self._chance.randrange(1000) < often

    def _block(self, base: bytes, how: bytes, words: list[bytes], header: list[bytes]) -> Any:
        if how == RECOVER:
            return self._recover(words)
        if how == CUT:
            return self._cut(words)
        if self._happens(self.refuses):
            return error("WRONGTYPE of some key")
        runs = Runs(self, base, header)
        return runs.do(words)

    def touch(self, base: bytes, *suffixes: bytes) -> None:
        """Something has changed at these keys of a queue."""
        self._has_changed = True
        for suffix in suffixes:
            self._changed(base + suffix)

    def take(self, base: bytes, wanted: int, *, moves: bool = False) -> list[bytes]:
        """Take messages from the head."""
        queue = self.queues[base]
        some, queue.messages = queue.messages[:wanted], queue.messages[wanted:]
        if some:
            self.touch(base, b"", b":not_full")
            self.left_behind.update(dict.fromkeys(some, len(queue.messages)))
        if some and not moves:
            self._entries.append((base, 0, list(some)))
        return some

    def append(self, base: bytes, messages: list[bytes]) -> None:
        """Put messages."""
        if messages:
            self.queues[base].messages += messages
            self.put.setdefault(base, []).extend(messages)
            self.put_after.update(dict.fromkeys(messages, self.deletions[base]))
            self.touch(base, b"", b":not_full")

    def drop(self, base: bytes) -> None:
        """Delete a queue."""
        self.dropped += self.queues.pop(base).messages
        self.deletions[base] += 1
        self.touch(base, b"", *(b":bound", b":closed", b":not_full", b":producer_free", b":consumer_free"))

    def restore(self, base: bytes, messages: list[bytes]) -> int:
        """Put messages back."""
        queue = self.queues.get(base)
        if queue is None:
            self.dropped += messages
            return 0
        queue.messages[:0] = messages
        self.touch(base, b"", b":not_full")
        return len(messages)

    def put_back(self, base: bytes, number: bytes, wanted: list[bytes]) -> int:
        """Put back what a call has taken for a client that has gone."""
        record = self.records.get(number)
        if record is None:
            return 0
        count, left = 0, []
        for of, reply, some in record.entries:
            back = [message for message in some if of == base and message in wanted]
            rest = [message for message in some if message not in back]
            count += self.restore(base, back) if back else 0
            left += [(of, reply, rest)] if rest else []
        record.entries = left
        if not left:
            del self.records[number]
        self._has_changed = True
        return count

    def _recover(self, fields: list[bytes]) -> list[Any]:
        first = self.records.get(fields[0])
        reply: list[Any] = [0, len(first.reply) - 1 if first else 0, 0, b""]
        for name in fields:
            record = self.records.pop(name, None)
            for base, _, some in reversed(record.entries if record else []):
                reply += [base, self.restore(base, some)]
        self._has_changed = True
        return reply

    def _cut(self, words: list[bytes]) -> int:
        number, *rest = words
        wanted: set[bytes] = set()
        while rest:
            _, count, *rest = rest
            wanted |= set(rest[: int(count)])
            rest = rest[int(count) :]
        record = self.records.get(number)
        if record is None:
            return 0
        record.entries = [
            (base, reply, [m for m in some if m in wanted]) for base, reply, some in record.entries
        ]
        record.entries = [entry for entry in record.entries if entry[2]]
        if not record.entries:
            del self.records[number]
        return sum(len(some) for _, _, some in record.entries)

    def leftover(self, wanted: int) -> int:
        """Return how many of so many are taken before the call is long enough."""
        return self._chance.randrange(1, wanted) if wanted > 1 and self._happens(self.leaves) else wanted


@dataclass
class _Waiting:
    number: int
    role: bytes
    go_on: GoOn


class Runs:
    """What one block does."""

    def __init__(self, backend: Backend, base: bytes, header: list[bytes]) -> None:
        self._backend = backend
        self._base = base
        self._bound = header[Header.BOUND]
        self._blocks = header[Header.OVERFLOW] == b"block"
        self._waiting: list[_Waiting] = []
        self._more: list[Any] = []
        self._left = 0

    @property
    def _queue(self) -> Queue | None:
        return self._backend.queues.get(self._base)

    def do(self, words: list[bytes]) -> list[Any]:
        """Do the runs. Return the reply of the block."""
        reply: list[Any] = [0]
        while words and not self._left:
            name, count, *words = words
            arguments, words = words[: int(count)], words[int(count) :]
            verb, *options = name.split()
            result, go_on = getattr(self, "_" + verb.decode())(arguments, set(options))
            reply.append(result)
            if go_on is not None:
                role = b"producer" if verb == b"put" else b"consumer"
                self._waiting.append(_Waiting(len(reply) - 1, role, go_on))
            if self._waiting and (go_on is None or _got_on(result)):
                self._serve()
        queue = self._queue
        found = -2 if queue is None else -1 if queue.bound else 0
        reply[0] = self._left or found
        for one in self._waiting if queue is not None else ():
            if one.role in self._queue.held:  # type: ignore[union-attr] # it is there
                self._more += [0, one.role]
        if self._more:
            reply[0] = [reply[0], *self._more]
        return reply

    def _serve(self) -> None:
        left, progress = self._left, True
        while progress and self._waiting:
            progress = False
            for one in list(self._waiting):
                result, go_on = one.go_on()
                if go_on is None or _got_on(result):
                    progress = True
                    self._more += [one.number, result]
                if go_on is None:
                    self._waiting.remove(one)
                else:
                    one.go_on = go_on
        self._left = left  # of the run that is being done: the others are tried again

    def _put(self, arguments: list[bytes], options: set[bytes]) -> tuple[Any, GoOn | None]:
        sizes, *messages = arguments
        each = [int(size) for size in sizes.split()] or [1] * len(messages)
        return self._put_some(each, messages, options)

    def _put_some(
        self, sizes: list[int], messages: list[bytes], options: set[bytes]
    ) -> tuple[Any, GoOn | None]:
        queue = self._queue
        if queue is None:
            if b"existing" in options or not self._bound:
                return error("NOQUEUE"), None
            queue = self._make(int(self._bound))
        if queue.is_closed:
            return error("CLOSED"), None
        room = math.inf if b"overfill" in options else queue.room
        if b"producer" in queue.held and room:
            return error("INUSE producer native"), None
        unique, before = b"unique" in options, len(queue.messages)
        if len(messages) <= room and b"producer" not in queue.held:
            self._backend.append(self._base, messages)
            return b"new" if unique else before, None
        if (self._blocks or b"wait" in options) and b"now" not in options:
            done = int(room)
            self._backend.append(self._base, messages[:done])
            values, at = [], 0
            for size in sizes:
                if at + size > done:
                    break
                at += size
                values.append(size if unique else before + at)
            rest = sizes[len(values) :]
            rest[0] -= done - at
            result = [b"part", done - at, done - at, values]
            return result, lambda: self._put_some(rest, messages[done:], options | {b"existing"})
        lengths, at = [], 0
        for size in sizes:
            fits = size <= queue.room and b"producer" not in queue.held
            if fits:
                self._backend.append(self._base, messages[at : at + size])
            lengths.append((size if unique else len(queue.messages)) if fits else -1)
            at += size
        return lengths, None

    def _make(self, bound: int) -> Queue:
        self._backend.queues[self._base] = Queue(bound)
        self._backend.touch(self._base, b":bound", b":not_full", b":producer_free", b":consumer_free")
        return self._backend.queues[self._base]

    def _get(self, arguments: list[bytes], options: set[bytes]) -> tuple[Any, GoOn | None]:
        return self._get_some(int(arguments[0]), options)

    def _get_some(self, wanted: int, options: set[bytes]) -> tuple[Any, GoOn | None]:
        queue, waits = self._queue, b"waits" in options
        if queue is None:
            if not waits or b"existing" in options:
                return error("NOQUEUE"), None
            return None, lambda: self._get_some(wanted, options)
        if waits and not queue.messages and queue.is_closed:
            return error("CLOSED"), None
        if queue.messages and b"consumer" in queue.held:
            return error("INUSE consumer native"), None
        some = self._backend.take(self._base, self._backend.leftover(wanted))
        missing = wanted - len(some)
        if queue.messages and missing:
            self._left = missing
            return some, None
        if waits and missing and not (b"several" in options and some):
            return some, lambda: self._get_some(missing, options)
        return some, None

    def _move(self, arguments: list[bytes], options: set[bytes]) -> tuple[Any, GoOn | None]:
        def again() -> tuple[Any, GoOn | None]:
            return self._move(arguments, options)

        queue, waits = self._queue, b"waits" in options
        if queue is None and b"existing" in options:
            return error("NOQUEUE"), None
        if queue is None or not queue.messages:
            if not waits:
                return [], None
            if queue is not None and queue.is_closed:
                return error("CLOSED"), None
            return (None if queue is None else []), again
        if b"consumer" in queue.held:
            return error("INUSE consumer native"), None
        message, home = queue.messages[0], self._base
        if arguments[0] == home:
            self._backend.take(home, 1, moves=True)
            self._backend.append(home, [message])
            return [message], None
        self._base = arguments[0]
        into = (options & {b"unique"}) | ({b"existing"} if b"into" in options else set())
        result, go_on = self._put_some([1], [message], into)
        self._base = home
        if isinstance(result, Exception):
            return error(f"OTHER {result}"), None
        if go_on is not None:
            return -1, again
        if result == [-1]:
            return error("OTHER FULL"), None
        self._backend.take(home, 1, moves=True)
        return [message], None

    def _put_back(self, arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        number, *messages = arguments
        return self._backend.put_back(self._base, number, messages), None

    def _length(self, _arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        return (error("NOQUEUE") if self._queue is None else len(self._queue.messages)), None

    def _create(self, arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        if self._queue is not None:
            return error("EXISTS"), None
        self._make(int(arguments[0]))
        return 1, None

    def _close(self, _arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        queue = self._queue
        if queue is None:
            return error("NOQUEUE"), None
        if queue.is_closed:
            return error("CLOSED"), None
        if b"producer" in queue.held:
            return error("INUSE producer native"), None
        queue.is_closed = True
        self._backend.touch(self._base, b":closed")
        return 1, None

    def _delete(self, _arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        queue = self._queue
        if queue is None:
            return error("NOQUEUE"), None
        self._backend.drop(self._base)
        return 1, None

    def _turn(self, _arguments: list[bytes], _options: set[bytes]) -> tuple[Any, GoOn | None]:
        return 1, None


def _got_on(result: Any) -> bool:
    if not isinstance(result, list):
        return isinstance(result, Exception)
    if result[:1] == [b"part"]:
        return result[1] > 0 or bool(result[3])
    return bool(result)
