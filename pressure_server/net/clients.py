"""The connected clients of all listeners: admission, counts, idle timeout and draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pressure_server.auth.access_policy import Access
from pressure_server.auth.users import NOBODY
from pressure_server.errors import DeniedError
from pressure_server.net.client_log import ConnectionLog, UnknownCommands
from pressure_server.net.disconnects import DisconnectWatch
from pressure_server.net.memory import MemoryAccount
from pressure_server.net.monitors import Monitors
from pressure_server.net.outbox import Deliveries
from pressure_server.net.slow_log import SlowLog
from pressure_server.net.strangers import Strangers

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection
    from pressure_server.net.session import Session


# Seconds: the resolution of the time of a client's last command.
_TICK: Final = 1.0


class Clients:
    """The connected clients. Those that have not logged in are also in `strangers`.

    Connections that are idle for `idle_timeout` seconds are closed (0: never).
    """

    def __init__(
        self,
        max_clients: int,
        idle_timeout: float,
        access: Access,
        memory: MemoryAccount,
        slow_log: SlowLog | None = None,
        ids: Iterator[int] | None = None,
    ) -> None:
        self.access = access
        self.max_clients = max_clients
        self.memory = memory
        self.strangers = Strangers(memory.limit)
        self.idle_timeout = idle_timeout
        self.slow_log = slow_log if slow_log is not None else SlowLog(-1, 0)
        self.monitors = Monitors()
        self.unknown_commands = UnknownCommands()
        self._log = ConnectionLog.if_enabled()
        # They are shown the requests of clients before these are executed. Usually there are none.
        self.observers: list[ConnectionLog | Monitors] = [] if self._log is None else [self._log]
        self.connected: set[Session] = set()
        self.disconnects = DisconnectWatch()
        self.deliveries = Deliveries()
        # The ids of connections: no two processes of one server give the same.
        self.ids = ids if ids is not None else count(1)
        # What listeners report to all processes of the server, by the name of the report.
        self.reports: dict[str, Callable[[Any], Any]] = {}
        self.accepted = 0
        self.rejected = 0
        self.commands = 0
        self.commands_per_second = 0
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time()
        self._emptied = asyncio.Event()
        self._ticking = self._loop.create_task(self._tick())

    def admit(self, client: Session) -> bytes:
        """Admit the client and return an empty reply, or return the error reply that refuses it."""
        denied = not self.access.admits(client.connection.transport)
        if denied or (len(self.connected) >= self.max_clients and not self.strangers.make_room(self.now)):
            self.rejected += 1
            return client.error_reply(DeniedError()) if denied else client.TOO_MANY_CLIENTS
        client.connection.active = self.now
        client.user = self.access.users.initial
        if client.user is NOBODY:
            self.strangers.add(client.connection)
        self.accepted += 1
        self.connected.add(client)
        self.disconnects.watch(client.connection)
        if self._log is not None:
            self._log.opened(client)
        return b""

    def reserved_jobs(self) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield the jobs that clients have reserved, as JobsOfClients."""
        for client in self.connected:
            for database, queue, job, reserves in client.reserved_jobs.all():
                yield database.database_number, queue, job, reserves

    def welcome(self, connection: Connection) -> None:
        """Note that the client of a connection has logged in."""
        if self.strangers.remove(connection):
            self.memory.update(connection, connection.counted)

    def users_changed(self) -> None:
        """Note that clients may have other users, after a reload: some need no login any longer."""
        for client in list(self.connected):
            if client.user is not NOBODY:
                self.welcome(client.connection)

    def recount(self, connection: Connection) -> None:
        """Note how many bytes are buffered for a client. Throttle or evict clients if needed."""
        account = self.strangers if connection in self.strangers else self.memory
        account.update(connection, connection.counted)

    def add_report(self, protocol: str, report: Callable[[Any], Any]) -> str:
        """Let a listener of this protocol report about something; return the report's name, for Workers."""
        # All processes of a server have the same listeners, in the same order.
        name = f"{protocol} {len(self.reports)}"
        self.reports[name] = report
        return name

    def monitor(self, client: Session) -> None:
        """Show the commands of all clients to this client, from the next read on."""
        self.monitors.add(client)
        self._observe()

    def end_monitor(self, client: object) -> None:
        """Show a client no more commands, if it is a monitor."""
        if client in self.monitors:
            self.monitors.discard(client)
            self._observe()

    def show_to_others(self, *, wanted: bool) -> None:
        """Tell the other processes of this server what the clients send, or no longer."""
        self.monitors.others_watch = wanted
        self._observe()

    def _observe(self) -> None:
        self.observers[:] = [one for one in self.observers if one is not self.monitors]
        if self.monitors or self.monitors.others_watch:
            self.observers.append(self.monitors)
        self.monitors.tell_of_change()

    def remove(self, client: Session, reason: str) -> None:
        """Remove a client whose connection has ended."""
        self.connected.discard(client)
        self.disconnects.unwatch(client.connection)
        self.end_monitor(client)
        if self._log is not None:
            self._log.closed(client, reason)
        self.strangers.remove(client.connection)
        self.memory.update(client.connection, 0)
        if not self.connected:
            self._emptied.set()

    def reset_counts(self) -> None:
        """Set the counts of connections, commands and refusals to zero."""
        self.accepted = self.rejected = self.commands = 0
        self.memory.evicted = self.strangers.evicted = 0
        self.access.logins.denied = 0
        self.access.refused.clear()

    async def _tick(self) -> None:
        while True:
            before = self.commands
            await asyncio.sleep(_TICK)
            self.now = self._loop.time()
            self.strangers.disconnect_late(self.now)
            # The count may have been reset.
            self.commands_per_second = max(0, round((self.commands - before) / _TICK))
            if self.idle_timeout:
                # A client may have been active up to one tick later than noted.
                oldest = self.now - self.idle_timeout - _TICK
                for client in [one for one in self.connected if one.connection.active < oldest]:
                    # A monitor only reads. After a wait, the client may need some time for what it has got.
                    if client not in self.monitors and client.connection.waited < oldest:
                        client.connection.close_if_idle()

    async def drain(self, timeout: float) -> int:
        """Let every connection finish the commands that have begun, and close it.

        Break off those that do so for more than `timeout` seconds, and return their number.
        """
        self._ticking.cancel()
        for client in list(self.connected):
            client.connection.drain()
        self._emptied.clear()
        if self.connected:
            try:
                async with asyncio.timeout(timeout):
                    await self._emptied.wait()
            except TimeoutError:
                pass
        left = list(self.connected)
        for client in left:
            client.connection.break_off()
        self.disconnects.close()
        return len(left)
