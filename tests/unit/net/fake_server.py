"""A server whose sockets and backend are in memory, for tests of connections and sessions."""

import asyncio
from typing import Any, cast
from unittest.mock import Mock

from handlers.resp import commands
from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.auth.access_policy import Access, AccessPolicy
from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.net.clients import Clients
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.net.memory import MemoryAccount
from pressure_server.net.workers import Process, Workers
from pressure_server.queues.database import Database
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import WaiterCount
from pressure_server.queues.placement import Placement
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from tests.interleavings.connections import ModelDurability, ModelWatch
from tests.unit.queues.fake_link import FakeLink


class FakeTransport(asyncio.Transport):
    """A transport that keeps what is written; its socket has not taken `buffered` bytes of that."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_broken = False
        self.is_aborted = False
        self.is_closed = False
        self.has_written_eof = False
        self.buffered = 0

    def write(self, data: Any) -> None:
        if self.is_broken:
            raise OSError("the transport is broken")
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_written_eof = True

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio.BaseTransport."""


class Server:
    """Clients of a server whose sockets and backend are in memory."""

    def __init__(self, password: bytes | None = None) -> None:
        commands.load()
        self.link = FakeLink()
        self.shard = Shard(
            cast(Link, self.link), cast(Watch, ModelWatch()), Mock(spec=Turns),
            cast(Durability, ModelDurability(is_enabled=False)),
            prefix=b"p", identity=b"me", policy=Policy(), waiters=WaiterCount(100), answers=Answers(),
        )  # fmt: skip
        self.database = Database([self.shard], Placement(b"p"))
        self.clients = Clients(10, 0.0, Access(AccessPolicy(password)), MemoryAccount(1 << 30, 1 << 20))
        broker = Mock()
        broker.default_database = self.database
        broker.waiters = WaiterCount(100)
        settings = Mock(max_message_bytes=1 << 20, documentation="")
        process = Process(self.clients, broker)

        async def ask_all(question: str, *arguments: Any) -> list[Any]:
            return [await process.answer(question, arguments)]

        self.context = Context(settings, broker, self.clients, Workers(ask_all))

    def connect(self) -> tuple[Connection, FakeTransport]:
        transport = FakeTransport()
        connection = Connection(self.clients, RespSession(self.context, Limits(1 << 20)))
        connection.connection_made(transport)
        return connection, transport

    def send(self) -> None:
        """Send what is ready, as a call of its own."""
        self.shard.courier.flush()

    def close(self) -> None:
        self.clients._ticking.cancel()
