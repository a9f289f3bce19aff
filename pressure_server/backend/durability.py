"""Durability: hold replies to clients back until the backend confirms that their changes are safe.

One small write and one WAIT, on a connection of its own, cover everything that the backend has answered
before, for all queues. Answers that come in the meantime are covered by the next round. If the backend syncs
each change before it replies (`fsync`), its answers need no wait while the connection is open; the write
covers those that came before.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.backend.greeting import greet
from pressure_server.backend.link import Timeouts
from pressure_server.backend.reconnecting import until_open
from pressure_server.backend.resp import BackendConnection, is_retryable
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError, BackendRefusedError, BackendReplyError, NotSafeError

logger = logging.getLogger(__name__)

# Called with None if the changes are safe, else with the error.
Follows = Callable[[BackendError | None], None]
# The part of the answer timeout that WAIT may take: less than all, after which the connection is aborted.
_PART_OF_TIMEOUT = 0.8
# Seconds between checks of the backend's settings: only with some of them a reply proves an fsync.
_CHECK_EVERY = 1.0
# The TTL in seconds of the key that is written, for when no server writes it any longer.
_KEY_TTL = b"86400"
# A backend out of memory refuses SET, except in a script that has already written, if only with EXPIRE. Gets
# still work there, and must be covered too.
_WRITE = b"""\
if redis.call('EXPIRE', KEYS[1], ARGV[1]) == 0 then
  redis.call('SET', KEYS[1], 1, 'EX', ARGV[1])
end
"""
# The settings of a backend that syncs each change before it replies.
_SYNCS_EACH_CHANGE = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}


def write_command(key: bytes) -> tuple[bytes, ...]:
    """Return the command that writes the key: what follows on its connection waits for this write."""
    return (b"EVAL", _WRITE, b"1", key, _KEY_TTL)


class ReplicasMissingError(BackendRefusedError):
    """Too few replicas are connected at present."""


@dataclass(frozen=True)
class Level:
    """What must have a change before its client gets the reply: that many replicas, or with `fsync` the disk.

    Level() is `none`.
    """

    replicas: int = 0
    fsync: bool = False

    def __str__(self) -> str:
        if self.fsync:
            return "fsync"
        return f"replica:{self.replicas}" if self.replicas else "none"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Return the level named `none`, `replica`, `replica:N` or `fsync`. Raises ValueError."""
        if text == "none":
            return cls()
        if text == "fsync":
            return cls(fsync=True)
        if found := re.fullmatch(r"replica(:0*([1-9][0-9]?|100))?", text):
            return cls(replicas=int(found[2] or 1))
        raise ValueError(f"'{text}' must be none, replica, replica:N (N from 1 to 100) or fsync")

    def wait_for(self, config: Mapping[bytes, bytes], *, replicas: int) -> tuple[bytes, ...] | None:
        """Return the command that waits for the level, without its timeout; None if a reply alone is proof.

        `config` has the backend's settings for its append-only file; it is empty if they are not revealed.
        Raises BackendRefusedError if the backend cannot provide the level; if that is because of the number
        of connected `replicas`, ReplicasMissingError.
        """
        if self.replicas:
            if replicas < self.replicas:
                raise ReplicasMissingError(
                    f"durability {self} needs {self.replicas} connected replicas; the backend has {replicas}"
                )
            return (b"WAIT", b"%d" % self.replicas)
        if self.fsync:
            _check_syncs(config)
        return None


def _check_syncs(config: Mapping[bytes, bytes]) -> None:
    """Raise BackendRefusedError unless the backend syncs each change before it replies.

    WAITAOF is no other way: with `appendfsync everysec`, Redis 7.4 and Valkey answer it before they sync
    (redis/redis#13793).
    """
    if not config:
        raise BackendRefusedError(
            "durability fsync needs `appendfsync always` in the backend, which refuses CONFIG GET, so its "
            "settings are unknown"
        )
    for setting, value in _SYNCS_EACH_CHANGE.items():
        if config.get(setting) != value:
            found = config.get(setting, b"").decode()
            raise BackendRefusedError(
                f"durability fsync needs `{setting.decode()} {value.decode()}` in the backend, which has "
                f"`{found}`"
            )


class Durability:
    """The durability of one backend's answers. `key` is written before each wait."""

    def __init__(self, route: Route, name: str, key: bytes, level: Level, timeouts: Timeouts) -> None:
        self._route = route
        self._name = name
        self._key = key
        self._level = level
        self.is_enabled = level != Level()
        self._timeouts = timeouts
        self._patience = _PART_OF_TIMEOUT * timeouts.answer
        # In milliseconds. WAIT takes 0 for no timeout.
        self._wait_timeout = b"%d" % max(1, 1000 * self._patience)
        self._connection: BackendConnection | None = None
        self._run_id = ""
        self._command: tuple[bytes, ...] | None = None
        # The error of the last write; None if it succeeded.
        self._unwritten: Exception | None = None
        # The problems logged since the backend last confirmed.
        self._said: set[str] = set()
        self._why_down: BackendError = BackendError(f"{route} has not been reached yet")
        # Answers that no wait covers yet: the backend's run, the time of the answer, the callback.
        self._answered: list[tuple[str, float, Follows]] = []
        self._under_way: list[tuple[str, float, Follows]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Connect, and reconnect whenever the connection breaks. Raises BackendRefusedError."""
        if not self.is_enabled:
            return
        self._loop = asyncio.get_running_loop()
        try:
            await self._open()
        except BackendError as error:
            # Replicas may be missing because a failover is under way.
            may_pass = isinstance(error, ReplicasMissingError) and self._route.fails_over
            if isinstance(error, BackendRefusedError) and not may_pass:
                raise
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Close the connection. Callbacks that are still held get a NotSafeError."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()
        held, self._under_way, self._answered = self._under_way + self._answered, [], []
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._end(held, "the server is stopping")

    def is_proven(self, run_id: str) -> bool:
        """Return whether the answers of this run of the backend are safe without a wait."""
        return self._connection is not None and self._command is None and run_id == self._run_id

    def when_durable(self, run_id: str, follows: Follows) -> None:
        """Call `follows` with None when all answers of this run of the backend are safe, or with an error."""
        if not self.is_enabled or self.is_proven(run_id):
            follows(None)
            return
        self._answered.append((run_id, self._loop.time(), follows))
        if self._connection is None:
            self._begin_to_give_up()
        elif len(self._answered) == 1 and not self._under_way:
            # In the next iteration of the loop, so that one wait covers all answers of this one.
            self._loop.call_soon(self._cover)

    def _cover(self) -> None:
        if self._connection is None or not self._connection.is_open or self._under_way or not self._answered:
            return
        self._under_way, self._answered = self._answered, []
        self._connection.send(self._written, *write_command(self._key))
        if self._command is not None:
            self._connection.send(self._covered, *self._command, self._wait_timeout)

    def _written(self, reply: Any) -> None:
        self._unwritten = reply if isinstance(reply, Exception) else None
        if self._command is None:
            self._covered(self._unwritten or 0)

    def _covered(self, reply: Any) -> None:
        if isinstance(reply, BackendError):
            return  # the connection is lost; the next one covers the same answers
        failed = reply if isinstance(reply, Exception) else self._unwritten
        if self._connection is not None and failed is not None and is_retryable(failed):
            self._connection.abort(failed)
            return
        held, self._under_way = self._under_way, []
        why = None
        if failed is not None:
            why = f"the backend answered: {failed}"
        elif reply < self._level.replicas:
            why = f"no confirmation within {self._patience:g} seconds"
        self._say(why)
        self._end(held, why)
        self._cover()

    def _end(self, held: list[tuple[str, float, Follows]], why: str | None) -> None:
        """Call the callbacks, with an error unless `why` is None: then the backend has confirmed."""
        for run_id, _, follows in held:
            if why is None and run_id == self._run_id:
                follows(None)
            else:
                # A restarted backend may have lost changes that it had answered before.
                follows(NotSafeError(str(self._level), why or "the backend has restarted since"))

    def _say(self, problem: str | None) -> None:
        """Log each problem once; None means that all problems are over."""
        if problem is not None and problem not in self._said:
            logger.warning("the backend does not confirm durability %s: %s", self._level, problem)
            self._said.add(problem)
        elif problem is None and self._said:
            logger.info("the backend confirms durability %s again", self._level)
            self._said.clear()

    def _begin_to_give_up(self) -> None:
        if self._giving_up is None and self._answered:
            until = self._answered[0][1] + self._timeouts.grace_of(self._route)
            self._giving_up = self._loop.call_at(until, self._give_up)

    def _give_up(self) -> None:
        """Fail the callbacks that have been held for longer than the grace, as there is no connection."""
        self._giving_up = None
        if self._connection is not None:
            return
        late = self._loop.time() - self._timeouts.grace_of(self._route)
        held = [one for one in self._answered if one[1] <= late]
        self._answered = [one for one in self._answered if one[1] > late]
        self._end(held, str(self._why_down))
        self._begin_to_give_up()

    async def _keep(self) -> None:
        while True:
            connection = self._connection
            if connection is None:
                connection = await until_open(self._open, self._still_away)
            await self._end_of(connection)
            self._why_down = BackendError(f"the connection to {self._route} was lost")
            self._connection = None
            self._answered, self._under_way = self._under_way + self._answered, []
            self._begin_to_give_up()

    def _still_away(self, error: BackendError) -> None:
        self._why_down = error
        # One log line per outage is enough: the link logs why there is no connection.
        if type(error) is not BackendError or not self._said:
            self._say(str(error))
        if isinstance(error, BackendReplyError) and not is_retryable(error):
            # The backend answers, but refuses to confirm, for example because its disk is full.
            held, self._answered = self._answered, []
            self._end(held, str(error))

    async def _end_of(self, connection: BackendConnection) -> None:
        """Wait until the connection is lost. Until then, check the settings that the level depends on."""
        while not connection.ended.is_set():
            try:
                async with asyncio.timeout(_CHECK_EVERY if self._level.fsync else None):
                    await connection.ended.wait()
            except TimeoutError:
                await self._check_again(connection)

    async def _check_again(self, connection: BackendConnection) -> None:
        try:
            await self._check(connection)
        except BackendRefusedError as error:
            connection.abort(error)
        except BackendError as error:
            logger.debug("cannot read the backend's settings: %s", error)

    async def _open(self) -> BackendConnection:
        connection = await self._route.connect(BackendConnection(self._timeouts.answer), self._greet)
        self._connection = connection
        if self._command is None:
            self._say(None)
        self._cover()
        return connection

    async def _greet(self, connection: BackendConnection, address: Address) -> None:
        self._run_id = (await greet(connection, address, 0, self._name)).run_id
        self._command = await self._check(connection)
        if self._command is not None:
            await self._try_out(connection, self._command)

    async def _try_out(self, connection: BackendConnection, command: tuple[bytes, ...]) -> None:
        """Write and wait once. Raises BackendRefusedError if that will never work, or BackendError."""
        try:
            await connection.command(*write_command(self._key))
            await connection.command(*command, b"1")
        except BackendReplyError as error:
            if str(error.__cause__).startswith(("NOPERM", "ERR")):
                raise BackendRefusedError(f"durability {self._level} is not available: {error}") from error
            raise

    async def _check(self, connection: BackendConnection) -> tuple[bytes, ...] | None:
        """Return what Level.wait_for returns for the backend. Raises its errors, or BackendError."""
        info = await connection.command(b"INFO", b"replication")
        found = re.search(rb"^connected_slaves:(\d+)", info, re.MULTILINE)
        config: list[bytes] = []
        with suppress(BackendReplyError):  # CONFIG is not permitted
            config = await connection.command(b"CONFIG", b"GET", *_SYNCS_EACH_CHANGE)
        return self._level.wait_for(
            dict(zip(config[::2], config[1::2], strict=False)), replicas=int(found[1]) if found else 0
        )
