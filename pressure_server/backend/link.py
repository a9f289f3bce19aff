"""A link to one database of the backend: a channel that is reopened whenever it breaks.

The link keeps each request until it is answered, and sends it again on a new channel. A request that is in
flight at several deaths of the backend is not sent again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import hiredis

from pressure_server.backend.greeting import (
    Greeting,
    check_layout,
    greet,
    join_cluster,
    load_library,
    noting,
)
from pressure_server.backend.held import HeldRequests
from pressure_server.backend.reconnecting import MAX_PAUSE, until_open
from pressure_server.backend.requests import AwaitedRequest, BackendRequest, Channel
from pressure_server.backend.resp import (
    Received,
    is_moving,
    is_retryable,
    is_stale_epoch,
    wait_for_reply,
)
from pressure_server.backend.route import Route
from pressure_server.backend.trouble import MAX_DEATHS, Deaths, Outage, Refusals
from pressure_server.compiled import mypyc_attr
from pressure_server.errors import (
    BackendAwayError,
    BackendDiedError,
    BackendError,
    BackendRefusedError,
    BackendReplyError,
    OutcomeUnknownError,
)
from pressure_server.lua.scripts import Library, Script

logger = logging.getLogger(__name__)

# A call whose epoch has ended is sent again at most this often. After that, the reason can only be that the
# backend refuses new epochs.
_MAX_EPOCH_RETRIES: Final = 3
# The most redirections to other nodes that are followed at once.
_MAX_REDIRECTIONS: Final = 5
# The longest pause in seconds before the next attempt, if another node may take over: after a failover, it is
# found in half of that.
_PAUSE_IN_FAILOVER: Final = 0.5
_DISAGREEMENT: Final = (
    "the nodes of the cluster redirect to each other: they do not agree on the slot's owner"
)
_IS_IT_TLS: Final = ", before it had answered; if that port speaks TLS, write rediss://"
# Seconds for which requests are held: if the backend is one node, and if another one takes over.
_GRACE, _GRACE_OF_FAILOVER = 5.0, 20.0


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds: `answer` for a reply of the backend, `grace` for its return after it was lost."""

    answer: float = 5.0
    grace: float | None = None  # None: 5 seconds, or 20 if another node takes over when one dies

    def grace_of(self, route: Route) -> float:
        """Return the grace for a backend."""
        if self.grace is not None:
            return self.grace
        return _GRACE_OF_FAILOVER if route.fails_over else _GRACE


class Heartbeats(Protocol):
    """The heartbeats of this server on one database.

    After `overdue_at`, by time.monotonic, a heartbeat has to be sent before anything else.
    """

    overdue_at: float

    def heartbeat(self, epoch: int | None = None) -> tuple[Script, Sequence[bytes], Sequence[bytes]]:
        """Return the next heartbeat: a script, its keys and its arguments. With `epoch`, that one begins."""

    def heartbeat_answered(self, refusal: BackendReplyError | None) -> None:
        """Note that the backend has answered a heartbeat; `refusal` is its error, if it refuses."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Link:
    """The connection to one database of the backend, which survives the loss of channels.

    While the backend is away, requests are held for up to `timeouts.grace` seconds. If it comes back in time,
    they are sent again; those that may have been done too, unless they are marked `once`. After that time,
    requests fail at once with BackendError until the backend is back.

    Methods that return a reply raise BackendReplyError for an error reply, BackendError if there is none.
    """

    def __init__(
        self,
        number: int,
        *,
        route: Route,
        library: Library,
        name: str,
        timeouts: Timeouts,
        guard: bytes,
        layout: bytes,
        outages: Counter[str],
    ) -> None:
        """Prepare, but do not connect. `name` is the connections' client name.

        `guard` goes with the keys of calls in a cluster (LibraryCall); it is empty if the names of the keys
        have no tag, as a cluster needs. On a cluster, `layout` says how many shards there are, and which one
        this is, such as `16 3`: the link refuses a backend that was used with another number. `outages` is as
        for Outage.
        """
        # If there are any, one goes first on each new channel. If the answer differs from the last one, a
        # peer has recovered this server's records.
        self.heartbeats: Heartbeats | None = None
        # How many times the backend was lost, and is back.
        self.reconnects = 0
        # Called after each reconnect.
        self.is_back: Callable[[], None] | None = None
        # Called when the backend is another run than before, before anything is sent again.
        self.is_other_run: Callable[[Channel], Coroutine[Any, Any, None]] | None = None
        self.route = route
        self._address = route.address  # of the channel
        self._guard = guard
        self._layout = layout
        self.number = number
        self._library = library
        self._client_name = name
        self._timeouts = timeouts
        self._channel: Channel | None = None
        # The backend's name and version, and the id of its run, which changes when it restarts: as it was
        # reached last; '' until then.
        self.version = self.run_id = ""
        self._client_id = 0
        self._epoch = 0
        self._last_heartbeat_reply: Any = None
        # The error if the backend refused the last heartbeat: then no epoch has begun.
        self._heartbeat_refusal: BaseException | None = None
        # Why the backend is not connected, if it is not.
        self.why_down: BackendError = BackendError(f"{route} has not been reached yet")
        # What the log calls this link.
        self.name = f"backend shard {layout.split()[1].decode()}" if layout else f"backend database {number}"
        self._outage = Outage(self.name, outages)
        self._reopening: asyncio.Task[None] | None = None
        self._held = HeldRequests(self)
        self._deaths = Deaths(self.name)
        self._closed = False
        self._refusals = Refusals(self.name)
        self._loop = asyncio.get_running_loop()

    @property
    def is_up(self) -> bool:
        """Whether the backend is connected, and does not refuse calls for longer than the grace."""
        return self._channel is not None and not self._held.has_given_up

    @property
    def is_connected(self) -> bool:
        """Whether there is a channel to the backend."""
        return self._channel is not None

    @property
    def grace(self) -> float:
        """For how many seconds requests are held while the backend is away."""
        return self._timeouts.grace_of(self.route)

    @property
    def pause_after_deaths(self) -> float:
        """See Deaths.pause."""
        return self._deaths.pause

    async def open(self) -> None:
        """Try once. Raises BackendRefusedError, or BackendError if a retry may help."""
        redirections, others = 0, len(self.route.nodes)
        unusable: BackendError | None = None
        while True:
            try:
                return await self._open()
            except BackendRefusedError as error:
                self.why_down = error
                raise
            except BackendError as error:
                is_redirected = self.route.redirected(error)
                if is_redirected and redirections < _MAX_REDIRECTIONS:
                    redirections += 1
                    continue
                if not is_redirected:
                    self.why_down = unusable = error
                self.route.failed()
                others -= 1
                if others <= 0:
                    self.why_down = unusable or BackendError(_DISAGREEMENT)
                    raise self.why_down from error

    async def _open(self) -> None:
        self._epoch += 1
        channel = Channel(self._library, self._timeouts.answer, self._epoch, self._channel_lost)
        greeting: Greeting | None = None
        try:
            address = await self.route.find()
            await address.open(channel)
            greeting = await greet(channel, address, self.number, self._client_name)
            is_new = not self.version or greeting.run_id != self.run_id
            if not is_new:
                # The backend may not know of the loss. Calls on queues do not need this: they have epochs.
                with suppress(BackendReplyError):
                    await channel.command(b"CLIENT", b"KILL", b"ID", b"%d" % self._client_id)
            if greeting.is_cluster:
                await join_cluster(channel, address, self.route, self._guard)
            elif self.route.is_cluster:
                raise BackendRefusedError(f"{address} is no node of a cluster: give it as redis://…")
            await load_library(channel)
            if self._layout:
                await check_layout(channel, self._layout, is_user=self.heartbeats is not None)
            signed = await self._sign(channel, self.heartbeats) if self.heartbeats is not None else None
            # A peer has taken this server for dead, and recovered the records that would tell what was done.
            was_buried = signed != self._last_heartbeat_reply
            if is_new and self.version and self.is_other_run is not None and not was_buried:
                await self.is_other_run(channel)
        except BaseException as error:
            channel.close()
            if type(error) is OutcomeUnknownError:
                # After the backend has been reached once, the reason is another one.
                is_silent = not (greeting or self.version or address.is_tls) and address.host
                raise self._lost_for(error.__cause__, _IS_IT_TLS if is_silent else "") from error
            raise
        self._channel, self._address, self._last_heartbeat_reply = channel, address, signed
        self.version, self.run_id, self._client_id = greeting.version, greeting.run_id, greeting.client
        self.route.serves(channel, address)
        held = self._held.end_grace()
        most_deaths = self._deaths.count(held) if is_new else MAX_DEATHS
        for request in held:
            if request.may_be_done and request.changes and was_buried:
                request.received(OutcomeUnknownError())
            elif request.deaths >= most_deaths:
                request.received(BackendDiedError(request.deaths))
            else:
                self.send(request)

    async def _sign(self, channel: Channel, heartbeats: Heartbeats) -> Any:
        """Send a heartbeat and return the answer; if the backend refuses it, the last answer."""
        script, keys, arguments = heartbeats.heartbeat(channel.epoch)
        try:
            signed = await wait_for_reply(
                b"EVALSHA", lambda received: channel.call(script, keys, arguments, received)
            )
        except BackendReplyError as error:
            if is_retryable(error):
                raise
            # Reads may still be answered, for example if the backend's disk is full.
            heartbeats.heartbeat_answered(error)
            self._heartbeat_refusal = error.__cause__ or error
            return self._last_heartbeat_reply
        heartbeats.heartbeat_answered(None)
        self._heartbeat_refusal = None
        return signed

    def keep_open(self) -> None:
        """Try in the background until a channel is open."""
        if self._reopening is None and not self._closed:
            self._held.begin_grace()
            self._reopening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        down_since = time.monotonic()
        longest = _PAUSE_IN_FAILOVER if self.route.fails_over else MAX_PAUSE
        await until_open(self.open, partial(self._outage.report, then="; trying again"), longest)
        self._reopening = None
        self._outage.end(time.monotonic() - down_since)
        self.reconnects += 1
        if self.is_back is not None:
            self.is_back()

    def _channel_lost(self, channel: Channel, exc: Exception | None) -> None:
        if channel is not self._channel or self._closed:
            return
        self._channel = None
        self.why_down = self._lost_for(exc)
        self._outage.report(self.why_down)
        self.keep_open()

    def _lost_for(self, why: BaseException | None, hint: str = "") -> BackendError:
        reason = "it was closed" if why is None else str(why) or type(why).__name__
        return BackendError(f"the connection to {self._address} was lost ({reason}{hint})")

    async def command(self, *arguments: bytes) -> Any:
        """Send a command that only reads, and return its reply."""
        return await self._ask(arguments[0], lambda to, answered: to.send(answered, *arguments))

    async def read_together(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands that only read, as one transaction, and return the reply to each, or its error."""
        replies: list[Any] = await self._ask(
            b"EXEC", lambda to, answered: to.read_together(commands, answered)
        )
        return replies

    async def call(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], *, once: bool
    ) -> Any:
        """Call a script, and return its reply. With `once`, raises OutcomeUnknownError if it may be done."""
        return await self._ask(
            b"EVALSHA",
            lambda to, answered: to.call(script, keys, arguments, answered),
            changes=True,
            once=once,
        )

    async def _ask(
        self,
        name: bytes,
        write: Callable[[Channel, Received], None],
        *,
        changes: bool = False,
        once: bool = False,
    ) -> Any:
        return await wait_for_reply(
            name, lambda tell: self.send(AwaitedRequest(write, tell, changes=changes, once=once))
        )

    def send(self, request: BackendRequest) -> None:
        """Send a request; hold it while the backend is away, or fail it if the grace is over."""
        channel = self._channel
        if self._held.is_stalled:
            self._held.hold(request)
        elif channel is not None and channel.is_open:
            if self.heartbeats is not None and self.heartbeats.overdue_at < time.monotonic():
                self.begin_epoch()
            request.send(channel, partial(self._answered, request, channel))
        elif channel is None and (self._held.has_given_up or self._closed):
            away = self.away_error()
            # Not at once: like a reply, the error must come after the caller has returned.
            self._loop.call_soon(request.received, away)
        else:
            self._held.hold(request)

    def _answered(self, request: BackendRequest, channel: Channel, reply: Any) -> None:
        if type(reply) is OutcomeUnknownError and not self._closed and not request.once:
            request.may_be_done = True
            self._held.hold(request)
            return
        if type(reply) is list and hiredis.ReplyError not in map(type, reply):
            if self._held.was_stalled and request.changes:
                self._moved()
            request.received(reply)
            return
        for error in request.errors_in(reply):
            is_whole = error is reply and channel.is_open
            if is_whole and request.repeats(error, channel, partial(self._answered, request, channel)):
                return
            if is_moving(error):
                self._stall(request, error)
                return
            if is_retryable(error):
                # Nothing has been done. After READONLY, a new connection may lead to the promoted replica.
                self._held.hold(request)
                self.route.redirected(error)
                channel.abort(error)
                return
            if is_stale_epoch(error) and request.epoch_retries < _MAX_EPOCH_RETRIES:
                request.epoch_retries += 1
                if request.epoch == channel.epoch:
                    self.begin_epoch()
                self.send(request)
                return
            if is_stale_epoch(error) and self._heartbeat_refusal is not None:
                reply = self._heartbeat_refusal
            self._refusals.hear(error)
        is_over = self._held.has_given_up or (self._held.was_stalled and request.changes)
        if is_over and not isinstance(reply, Exception):
            self._moved()
        request.received(reply)

    def begin_epoch(self) -> None:
        """Begin a new epoch: a peer may have taken this server for dead, or the backend's data are gone."""
        channel, heartbeats = self._channel, self.heartbeats
        if heartbeats is None or channel is None or not channel.is_open:
            return

        def signed(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError) and not is_retryable(reply):
                self._heartbeat_refusal = reply
                refusal = BackendReplyError(f"the backend answered EVALSHA with: {reply}")
                heartbeats.heartbeat_answered(refusal)
            elif isinstance(reply, Exception):
                # A new channel repeats the heartbeat.
                channel.abort(reply)
            else:
                self._heartbeat_refusal = None
                self._last_heartbeat_reply = reply

        self._epoch += 1
        channel.epoch = self._epoch
        script, keys, arguments = heartbeats.heartbeat(channel.epoch)
        if self._layout:
            # It is gone if somebody has emptied the node.
            channel.send(None, *noting(channel, self._layout))
        # If the script had to be loaded first, requests sent next would arrive before the heartbeat.
        channel.load_script(script)
        channel.call(script, keys, arguments, signed)

    def _stall(self, request: BackendRequest, error: hiredis.ReplyError) -> None:
        """Send a request again later: its keys are being moved to another node, and nothing has been done."""
        why = BackendError(f"the keys of {self.route} are being moved to another node ({error})")
        self.route.redirects[str(error).partition(" ")[0]] += 1
        self._outage.report(why, ": calls wait")
        self.why_down = why
        if self._held.has_given_up:
            request.received(self.away_error())
        else:
            self._held.stall(request)

    def _moved(self) -> None:
        """Go on: the keys that were being moved are where they were, or nothing is left of them to move."""
        self._outage.end()
        for request in self._held.end_grace():
            self.send(request)
        if self.is_back is not None:
            self.is_back()

    def fail(self, request: BackendRequest) -> None:
        """Fail a request: the grace is over."""
        is_unknown = request.may_be_done and request.changes
        request.received(OutcomeUnknownError() if is_unknown else self.away_error())

    def away_error(self) -> BackendAwayError:
        """Return the error for requests while the backend is away."""
        whose = self.name.removeprefix("backend ") if self._layout else "the backend"
        return BackendAwayError(f"{whose} is away: {self.why_down}")

    async def close(self) -> None:
        """Close the channel, stop reconnecting, and fail all held requests."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
        self._held.close()
        if self._channel is not None:
            self._channel.close()
