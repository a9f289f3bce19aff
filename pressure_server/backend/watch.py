"""The key watch: one connection on which the backend reports changed keys, whichever client changes them.

It uses server-assisted client-side caching (Redis: CLIENT TRACKING): after a key has been read, the backend
reports its next change, once. All waiting operations share this one connection, and hold nothing themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pressure_server.backend.address import Address
from pressure_server.backend.reconnecting import pauses, until_open
from pressure_server.backend.resp import BackendConnection, is_moving, is_temporary, redirection
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError, BackendReplyError

logger = logging.getLogger(__name__)

# The most watched keys that are no longer needed. Above it the oldest half is released in one call.
_MAX_UNNEEDED = 10_000
_RELEASED_AT_ONCE = 500
# Redis stops watching a key only when it reports a change. So this script changes keys without a lasting
# effect. If the write is refused, the key stays watched.
_RELEASE = b"""\
for _, key in ipairs(KEYS) do
  local ttl = redis.call('PTTL', key)
  if ttl == -1 then
    redis.pcall('EXPIRE', key, 86400)
    redis.pcall('PERSIST', key)
  elseif ttl == -2 then
    redis.pcall('SET', key, '')
    redis.pcall('DEL', key)
  end
end
"""

Armed = Callable[[int | None, bytes | None], None]
# If the backend does not report changes, each waiting operation polls after this many seconds. All operations
# together poll at most this many times a second.
_POLL = 0.1
_POLLS_PER_SECOND = 2000
# Seconds before a backend that has refused is asked again: its ACL may have changed.
_REFUSED_PAUSE = 10.0


class Watch:
    """The watched keys of one backend."""

    def __init__(
        self,
        route: Route,
        name: str,
        changed: Callable[[bytes], None],
        lost: Callable[[], None],
        answer_timeout: float,
    ) -> None:
        """Prepare, but do not connect. If no reply comes for `answer_timeout` seconds, reconnect.

        When an armed key changes, `changed` is called with it, once; `lost` when none is armed any longer.
        """
        self._route = route
        self._answer_timeout = answer_timeout
        self._name = name
        self._changed = changed
        self._lost = lost
        self._connection: _WatchConnection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._backoff = pauses()
        self._number = 0
        self._polling = 0
        # Watched keys that are no longer needed, oldest first, and their databases.
        self._unneeded: dict[bytes, int] = {}
        self._has_warned = False
        # Set when the first attempt to connect has ended, successful or not.
        self.attempted = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether the backend reports changes."""
        return self._connection is not None

    def start(self) -> None:
        """Connect, and reconnect whenever the connection breaks."""
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Close the connection and stop reconnecting."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()

    def arm(self, number: int, keys: Sequence[bytes], armed: Armed, value_key: bytes | None = None) -> None:
        """Watch keys of a database from now on, for the next change of each.

        `armed` is called with the number of `keys` that exist, as EXISTS counts, and with the value of
        `value_key`, which is watched as well. If the backend cannot report changes, it is called with None
        and None after a pause: the caller must poll.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            self._polling += 1
            asyncio.get_running_loop().call_later(
                max(_POLL, self._polling / _POLLS_PER_SECOND), self._poll, armed
            )
            return
        self._select(connection, number)
        for key in keys:
            self._unneeded.pop(key, None)
        values: list[Any] = []
        if value_key is not None:
            self._unneeded.pop(value_key, None)
            connection.send(None, b"CLIENT", b"CACHING", b"YES")
            connection.send(values.append, b"GET", value_key)

        def answered(reply: Any) -> None:
            if isinstance(reply, Exception) and (is_moving(reply) or redirection(reply)):
                # The node no longer has the keys, or not yet: the next connection watches them.
                connection.lacks_keys = True
                connection.abort(reply)
            elif not isinstance(reply, Exception):
                self._backoff = pauses()
            value = values[0] if values and isinstance(values[0], bytes) else None
            armed(reply if isinstance(reply, int) else None, value)

        connection.send(None, b"CLIENT", b"CACHING", b"YES")
        connection.send(answered, b"EXISTS", *keys)

    async def ask(self, number: int, *arguments: bytes) -> Any:
        """Send a command that only reads, and return its reply. Raises BackendError.

        Before it returns, `changed` has been called for each armed key that changed before it was done.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            raise BackendError("the backend does not report changes")
        self._select(connection, number)
        return await connection.command(*arguments)

    def disarm(self, number: int, keys: Iterable[bytes]) -> None:
        """Note that these keys, which may be armed, are no longer needed."""
        connection = self._connection
        if connection is None:
            return  # nothing is watched
        for key in keys:
            self._unneeded[key] = number
        if len(self._unneeded) > _MAX_UNNEEDED:
            self._release(connection)

    def _release(self, connection: _WatchConnection) -> None:
        """Release the oldest half of the unneeded keys: the backend has a table of all watched keys."""
        oldest: dict[int, list[bytes]] = {}
        for key in list(self._unneeded)[: _MAX_UNNEEDED // 2]:
            oldest.setdefault(self._unneeded.pop(key), []).append(key)
        with suppress(BackendError):  # a connection that is lost watches nothing
            for number, keys in oldest.items():
                self._select(connection, number)
                for first in range(0, len(keys), _RELEASED_AT_ONCE):
                    some = keys[first : first + _RELEASED_AT_ONCE]
                    connection.send(None, b"EVAL", _RELEASE, b"%d" % len(some), *some)

    def _select(self, connection: _WatchConnection, number: int) -> None:
        if number != self._number:
            self._number = number
            connection.send(None, b"SELECT", b"%d" % number)

    def _poll_if_lost(self) -> None:
        if self._connection is None:
            self._lost()

    def _poll(self, armed: Armed) -> None:
        self._polling -= 1
        armed(None, None)

    def _told(self, key: bytes) -> None:
        self._unneeded.pop(key, None)
        self._changed(key)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection = self._connection = await until_open(self._open, self._still_away)
            self._number = 0
            self._lost()
            self.attempted.set()
            await connection.ended.wait()
            self._connection = None
            self._unneeded.clear()
            # Not at once: if the node has died, the link may not know it yet. A call that it sends now would
            # be lost, and its client would be told that it may have been done.
            loop.call_later(_POLL, self._poll_if_lost)
            if connection.lacks_keys:
                # So does the next one, if the nodes of a cluster do not agree on the owner of the slot.
                await asyncio.sleep(next(self._backoff))
            else:
                self._backoff = pauses()

    def _still_away(self, error: BackendError) -> float | None:
        """Note why keys cannot be watched; return how long to pause if the backend refuses it."""
        self.attempted.set()
        if isinstance(error, BackendReplyError) and not is_temporary(error):
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "the backend refuses to report changes (%s): waiting operations poll, %g times a second",
                    error, 1 / _POLL,
                )  # fmt: skip
            return _REFUSED_PAUSE
        logger.debug("cannot watch keys of the backend: %s", error)
        return None

    async def _open(self) -> _WatchConnection:
        connection = _WatchConnection(self._told, self._answer_timeout)
        return await self._route.connect(connection, self._greet)

    async def _greet(self, connection: _WatchConnection, address: Address) -> None:
        """Log in and turn tracking on. Raises BackendError."""
        login: list[bytes] = []
        if address.password is not None:
            login = [b"AUTH", (address.username or "default").encode(), address.password.encode()]
        await connection.command(b"HELLO", b"3", *login, b"SETNAME", self._name.encode())
        await connection.command(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
        if self._has_warned:
            self._has_warned = False
            logger.info("the backend reports changes again")


class _WatchConnection(BackendConnection):
    """The connection on which the backend reports changed keys."""

    def __init__(self, changed: Callable[[bytes], None], answer_timeout: float) -> None:
        super().__init__(answer_timeout)
        self._changed = changed
        self._to_send: list[bytes] = []
        # Whether the node has refused to watch keys, as another one has them.
        self.lacks_keys = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open (called by asyncio)."""
        super().connection_made(transport)
        self._write = self._gather

    def _gather(self, data: bytes) -> None:
        if not self._to_send:
            self._loop.call_soon(self._flush)
        self._to_send.append(data)

    def _flush(self) -> None:
        """Write everything sent in this iteration of the loop: a write costs more than all the rest."""
        to_send, self._to_send = self._to_send, []
        if self._transport is not None:
            self._transport.write(b"".join(to_send))

    def told(self, news: list[Any]) -> None:
        """Report the keys in an invalidation message."""
        if news[0] != b"invalidate":
            return
        if news[1] is None:
            # All keys were flushed. Reconnecting calls `lost`, so that everything is checked again.
            self.close()
            return
        for key in news[1]:
            self._changed(key)
