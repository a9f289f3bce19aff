"""The native client without its I/O: calls of the library for one queue, and the roles for which it waits.

docs/guides/native-client.md explains how the client waits, and why.
"""

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from pressure_server.client.arguments import as_bytes
from pressure_server.lua.layout import HEADER_SIZE, BlockField
from pressure_server.lua.scripts import library
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
from pressure_server.queues.operations.block_reply import Done, Refused, Unfinished, read_reply
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait import watched_keys
from pressure_server.text import printable

LIBRARY = library()
# For good, also from a queue with ACK NEXT: no connection to a server would ever end the reservation.
TAKE = b"get existing waits final"
# Seconds without news before the client tries again. Each try counts as use of the queue: servers delete
# queues that have not been used for long (life.lua, expire).
_MAX_SILENCE = 5.0
# Positions in a call's arguments: of its block, and of the first run in the block.
_BLOCK = HEADER_SIZE
_RUNS = _BLOCK + len(BlockField)


@dataclass(frozen=True)
class RoleKeys:
    """A role, as key suffixes: of its token, of the parked token, and of what the role's holder waits for."""

    free: bytes
    turn: bytes
    awaited: tuple[bytes, ...]


PRODUCER = RoleKeys(PRODUCER_FREE, PRODUCER_TURN, (NOT_FULL,))
CONSUMER = RoleKeys(CONSUMER_FREE, CONSUMER_TURN, (b"", READY, DUE))
# A close needs the role only, so it waits for no other key.
CLOSER = RoleKeys(PRODUCER_FREE, PRODUCER_TURN, ())


class QueueCalls:
    """Packs the calls for one queue, and unpacks their replies (layout.py)."""

    def __init__(self, name: str | bytes, prefix: str | bytes) -> None:
        self._name = as_bytes(name, "a queue's name")
        self._base = base_key(as_bytes(prefix, "a prefix"), self._name)
        identity = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # The call has no number, so no record is kept: a call without an answer is not sent again.
        # Ids of jobs are given by an index, which the script finds beside this key. It writes no records.
        self.call_keys = [self._base, records_key(as_bytes(prefix, "a prefix"), identity.encode())]
        # In how many seconds the queue may have another job, or room; None for never. As of the last call.
        self._due: float | None = None
        # The list of the log whose messages the queue gets, if it belongs to a group.
        self._log: set[bytes] = set()
        self._header = [identity.encode(), b"", b"block", b"0 0", b"", b"", b"", b""]

    @property
    def printable(self) -> str:
        """The queue's name for texts."""
        return printable(self._name)

    @property
    def retry_interval(self) -> float:
        """The seconds after which a waiting client tries again if no key has changed."""
        return _MAX_SILENCE if self._due is None else min(_MAX_SILENCE, self._due)

    def packed(self, name: bytes, *arguments: bytes) -> list[bytes]:
        """Return the arguments of a call."""
        return [*self._header, *_block(name, *arguments)]

    def read(self, reply: Any) -> Done | Unfinished:
        """Return what the reply to a call says, and note when the next try is due. Raises its error."""
        found = _read(reply)
        if isinstance(found, Refused):
            raise exception_for(self._name, found.reason)
        news = found.news
        times = (news.due.seconds if news.due is not None else None, news.room_after)
        self._due = min((seconds for seconds in times if seconds is not None), default=None)
        if news.log_suffix:
            self._log = {self._base[: -news.log_suffix]}
        return found

    def result_of(self, done: Done) -> Any:
        """Return the result of a call that is done, or raise its error."""
        (result,) = done.results
        if isinstance(result, Exception):
            raise exception_for(self._name, str(result))
        return result

    def line_up_command(self, role: RoleKeys, seconds: float) -> tuple[bytes | float, ...]:
        """Return the command that waits in line with native clients until the role's token is parked."""
        token, parked = self._base + role.free, self._base + role.turn
        return (b"BLMOVE", token, parked, b"RIGHT", b"LEFT", max(seconds, 0.01))

    def look_command(self, role: RoleKeys) -> tuple[bytes, ...]:
        """Return the command that tells whether the queue exists, and whether a client holds the role."""
        return (b"EXISTS", *watched_keys(self._base, [BOUND, role.free, role.turn]))

    def must_line_up(self, mask: int) -> bool:
        """Return whether a native client holds the role of an existing queue, by that command's reply."""
        # Bit 0 stands for BOUND, which exists. The other bits stand for the role's tokens.
        return mask == 1

    def keys_for(self, role: RoleKeys) -> set[bytes]:
        """Return the keys that matter for a role."""
        suffixes = (BOUND, CLOSED, role.free, role.turn, *role.awaited)
        return self._log | {self._base + suffix for suffix in suffixes}

    def tracking_command(self, number: int, role: RoleKeys) -> list[str | int | bytes]:
        """Return the command that makes Redis report changed keys that matter to client id `number`."""
        keys = self.keys_for(role)
        # Redis refuses prefixes of which one begins with another.
        prefixes = [key for key in keys if not any(key != other and key.startswith(other) for other in keys)]
        chosen = [word for prefix in prefixes for word in ("PREFIX", prefix)]
        return ["CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", *chosen]


def undoing(call: list[bytes], reply: Any) -> list[bytes] | None:
    """Return the call that puts back the messages that a cancelled call has taken; None if it took none."""
    if call[_RUNS] != TAKE or isinstance(reply[-1], Exception):
        return None
    found = _read(reply)
    taken = [] if isinstance(found, Refused) or not found.results else found.results[0]
    if not isinstance(taken, list) or not taken:
        return None
    return [*call[:_BLOCK], *_block(b"restore", *taken)]


def must_be_repeated(reply: Any) -> bool:
    """Return whether a call must be sent again, as the library has done what was due before it instead."""
    return isinstance(_read(reply), Unfinished)


def _read(reply: Any) -> Done | Unfinished | Refused:
    """Return what the reply to a call of one run says. Raises the error of the call."""
    answer = reply[-1]
    if isinstance(answer, Exception):
        raise answer
    return read_reply(answer, runs=1)


def function_instead(function: bytes, error: ResponseError) -> bytes:
    """Return the function to call instead of one that the backend has refused, or raise the error."""
    code = "OOM" if isinstance(error, OutOfMemoryError) else str(error).partition(" ")[0]
    instead = LIBRARY.instead(function, code, is_recorded=False)
    if instead is None:
        raise error
    return instead


def _block(name: bytes, *arguments: bytes) -> list[bytes]:
    """Return the only block of a call."""
    run = [name, b"%d" % len(arguments), *arguments]
    return [b"1", b"%d" % len(run), b"", *run]
