"""The operations on a queue, step by step: shared by the synchronous and the asyncio client.

Each operation is a generator. It yields steps, receives Redis's answer to each, or the exception that came
instead, and returns the result. docs/guides/native-client.md explains how it waits, and why.
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
    DUE,
    NOT_FULL,
    PRODUCER_FREE,
    PRODUCER_TURN,
    READY,
    base_key,
    records_key,
)
from pressure_server.queues.operations.batch import Due
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait_condition import watched_keys
from pressure_server.text import printable

# Positions in a call's arguments: of its block, and of the first run in the block.
_BLOCK = len(Header)
_RUNS = _BLOCK + len(BlockField)
_TAKE = b"get existing waits"
# Seconds in line for a role before the client checks whether waiting still makes sense: a Delete does not
# wake clients in line (pressure 0.15), and a client of this library that died in its turn gives nothing back.
_LINE_TIMEOUT = 10.0
_LINE_TIMEOUT_OF_DELETED = 1.0
# Seconds without news before the client tries again. Each try counts as use of the queue: servers delete
# queues that have not been used for long (life.lua, expire).
_MAX_SILENCE = 5.0


class QueueEmptyError(PressureError):
    """The queue has no message, and the get does not wait or its time is up."""

    code = "EMPTY"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue '{queue}' is empty: wait for a message, or try again")


class Call(NamedTuple):
    """A step: call the batch script on a queue. The answer is its reply (layout.py)."""

    keys: list[bytes]
    arguments: list[bytes]


class Command(NamedTuple):
    """A step: send a command, without a timeout. The answer is its reply."""

    words: tuple[bytes | float, ...]


class Listen(NamedTuple):
    """A step: begin to listen for changes of keys with these prefixes."""

    prefixes: list[bytes]


class News(NamedTuple):
    """A step: wait up to `seconds` for a change.

    The answer is a list of changed keys; None if all may have changed, () if none has changed in time.
    """

    seconds: float


Step = Call | Command | Listen | News
Result = TypeVar("Result")
Steps = Generator[Step, Any, Result]


@dataclass(frozen=True)
class _Role:
    """A role, as key suffixes: of its token, of the parked token, and of what the role's holder waits for."""

    free: bytes
    turn: bytes
    comes: tuple[bytes, ...]


_PRODUCER = _Role(PRODUCER_FREE, PRODUCER_TURN, (NOT_FULL,))
_CONSUMER = _Role(CONSUMER_FREE, CONSUMER_TURN, (b"", READY, DUE))
# A close needs the role only, so it waits for no other key.
_CLOSER = _Role(PRODUCER_FREE, PRODUCER_TURN, ())


class QueueSteps:
    """The operations on one queue. A `timeout` is in seconds; None waits for ever, 0 does not wait.

    All but `create` and `exists` raise QueueDoesNotExistError. Invalid arguments raise TypeError or
    ValueError; an invalid name raises TypeError or QueueNameError.
    """

    def __init__(self, name: str | bytes, prefix: str | bytes) -> None:
        self._name = as_bytes(name, "a queue's name")
        self._base = base_key(as_bytes(prefix, "a prefix"), self._name)
        identity = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # The call has no number, so no record is kept: a call without an answer is not sent again.
        # Ids of jobs are given by an index, which the script finds beside this key. It writes no records.
        records = records_key(as_bytes(prefix, "a prefix"), identity.encode())
        self._keys_of_call = [self._base, records]
        # In how many seconds the queue may have another job; None for never. As of the last call.
        self._due: float | None = None
        # The list of the log whose messages the queue gets, if it belongs to a group.
        self._log: set[bytes] = set()
        self._header = [identity.encode(), b"", b"block", b"0 0", b"", b"", b"", b""]

    def create(self, bound: int) -> Steps[None]:
        """Create the queue; a bound of 0 means unbounded.

        Raises QueueAlreadyExistsError, or QueueInUseError while a client is deleting the queue.
        """
        yield from self._call(b"create", b"%d" % checked_bound(bound))

    def exists(self) -> Steps[bool]:
        """Return whether the queue exists."""
        return bool((yield from self._call(b"exists")))

    def length(self) -> Steps[int]:
        """Return the number of queued messages."""
        length: int = yield from self._call(b"length")
        return length

    def closed(self) -> Steps[bool]:
        """Return whether the queue has been closed."""
        return bool((yield from self._call(b"info"))[2])

    def put(self, message: str | bytes, timeout: float | None) -> Steps[None]:
        """Put a message.

        Raises QueueClosedError; when the time is up, QueueFullError or QueueInUseError.
        """
        data = as_bytes(message, "a message")

        def attempt() -> Steps[None]:
            # An int is the length before the put. A list, of a form that depends on the overflow setting, is
            # the reply of a full queue.
            if not isinstance((yield from self._call(b"put existing", b"", data)), int):
                raise QueueFullError(printable(self._name))

        yield from self._do(attempt, _PRODUCER, timeout)

    def get(self, timeout: float | None) -> Steps[bytes]:
        """Take the oldest message.

        Raises QueueClosedError if the queue is closed and empty; when the time is up, QueueEmptyError or
        QueueInUseError.
        """

        def attempt() -> Steps[bytes]:
            messages: list[bytes] = yield from self._call(_TAKE, b"1")
            if not messages:
                raise QueueEmptyError(printable(self._name))
            return messages[0]

        return (yield from self._do(attempt, _CONSUMER, timeout))

    def close(self, timeout: float | None) -> Steps[None]:
        """Close the queue.

        Raises QueueClosedError if it is closed already; when the time is up, QueueInUseError.
        """

        def attempt() -> Steps[None]:
            yield from self._call(b"close")

        yield from self._do(attempt, _CLOSER, timeout)

    def delete(self) -> Steps[None]:
        """Delete the queue with all messages.

        Wait for native clients that hold a role, as the protocol requires.
        """
        if (yield from self._call(b"delete")) != b"begun":
            return
        try:
            for role in cycle((_PRODUCER, _CONSUMER)):
                yield self._line(role, _LINE_TIMEOUT_OF_DELETED)
                with suppress(QueueInUseError):
                    yield from self._call(b"finish_delete")
                    return
        finally:
            # The parked tokens may belong to a queue that has been created in the meantime: give them back.
            yield from self._call(b"turn")

    def _call(self, name: bytes, *arguments: bytes) -> Steps[Any]:
        *_, reply = yield self._packed(name, *arguments)
        if isinstance(reply, Exception):
            raise reply
        self._due = None
        for word in reply[0] if isinstance(reply[0], list) else []:
            if isinstance(word, bytes) and word.startswith(b"due "):
                self._due = Due.of(word).seconds
            elif isinstance(word, bytes) and word.startswith(b"source "):
                self._log = {self._base[: -int(word[7:])]}
        result = reply[1]
        if isinstance(result, Exception):
            error = exception_for(self._name, str(result))
            if isinstance(error, QueueDoesNotExistError):
                # A native client's Delete leaves the keys that only the server and this library use.
                yield self._packed(b"clean")
            raise error
        return result

    def _packed(self, name: bytes, *arguments: bytes) -> Call:
        return Call(self._keys_of_call, [*self._header, *_block(name, *arguments)])

    def _do(self, attempt: Callable[[], Steps[Result]], role: _Role, timeout: float | None) -> Steps[Result]:
        """Attempt an operation until it succeeds. When the time is up, raise the last attempt's error."""
        timeout = checked_timeout(timeout)
        end = None if timeout is None else monotonic() + timeout
        try:
            return (yield from attempt())
        except (QueueFullError, QueueEmptyError, QueueInUseError) as lack:
            if timeout is not None and timeout <= 0:
                raise
            reason: PressureError = lack
        keys = self._keys(role)
        # Redis refuses prefixes of which one begins with another.
        yield Listen(
            [key for key in keys if not any(key != other and key.startswith(other) for other in keys)]
        )
        stood_in_line = False
        try:
            while True:
                yield from self._catch_up()
                seen = yield from self._look(role)
                left = None if end is None else end - monotonic()
                is_over = left is not None and left <= 0
                if BOUND in seen and not seen & {role.free, role.turn}:
                    if is_over:
                        raise reason
                    # A native client holds the role, also while it waits for the same message or room.
                    stood_in_line = True
                    yield self._line(role, _LINE_TIMEOUT if left is None else min(left, _LINE_TIMEOUT))
                    continue
                try:
                    return (yield from attempt())
                except (QueueFullError, QueueEmptyError, QueueInUseError) as lack:
                    reason = lack
                if is_over:
                    raise reason
                yield from self._change(role, end)
        except BaseException:
            if stood_in_line:
                yield from self._call(b"turn")
            raise

    def _line(self, role: _Role, seconds: float) -> Command:
        """Return the step that waits in line with native clients until the role's token is parked."""
        token, parked = self._base + role.free, self._base + role.turn
        return Command((b"BLMOVE", token, parked, b"RIGHT", b"LEFT", max(seconds, 0.01)))

    def _look(self, role: _Role) -> Steps[set[bytes]]:
        """Return the suffixes of the keys that exist, among those that show the holder of a role."""
        suffixes = [BOUND, role.free, role.turn]
        mask: int = yield Command((b"EXISTS", *watched_keys(self._base, suffixes)))
        return {suffix for place, suffix in enumerate(suffixes) if mask & (1 << place)}

    def _catch_up(self) -> Steps[None]:
        while (yield News(0)) != ():
            pass

    def _change(self, role: _Role, end: float | None) -> Steps[None]:
        """Wait until a key that matters for a role has changed, the time is up, or a new try is due."""
        keys = self._keys(role)
        again = monotonic() + (_MAX_SILENCE if self._due is None else min(_MAX_SILENCE, self._due))
        until = again if end is None else min(again, end)
        while True:
            changed = yield News(max(0.0, until - monotonic()))
            if not changed or not keys.isdisjoint(changed):
                return

    def _keys(self, role: _Role) -> set[bytes]:
        suffixes = (BOUND, CLOSED, role.free, role.turn, *role.comes)
        return self._log | {self._base + suffix for suffix in suffixes}


def undoing(call: Call, reply: Any) -> Call | None:
    """Return the call that puts back the messages that a cancelled call has taken; None if it took none."""
    answer = reply[-1]
    taken = answer[1] if isinstance(answer, list) else None
    if call.arguments[_RUNS] != _TAKE or not isinstance(taken, list) or not taken:
        return None
    return Call(call.keys, [*call.arguments[:_BLOCK], *_block(b"restore", *taken)])


def _block(name: bytes, *arguments: bytes) -> list[bytes]:
    """Return the only block of a call."""
    run = [name, b"%d" % len(arguments), *arguments]
    return [b"1", b"%d" % len(run), b"", *run]
