"""Durability: answers are held back until the backend has confirmed that what they tell of is safe.

One small write and one WAIT or WAITAOF, on a connection of their own, cover all that was answered before, of
all queues; what is answered meanwhile is covered by the next.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.backend.backoff import Backoff
from pressure_server.backend.greeting import BackendRefusedError, greet
from pressure_server.backend.levels import CannotBeDurableError, Level
from pressure_server.backend.link import Patience
from pressure_server.backend.resp import BackendConnection, asks_for_patience
from pressure_server.errors import BackendError, BackendReplyError, NotSafeError

logger = logging.getLogger(__name__)

# Told with None when it is safe, else with why that is not known.
Follows = Callable[[BackendError | None], None]
# Of what one waits for silence: below what is taken for a lost connection.
_PART_OF_PATIENCE = 0.8
# Seconds after which a backend is asked again whether its replies are proof of an fsync.
_CHECK_EVERY = 1.0
# Seconds after which the key that is written to is gone, when nobody is left who writes to it.
_KEY_TTL = b"86400"
# A backend out of memory refuses SET, but not in a script that has begun to write, if only with EXPIRE. What
# gets have taken there is to be covered, too.
_WRITE = b"""\
if redis.call('EXPIRE', KEYS[1], ARGV[1]) == 0 then
  redis.call('SET', KEYS[1], 1, 'EX', ARGV[1])
end
"""
_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")


class Durability:
    """Of one backend. `key` is written to before each wait."""

    def __init__(self, address: Address, name: str, key: bytes, level: Level, patience: Patience) -> None:
        self._address = address
        self._name = name
        self._key = key
        self._level = level
        self.is_wanted = level != Level()
        self._patience = patience
        self._connection: _Connection | None = None
        self._run = ""
        self._command: tuple[bytes, ...] | None = None
        # What the write has met: None where it was done.
        self._unwritten: Exception | None = None
        # What is wrong, as the log has it.
        self._said: set[str] = set()
        self._why_down: BackendError = BackendError(f"{address} has not been reached yet")
        # Which run of the backend has answered, when, and what follows.
        self._answered: list[tuple[str, float, Follows]] = []
        self._under_way: list[tuple[str, float, Follows]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Connect, and again whenever the connection breaks.

        Raises BackendRefusedError where the backend cannot give what the level asks for.
        """
        if not self.is_wanted:
            return
        self._loop = asyncio.get_running_loop()
        try:
            await self._open()
        except (CannotBeDurableError, BackendRefusedError) as error:
            raise BackendRefusedError(str(error)) from error
        except BackendError as error:
            self._why_down = error
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Close the connection; who is held back is told that nothing is known."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()
        held, self._under_way, self._answered = self._under_way + self._answered, [], []
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._fail(held, "the server stops")

    def when_durable(self, run: str, follows: Follows) -> None:
        """Call it when all that this run of the backend has answered is safe; at once where it is."""
        if not self.is_wanted or (self._connection is not None and self._is_proof(run)):
            follows(None)
            return
        self._answered.append((run, self._loop.time(), follows))
        if self._connection is None:
            self._begin_to_give_up()
        elif len(self._answered) == 1 and not self._under_way:
            # One turn of the loop: what else has been answered is covered, too.
            self._loop.call_soon(self._cover)

    def _is_proof(self, run: str) -> bool:
        return self._command is None and run == self._run

    def _cover(self) -> None:
        if self._connection is None or not self._connection.is_open or self._under_way or not self._answered:
            return
        if self._command is None:
            held, self._answered = self._answered, []
            self._release(held)
            return
        self._under_way, self._answered = self._answered, []
        self._connection.send(self._written, *self._write())
        self._connection.send(self._covered, *self._command, self._milliseconds())

    def _write(self) -> tuple[bytes, ...]:
        return (b"EVAL", _WRITE, b"1", self._key, _KEY_TTL)

    def _milliseconds(self) -> bytes:
        # 0 would be for ever.
        return b"%d" % max(1, 1000 * _PART_OF_PATIENCE * self._patience.answer)

    def _written(self, reply: Any) -> None:
        self._unwritten = reply if isinstance(reply, Exception) else None

    def _covered(self, reply: Any) -> None:
        if isinstance(reply, BackendError):
            return  # the connection is lost, and its successor asks again
        failed = reply if isinstance(reply, Exception) else self._unwritten
        if self._connection is not None and failed is not None and asks_for_patience(failed):
            self._connection.abort(failed)
            return
        held, self._under_way = self._under_way, []
        reached = reply[0] if isinstance(reply, list) else reply
        if failed is not None:
            self._fail_aloud(held, f"the backend answered: {failed}")
        elif reached < (self._level.replicas or 1):
            seconds = _PART_OF_PATIENCE * self._patience.answer
            self._fail_aloud(held, f"not within {seconds:g} seconds")
        else:
            self._say("")
            self._release(held)
        self._cover()

    def _release(self, held: list[tuple[str, float, Follows]]) -> None:
        for run, _, follows in held:
            # A backend that was started anew may not have read what it had answered before.
            anew = NotSafeError(str(self._level), "the backend was started anew meanwhile")
            follows(None if run == self._run else anew)

    def _fail(self, held: list[tuple[str, float, Follows]], why: str) -> None:
        for _, _, follows in held:
            follows(NotSafeError(str(self._level), why))

    def _fail_aloud(self, held: list[tuple[str, float, Follows]], why: str) -> None:
        self._say(why)
        self._fail(held, why)

    def _say(self, what_is_wrong: str) -> None:
        """Say so in the log, once; '' where all is well."""
        if what_is_wrong and what_is_wrong not in self._said:
            logger.warning("durability %s cannot be had now: %s", self._level, what_is_wrong)
            self._said.add(what_is_wrong)
        elif self._said and not what_is_wrong:
            logger.info("durability %s can be had again", self._level)
            self._said.clear()

    def _begin_to_give_up(self) -> None:
        if self._giving_up is None and self._answered:
            until = self._answered[0][1] + self._patience.grace
            self._giving_up = self._loop.call_at(until, self._give_up)

    def _give_up(self) -> None:
        """Who has been held back for too long is told."""
        self._giving_up = None
        if self._connection is not None:
            return
        late = self._loop.time() - self._patience.grace
        held = [one for one in self._answered if one[1] <= late]
        self._answered = [one for one in self._answered if one[1] > late]
        self._fail(held, str(self._why_down))
        self._begin_to_give_up()

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if self._connection is None:
                    await self._open()
            except BackendError as error:
                self._why_down = error
                # That there is no connection is said once; the link says it, too.
                if type(error) is not BackendError or not self._said:
                    self._say(str(error))
                if isinstance(error, BackendReplyError) and not asks_for_patience(error):
                    # It is there, and refuses to confirm: on a full disk, say.
                    held, self._answered = self._answered, []
                    self._fail(held, str(error))
                await backoff.pause()
                continue
            backoff.reset()
            connection = self._connection
            if connection is not None:
                await self._end_of(connection)
                self._why_down = BackendError(f"the connection to {self._address} was lost")
                self._connection = None
                self._answered = self._under_way + self._answered
                self._under_way = []
                self._begin_to_give_up()

    async def _end_of(self, connection: _Connection) -> None:
        """Wait until it is lost. Meanwhile notice when the backend's settings change."""
        while not connection.ended.is_set():
            try:
                async with asyncio.timeout(_CHECK_EVERY if self._level.fsync else None):
                    await connection.ended.wait()
            except TimeoutError:
                await self._check_again(connection)

    async def _check_again(self, connection: _Connection) -> None:
        try:
            command = await self._check(connection)
            if command is None and self._command is not None:
                # What was answered before the settings changed needs one more wait.
                await connection.command(*self._write())
                reached = await connection.command(*self._command, self._milliseconds())
                if not reached[0]:
                    return
            self._command = command
        except CannotBeDurableError as error:
            connection.abort(error)
        except BackendError as error:
            logger.debug("the backend's settings cannot be read now: %s", error)

    async def _open(self) -> None:
        connection = _Connection(self._patience.answer)
        try:
            await self._address.open(connection)
            greeting = await greet(connection, self._address, 0, self._name, None)
            self._command = await self._check(connection)
            if self._command is not None:
                await self._try_out(connection, self._command)
        except BaseException:
            connection.close()
            raise
        self._connection, self._run = connection, greeting.run
        self._cover()

    async def _try_out(self, connection: _Connection, command: tuple[bytes, ...]) -> None:
        """Raises CannotBeDurableError where the backend will never do that for us, or BackendError."""
        try:
            await connection.command(*self._write())
            await connection.command(*command, b"1")
        except BackendReplyError as error:
            if str(error.__cause__).startswith(("NOPERM", "ERR")):
                raise CannotBeDurableError(f"durability {self._level} cannot be had: {error}") from error
            raise

    async def _check(self, connection: _Connection) -> tuple[bytes, ...] | None:
        """The command to wait by. Raises CannotBeDurableError, or BackendError."""
        info = (await connection.command(b"INFO", b"replication")).decode()
        found = re.search(r"^connected_slaves:(\d+)", info, re.MULTILINE)
        config: dict[str, str] | None = {}
        try:
            for name in _SETTINGS:
                pairs = await connection.command(b"CONFIG", b"GET", name.encode())
                if config is not None and len(pairs) == 2:
                    config[name] = pairs[1].decode()
        except BackendReplyError:
            config = None  # the command is not for us
        has_waitaof = True
        with suppress(BackendReplyError):  # where we may not ask, it is tried out
            has_waitaof = bool((await connection.command(b"COMMAND", b"INFO", b"WAITAOF"))[0])
        return self._level.wait_for(
            config or None, has_waitaof=has_waitaof, replicas=int(found[1]) if found else 0
        )


class _Connection(BackendConnection):
    """`ended` is set when it is lost."""

    def __init__(self, patience: float) -> None:
        super().__init__(patience)
        self.ended = asyncio.Event()

    def lost(self, why: Exception | None) -> None:
        """See BackendConnection."""
        self.ended.set()
