"""What a client does on a queue, step by step: shared by the synchronous client and that of asyncio.

Each operation is a generator. It yields steps, is sent what Redis has answered, or has the exception thrown
that came instead, and returns the result. docs/guides/native-client.md says how it waits, and why so.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from pressure_server.client.arguments import as_bytes, checked_bound, checked_timeout
from pressure_server.errors import PressureError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from pressure_server.lua.layout import BlockField, Header
from pressure_server.queues.names import (
    BOUND,
    CLOSED,
    CONSUMER_FREE,
    CONSUMER_TURN,
    NOT_FULL,
    PRODUCER_FREE,
    PRODUCER_TURN,
    base_key,
    printable,
)
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait_condition import watched_keys

# Of a call's arguments: where its block begins, and the first run in it.
_BLOCK = len(Header)
_RUNS = _BLOCK + len(BlockField)
_TAKE = b"get existing waits"
# Seconds in line for a role, until it is looked whether that still makes sense: a Delete cannot wake who is
# in line (pressure 0.15), and a client of ours that died in its turn hands nothing on.
_LONGEST_IN_LINE = 10.0
_LONGEST_IN_LINE_OF_DELETED = 1.0
# Seconds without news, until it is tried again: a server deletes queues that nobody has used for long, and to
# try is to use (life.lua, expire).
_LONGEST_WITHOUT_NEWS = 5.0


class QueueEmptyError(PressureError):
    """A get that does not wait, or not any longer, found no message."""

    code = "EMPTY"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue '{queue}' is empty: wait for a message, or try again")


class Call(NamedTuple):
    """Call the batch script on a queue; the answer is what batch.lua returns."""

    base: bytes
    arguments: list[bytes]


class Command(NamedTuple):
    """Send a command, which may take as long as it wants; the answer is its reply."""

    words: tuple[bytes | float, ...]


class Listen(NamedTuple):
    """Hear from now on of changes to keys that begin with one of these."""

    prefixes: list[bytes]


class News(NamedTuple):
    """Hear of a change within so many seconds.

    The answer is the keys that have changed: None for all, () for none in time.
    """

    seconds: float


Step = Call | Command | Listen | News
Result = TypeVar("Result")
Steps = Generator[Step, Any, Result]


@dataclass(frozen=True)
class _Role:
    """Suffixes: of its token, of where that is parked for one of ours, of what its holder waits for."""

    free: bytes
    turn: bytes
    comes: bytes


_PRODUCER = _Role(PRODUCER_FREE, PRODUCER_TURN, NOT_FULL)
_CONSUMER = _Role(CONSUMER_FREE, CONSUMER_TURN, b"")
# To close, the role is enough.
_CLOSER = _Role(PRODUCER_FREE, PRODUCER_TURN, PRODUCER_TURN)


class QueueSteps:
    """The operations on one queue. `timeout` is in seconds: None waits for ever, 0 not at all.

    Each raises QueueDoesNotExistError, but for `create` and `exists`; and TypeError or ValueError for
    arguments that make no sense. Raises QueueNameError, TypeError.
    """

    def __init__(self, name: str | bytes, prefix: str | bytes) -> None:
        self._name = as_bytes(name, "a queue's name")
        self._base = base_key(as_bytes(prefix, "a prefix"), self._name)
        identity = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # No record is kept: a call that gets no answer is not sent again.
        self._header = [identity.encode(), b"", b"block", b"", b"", b"", b""]

    def create(self, bound: int) -> Steps[None]:
        """Create; 0 is no bound. Raises QueueAlreadyExistsError, QueueInUseError while one is deleted."""
        yield from self._call(b"create", b"%d" % checked_bound(bound))

    def exists(self) -> Steps[bool]:
        """Exists."""
        return bool((yield from self._call(b"exists")))

    def length(self) -> Steps[int]:
        """Length."""
        length: int = yield from self._call(b"length")
        return length

    def closed(self) -> Steps[bool]:
        """Closed."""
        return bool((yield from self._call(b"info"))[2])

    def put(self, message: str | bytes, timeout: float | None) -> Steps[None]:
        """Put. Raises QueueClosedError; when the time is up QueueFullError or QueueInUseError."""
        data = as_bytes(message, "a message")

        def attempt() -> Steps[None]:
            # The length before, where there was room; else a list, by how full queues are to be met.
            if not isinstance((yield from self._call(b"put existing", b"", data)), int):
                raise QueueFullError(printable(self._name))

        yield from self._do(attempt, _PRODUCER, timeout)

    def get(self, timeout: float | None) -> Steps[bytes]:
        """Get. Raises QueueClosedError; when the time is up QueueEmptyError or QueueInUseError."""

        def attempt() -> Steps[bytes]:
            messages: list[bytes] = yield from self._call(_TAKE, b"1")
            if not messages:
                raise QueueEmptyError(printable(self._name))
            return messages[0]

        return (yield from self._do(attempt, _CONSUMER, timeout))

    def close(self, timeout: float | None) -> Steps[None]:
        """Close. Raises QueueClosedError where it is; QueueInUseError when the time is up."""

        def attempt() -> Steps[None]:
            yield from self._call(b"close")

        yield from self._do(attempt, _CLOSER, timeout)

    def delete(self) -> Steps[None]:
        """Delete, with all messages. Waits for native clients that hold a role, as the protocol does."""
        if (yield from self._call(b"delete")) != b"begun":
            return
        try:
            for role in cycle((_PRODUCER, _CONSUMER)):
                yield self._line(role, _LONGEST_IN_LINE_OF_DELETED)
                with suppress(QueueInUseError):
                    yield from self._call(b"finish_delete")
                    return
        finally:
            # They may be those of a queue that has been created since.
            yield from self._call(b"turn")

    def _call(self, name: bytes, *arguments: bytes) -> Steps[Any]:
        *_, reply = yield self._packed(name, *arguments)
        if isinstance(reply, Exception):
            raise reply
        result = reply[1]
        if isinstance(result, Exception):
            error = exception_for(self._name, str(result))
            if isinstance(error, QueueDoesNotExistError):
                # A native Delete does not know of our keys.
                yield self._packed(b"clean")
            raise error
        return result

    def _packed(self, name: bytes, *arguments: bytes) -> Call:
        return Call(self._base, [*self._header, *_block(name, *arguments)])

    def _do(self, attempt: Callable[[], Steps[Result]], role: _Role, timeout: float | None) -> Steps[Result]:
        """Attempt it until it is done. Raises what it last lacked when the time is up."""
        timeout = checked_timeout(timeout)
        end = None if timeout is None else monotonic() + timeout
        try:
            return (yield from attempt())
        except (QueueFullError, QueueEmptyError, QueueInUseError) as lack:
            if timeout is not None and timeout <= 0:
                raise
            reason: PressureError = lack
        keys = self._keys(role)
        # Redis takes no prefix of another.
        yield Listen(
            [key for key in keys if not any(key != other and key.startswith(other) for other in keys)]
        )
        stood_in_line = False
        try:
            while True:
                yield from self._catch_up()
                seen = yield from self._look(role)
                left = None if end is None else end - monotonic()
                if left is not None and left <= 0:
                    raise reason
                if BOUND in seen and not seen & {role.free, role.turn}:
                    # A native client holds the role, for as long as it waits for what we lack, too.
                    stood_in_line = True
                    yield self._line(role, _LONGEST_IN_LINE if left is None else min(left, _LONGEST_IN_LINE))
                    continue
                try:
                    return (yield from attempt())
                except (QueueFullError, QueueEmptyError, QueueInUseError) as lack:
                    reason = lack
                yield from self._change(role, end)
        except BaseException:
            if stood_in_line:
                yield from self._call(b"turn")
            raise

    def _line(self, role: _Role, seconds: float) -> Command:
        """Stand in line with native clients, until the role's token is parked where only ours find it."""
        token, parked = self._base + role.free, self._base + role.turn
        return Command((b"BLMOVE", token, parked, b"RIGHT", b"LEFT", max(seconds, 0.01)))

    def _look(self, role: _Role) -> Steps[set[bytes]]:
        """The suffixes of those keys that exist, of all that matter."""
        suffixes = _that_matter(role)
        mask: int = yield Command((b"EXISTS", *watched_keys(self._base, suffixes)))
        return {suffix for place, suffix in enumerate(suffixes) if mask & (1 << place)}

    def _catch_up(self) -> Steps[None]:
        while (yield News(0)) != ():
            pass

    def _change(self, role: _Role, end: float | None) -> Steps[None]:
        """Return when a key that matters has changed, or the time is up, or it is time to try again."""
        keys = self._keys(role)
        again = monotonic() + _LONGEST_WITHOUT_NEWS
        until = again if end is None else min(again, end)
        while True:
            changed = yield News(max(0.0, until - monotonic()))
            if not changed or not keys.isdisjoint(changed):
                return

    def _keys(self, role: _Role) -> set[bytes]:
        return {self._base + suffix for suffix in _that_matter(role)}


def undoing(call: Call, reply: Any) -> Call | None:
    """What puts back what a call has taken for somebody who has gone; None where there is nothing."""
    answer = reply[-1]
    taken = answer[1] if isinstance(answer, list) else None
    if call.arguments[_RUNS] != _TAKE or not isinstance(taken, list) or not taken:
        return None
    return Call(call.base, [*call.arguments[:_BLOCK], *_block(b"restore", *taken)])


def _block(name: bytes, *arguments: bytes) -> list[bytes]:
    """The one block of a call."""
    run = [name, b"%d" % len(arguments), *arguments]
    return [b"1", b"%d" % len(run), b"", *run]


def _that_matter(role: _Role) -> list[bytes]:
    return [*dict.fromkeys((BOUND, CLOSED, role.free, role.turn, role.comes))]
