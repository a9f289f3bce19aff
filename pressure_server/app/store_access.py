"""Access to the store of queues for commands that run beside a server, or without one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from pressure_server.app.settings import EMBEDDED, Store
from pressure_server.backend.address import Address
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.link import Timeouts
from pressure_server.net.listener import SettingsError
from pressure_server.queues.broker import Broker
from pressure_server.queues.policy import Policy

# Seconds to remove this process's call records from the backend.
_SETTLE_TIMEOUT = 2.0


@contextlib.asynccontextmanager
async def open_store(store: Store) -> AsyncIterator[Broker]:
    """Yield a broker that changes nothing by itself. Raise SettingsError or BackendError.

    If no server runs the embedded backend, start it for that time.
    """
    async with _backend(store) as address:
        broker = Broker(address, prefix=store.prefix, policy=Policy(), timeouts=Timeouts(grace=0))
        try:
            await broker.start(to_look=True)
            yield broker
        finally:
            await broker.settle(_SETTLE_TIMEOUT)
            await broker.close()


@contextlib.asynccontextmanager
async def _backend(store: Store) -> AsyncIterator[Address]:
    """Yield the backend's address."""
    if store.backend != EMBEDDED:
        yield store.address()
        return
    if not store.data_dir.is_dir():
        raise SettingsError(f"there is no data directory {store.data_dir}: set --data-dir or --backend")
    embedded = Embedded(store.data_dir)
    if embedded.is_running():
        yield Address(embedded.url)
        return
    try:
        await embedded.start()
        yield Address(embedded.url)
    finally:
        await embedded.stop()
