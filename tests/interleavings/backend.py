"""The library in memory: the queues of a backend, and what the blocks of a call do with them."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import hiredis

from pressure_server.lua.layout import CUT, RECOVER, BlockField, Header
from tests.support.reference import queue as reference
from tests.support.reference.queue import RefusedError

PREFIX = b"p"

# The result of a run; and if the run waits, the function that tries it again.
Outcome = tuple[Any, "Callable[[], Outcome] | None"]
# A base key, and messages that were taken there.
Taken = tuple[bytes, list[bytes]]


@dataclass
class Queue(reference.Queue):
    """A queue of the backend; `held` are the roles that native clients hold."""

    held: set[bytes] = field(default_factory=set)

    def require_role(self, role: bytes) -> None:
        """Raise INUSE if a native client holds the role."""
        if role in self.held:
            raise hiredis.ReplyError(f"INUSE {role.decode()} native")


@dataclass
class Record:
    """The record of a call: its reply, and the messages that it has taken."""

    reply: list[Any]
    taken: list[Taken]


class Backend:
    """The queues, by base key. `changed` is called with each key that changes."""

    def __init__(self, random: Random, changed: Callable[[bytes], None]) -> None:
        self.queues: dict[bytes, Queue] = {}
        self.records: dict[bytes, Record] = {}
        # Messages that were deleted with their queue, or taken by native clients.
        self.gone: list[bytes] = []
        # All messages that were put, by base key.
        self.put: defaultdict[bytes, list[bytes]] = defaultdict(list)
        # How often each queue was deleted, by base key; and the same at the time of each message's put.
        self.deletions: Counter[bytes] = Counter()
        self.deletions_before_put: dict[bytes, int] = {}
        # How many messages the queue had after each message was taken.
        self.left_after_take: dict[bytes, int] = {}
        # How many of 1000 calls end early, and how many of 1000 calls and blocks are refused.
        self.early_ends = self.refusals = 0
        self._random = random
        self._changed = changed
        self._taken: list[Taken] = []
        self._has_changed = False

    def exists(self, key: bytes) -> bool:
        """Return whether a key exists that the server watches."""
        base, colon, suffix = key[len(PREFIX) + 1 :].partition(b":")
        queue = self.queues.get(PREFIX + b":" + base)
        if queue is None:
            return False
        return {
            b"": bool(queue.messages),
            b":bound": True,
            b":closed": queue.is_closed,
            b":ext:ready": False,  # the model has no jobs
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
        if self._happens(self.refusals):
            return hiredis.ReplyError("MISCONF nothing can be written")
        for done in header[Header.DONE].split():
            self.records.pop(done, None)
        replies: list[Any] = [0]
        self._taken, self._has_changed = [], False
        at, next_key = len(Header), 0
        while at < len(arguments):
            first = at + len(BlockField)
            fields = arguments[at:first]
            at = first + int(fields[BlockField.ARGUMENTS])
            base = keys[next_key]
            next_key += int(fields[BlockField.KEYS])
            replies.append(self._do_block(base, fields[BlockField.HOW], arguments[first:at], header))
            if self._happens(self.early_ends):
                break
        if number and self._has_changed:
            replies[0] = 1
            self.records[number] = Record(replies, self._taken)
        return replies

    def _happens(self, times_in_1000: int) -> bool:
        return bool(times_in_1000) and self._random.randrange(1000) < times_in_1000

    def _do_block(self, base: bytes, how: bytes, words: list[bytes], header: list[bytes]) -> Any:
        if how == RECOVER:
            return self._recover(words)
        if how == CUT:
            return self._cut(words)
        if self._happens(self.refusals):
            return hiredis.ReplyError("WRONGTYPE of some key")
        return Runs(self, base, header).do(words)

    def touch(self, base: bytes, *suffixes: bytes) -> None:
        """Note that these keys of a queue have changed."""
        self._has_changed = True
        for suffix in suffixes:
            self._changed(base + suffix)

    def take(self, base: bytes, wanted: int, *, moves: bool = False) -> list[bytes]:
        """Take messages from the head; with `moves`, they go to another queue at once."""
        queue = self.queues[base]
        messages = queue.take(wanted)
        if messages:
            self.touch(base, b"", b":not_full")
            self.left_after_take.update(dict.fromkeys(messages, len(queue.messages)))
        if messages and not moves:
            self._taken.append((base, list(messages)))
        return messages

    def take_one(self, base: bytes, message: bytes) -> None:
        """Take this message, the oldest of its copies; it goes to another queue at once."""
        messages = self.queues[base].messages
        messages.insert(0, messages.pop(messages.index(message)))
        self.take(base, 1, moves=True)

    def append(self, base: bytes, messages: list[bytes]) -> None:
        """Put messages."""
        if messages:
            self.queues[base].put(messages, overfill=True)
            self.put[base] += messages
            self.deletions_before_put.update(dict.fromkeys(messages, self.deletions[base]))
            self.touch(base, b"", b":not_full")

    def delete(self, base: bytes) -> None:
        """Delete a queue."""
        self.gone += self.queues.pop(base).messages
        self.deletions[base] += 1
        self.touch(base, b"", *(b":bound", b":closed", b":not_full", b":producer_free", b":consumer_free"))

    def restore(self, base: bytes, messages: list[bytes]) -> int:
        """Put messages back at the head. Return how many; 0 if the queue does not exist."""
        queue = self.queues.get(base)
        if queue is None:
            self.gone += messages
            return 0
        queue.restore(messages)
        self.touch(base, b"", b":not_full")
        return len(messages)

    def put_back(self, base: bytes, number: bytes, wanted: list[bytes]) -> int:
        """Put back messages that a call has taken from a queue. Return how many."""
        record = self.records.get(number)
        if record is None:
            return 0
        count, left = 0, []
        for origin, messages in record.taken:
            back = [message for message in messages if origin == base and message in wanted]
            count += self.restore(base, back) if back else 0
            left.append((origin, [message for message in messages if message not in back]))
        self._reduce(number, left)
        self._has_changed = True
        return count

    def _recover(self, fields: list[bytes]) -> list[Any]:
        first = self.records.get(fields[0])
        reply: list[Any] = [0, len(first.reply) - 1 if first else 0, 0, b""]
        for name in fields:
            record = self.records.pop(name, None)
            for base, messages in reversed(record.taken if record else []):
                reply += [base, self.restore(base, messages)]
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
        return self._reduce(
            number, [(base, [m for m in messages if m in wanted]) for base, messages in record.taken]
        )

    def _reduce(self, number: bytes, left: list[Taken]) -> int:
        """Reduce a record to these messages. Return how many."""
        self.records[number].taken = left = [(base, messages) for base, messages in left if messages]
        if not left:
            del self.records[number]
        return sum(len(messages) for _, messages in left)

    def limited(self, wanted: int) -> int:
        """Return how many of the wanted messages the call may take before it ends."""
        return self._random.randrange(1, wanted) if wanted > 1 and self._happens(self.early_ends) else wanted


@dataclass
class _WaitingRun:
    number: int
    role: bytes
    retry: Callable[[], Outcome]


class Runs:
    """The runs of one block."""

    def __init__(self, backend: Backend, base: bytes, header: list[bytes]) -> None:
        self._backend = backend
        self._base = base
        self._bound = header[Header.BOUND]
        self._blocks = header[Header.OVERFLOW] == b"block"
        self._waiting: list[_WaitingRun] = []
        self._later_results: list[Any] = []
        self._left = 0

    @property
    def _queue(self) -> Queue | None:
        return self._backend.queues.get(self._base)

    def _existing_queue(self) -> Queue:
        if self._queue is None:
            raise hiredis.ReplyError("NOQUEUE")
        return self._queue

    def do(self, words: list[bytes]) -> list[Any]:
        """Do the runs. Return the reply of the block."""
        reply: list[Any] = [0]
        while words and not self._left:
            name, count, *words = words
            arguments, words = words[: int(count)], words[int(count) :]
            verb, *options = name.split()
            run = getattr(self, "_" + verb.decode())
            result, retry = _outcome(run, arguments, set(options))
            reply.append(result)
            if retry is not None:
                role = b"producer" if verb == b"put" else b"consumer"
                self._waiting.append(_WaitingRun(len(reply) - 1, role, retry))
            if self._waiting and (retry is None or _has_progress(result)):
                self._serve_waiting()
        queue = self._queue
        reply[0] = self._left or (-2 if queue is None else -1 if queue.bound else 0)
        if queue is not None:
            for waiting in self._waiting:
                if waiting.role in queue.held:
                    self._later_results += [0, waiting.role]
        if self._later_results:
            reply[0] = [reply[0], *self._later_results]
        return reply

    def _serve_waiting(self) -> None:
        left, progress = self._left, True
        while progress and self._waiting:
            progress = False
            for waiting in list(self._waiting):
                result, retry = _outcome(waiting.retry)
                if retry is None or _has_progress(result):
                    progress = True
                    self._later_results += [waiting.number, result]
                if retry is None:
                    self._waiting.remove(waiting)
                else:
                    waiting.retry = retry
        self._left = left  # only the present run counts: waiting runs are tried again

    def _put(self, arguments: list[bytes], options: set[bytes]) -> Outcome:
        sizes, *messages = arguments
        return self._put_messages(
            [int(size) for size in sizes.split()] or [1] * len(messages), messages, options
        )

    def _put_messages(self, sizes: list[int], messages: list[bytes], options: set[bytes]) -> Outcome:
        queue = self._queue
        if queue is None:
            if b"existing" in options or not self._bound:
                raise hiredis.ReplyError("NOQUEUE")
            queue = self._make(int(self._bound))
        queue.require_open()
        room = math.inf if b"overfill" in options else queue.room
        if room:
            queue.require_role(b"producer")
        is_held = b"producer" in queue.held
        unique, before = b"unique" in options, len(queue.messages)
        if len(messages) <= room and not is_held:
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
            return result, lambda: self._put_messages(rest, messages[done:], options | {b"existing"})
        lengths, at = [], 0
        for size in sizes:
            fits = size <= queue.room and not is_held
            if fits:
                self._backend.append(self._base, messages[at : at + size])
            lengths.append((size if unique else len(queue.messages)) if fits else -1)
            at += size
        return lengths, None

    def _make(self, bound: int) -> Queue:
        self._backend.queues[self._base] = Queue(bound)
        self._backend.touch(self._base, b":bound", b":not_full", b":producer_free", b":consumer_free")
        return self._backend.queues[self._base]

    def _get(self, arguments: list[bytes], options: set[bytes]) -> Outcome:
        return self._get_messages(int(arguments[0]), options)

    def _get_messages(self, wanted: int, options: set[bytes]) -> Outcome:
        waits = b"waits" in options
        if self._queue is None and waits and b"existing" not in options:
            return None, lambda: self._get_messages(wanted, options)
        queue = self._existing_queue()
        if waits and queue.is_finished:
            raise hiredis.ReplyError("CLOSED")
        if queue.messages:
            queue.require_role(b"consumer")
        messages = self._backend.take(self._base, self._backend.limited(wanted))
        missing = wanted - len(messages)
        if queue.messages and missing:
            self._left = missing
            return messages, None
        if waits and missing and not (b"several" in options and messages):
            return messages, lambda: self._get_messages(missing, options)
        return messages, None

    def _move(self, arguments: list[bytes], options: set[bytes]) -> Outcome:
        def retry() -> Outcome:
            return self._move(arguments, options)

        queue = self._existing_queue() if b"existing" in options else self._queue
        destination, *wanted = arguments
        message = next((m for m in queue.messages if m in wanted or not wanted), None) if queue else None
        if queue is None or message is None:
            if b"waits" not in options:
                return [], None
            if queue is not None and queue.is_finished:
                raise hiredis.ReplyError("CLOSED")
            return (None if queue is None else []), retry
        queue.require_role(b"consumer")
        source = self._base
        if destination == source:
            queue.require_open()
            self._backend.take_one(source, message)
            self._backend.append(source, [message])
            return [message], None
        put_options = (options & {b"unique"}) | ({b"existing"} if b"into" in options else set())
        self._base = destination
        result, put_retry = _outcome(self._put_messages, [1], [message], put_options)
        self._base = source
        if isinstance(result, Exception):
            raise hiredis.ReplyError(f"OTHER {result}")
        if put_retry is not None:
            return -1, retry
        if result == [-1]:
            raise hiredis.ReplyError("OTHER FULL")
        self._backend.take_one(source, message)
        return [message], None

    def _put_back(self, arguments: list[bytes], _options: set[bytes]) -> Outcome:
        number, *messages = arguments
        return self._backend.put_back(self._base, number, messages), None

    def _length(self, _arguments: list[bytes], _options: set[bytes]) -> Outcome:
        return len(self._existing_queue().messages), None

    def _create(self, arguments: list[bytes], _options: set[bytes]) -> Outcome:
        if self._queue is not None:
            raise hiredis.ReplyError("EXISTS")
        self._make(int(arguments[0]))
        return 1, None

    def _close(self, _arguments: list[bytes], _options: set[bytes]) -> Outcome:
        queue = self._existing_queue()
        if not queue.is_closed:
            queue.require_role(b"producer")
        queue.close()
        self._backend.touch(self._base, b":closed")
        return 1, None

    def _delete(self, _arguments: list[bytes], _options: set[bytes]) -> Outcome:
        self._existing_queue()
        self._backend.delete(self._base)
        return 1, None

    def _turn(self, _arguments: list[bytes], _options: set[bytes]) -> Outcome:
        return 1, None


def _outcome(run: Callable[..., Outcome], *arguments: Any) -> Outcome:
    """Do a run and return its outcome. The result of a refused run is the error."""
    try:
        return run(*arguments)
    except hiredis.ReplyError as error:
        return error, None
    except RefusedError as refusal:
        return hiredis.ReplyError(str(refusal)), None


def _has_progress(result: Any) -> bool:
    if not isinstance(result, list):
        return isinstance(result, Exception)
    if result[:1] == [b"part"]:
        return result[1] > 0 or bool(result[3])
    return bool(result)
