"""The server's life: start the backend and the listeners, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Coroutine
from functools import partial
from typing import Any

from pressure_server.app import memory_limit
from pressure_server.app.settings import EMBEDDED, Settings
from pressure_server.auth.access import Access, AccessError
from pressure_server.backend.address import Address
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.greeting import BackendRefusedError
from pressure_server.net.clients import Clients
from pressure_server.net.handler import Context, Handler, find_handler
from pressure_server.net.handshakes import MOST_UNDER_WAY
from pressure_server.net.listen import Listen
from pressure_server.net.listener import Listener
from pressure_server.net.memory import Memory
from pressure_server.queues.broker import Broker
from pressure_server.queues.expiry import Expiry
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.repair.auto_repair import AutoRepair

logger = logging.getLogger(__name__)

# Of the time to drain: for clients to be answered; the rest is for handing back what they did not take.
_FOR_CLIENTS = 0.8
# The socket of a client over TLS, and a copy of it: see sent.Records.
_FILES_OF_TLS = 2
_STOPPING = (signal.SIGTERM, signal.SIGINT)
# Files we need beside those of clients: listeners, the backend's connections, the interpreter's own.
_OTHER_FILES = 64
# How many new objects there may be before Python looks for garbage among them, and how often it looks at
# older ones. Requests under way have thousands: with Python's own 700 it looked for an eighth of its time.
_GARBAGE_THRESHOLDS = (50_000, 20, 50)


class StartError(Exception):
    """The server cannot start; the text says why."""


class _StoppedError(Exception):
    """We were told to stop before we had started."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError, BackendError or SettingsError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    handlers = {listen: find_handler(listen.handler) for listen in settings.listen}
    try:
        access = Access(settings.doors)
    except AccessError as error:
        raise StartError(str(error)) from error
    loop.add_signal_handler(signal.SIGHUP, access.reload)
    embedded = (
        Embedded(settings.data_dir, fsync=settings.durability.fsync) if settings.backend == EMBEDDED else None
    )
    try:
        if embedded is not None:
            await _unless(stop, embedded.start())
        address = Address(embedded.url) if embedded is not None else settings.address()
        await _serve_on(address, settings, handlers, access, embedded, stop)
    except _StoppedError:
        logger.info("stopping: not ready yet")
    finally:
        if embedded is not None:
            await embedded.stop()
        # To be told again does not matter. By default it would end us with another status.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        for number in _STOPPING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    logger.info("stopped")


async def _unless(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> None:
    """Do it; but if `stop` comes first cancel it, and raise _StoppedError."""
    started, stopped = asyncio.create_task(starting), asyncio.create_task(stop.wait())
    await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    started.cancel()
    try:
        await started
    except asyncio.CancelledError:
        raise _StoppedError from None


async def _serve_on(
    address: Address,
    settings: Settings,
    handlers: dict[Listen, type[Handler]],
    access: Access,
    embedded: Embedded | None,
    stop: asyncio.Event,
) -> None:
    broker = Broker(
        address,
        prefix=settings.prefix,
        policy=settings.policy,
        patience=settings.patience,
        peer_detection=PeerDetection(settings.proxy_timeout, peers_possible=embedded is None),
        durability=settings.durability,
        allow_eviction=settings.allow_eviction,
    )
    expiry = Expiry(broker, settings.implicit_queue_ttl)
    repairs = AutoRepair(broker, settings.repair_after)
    listeners: list[Listener] = []
    try:
        await _unless(stop, broker.start())
        expiry.start()
        repairs.start()
        memory = Memory(settings.buffered_bytes(memory_limit.memory()), settings.max_message_bytes)
        handshakes = MOST_UNDER_WAY * sum(listen.tls for listen in settings.listen)
        each = _FILES_OF_TLS if any(listen.tls for listen in settings.listen) else 1
        most = _clients_possible(settings.max_clients, each, _OTHER_FILES + handshakes)
        clients = Clients(most, settings.idle_timeout, access, memory)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, access.reload, clients.connected)
        context = Context(settings.for_handlers, broker, clients)
        for listen, handler in handlers.items():
            try:
                listeners.append(await Listener.open(listen, handler(context, listen).connect, access.tls))
            except OSError as error:
                raise StartError(f"cannot listen on {listen}: {error.strerror or error}") from error
        context.listening += [listener.listen for listener in listeners]
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        _announce(context, embedded, settings.backend_grace)
        await stop.wait()
        context.is_stopping = True
        if settings.drain_delay:
            logger.info(
                "stopping: not ready any longer; clients are served for %g seconds", settings.drain_delay
            )
            await asyncio.sleep(settings.drain_delay)
        logger.info("stopping: no new clients, %d connected", len(clients.connected))
        for listener in listeners:
            listener.close()
        broker.end_waits()
        seconds = _FOR_CLIENTS * settings.drain_timeout
        if cut_off := await clients.drain(seconds):
            logger.warning("%d clients were cut off: not done within %g seconds", cut_off, seconds)
        if not await broker.settle(settings.drain_timeout - seconds):
            logger.warning("messages are left that have not been delivered: they come back a little later")
    except (StartError, BackendRefusedError, _StoppedError):
        # Sign off, so that no other server takes us for one that has died.
        await broker.settle(settings.drain_timeout)
        raise
    finally:
        expiry.stop()
        repairs.stop()
        for listener in listeners:
            listener.close()
        await broker.close()


def _announce(context: Context, embedded: Embedded | None, grace: float) -> None:
    broker = context.broker
    for listen in context.listening:
        logger.info("listening on %s", listen)
    what = broker.version if broker.is_up else "away"
    if embedded is not None:
        logger.info("backend: embedded %s, data in %s", what, embedded.data_dir)
    else:
        logger.info("backend: %s, database %d (%s)", broker.address, broker.address.database, what)
    ready = partial(
        logger.info,
        "ready: queues are keys under '%s:', we are '%s'",
        context.settings.prefix,
        broker.identity,
    )
    if broker.is_up:
        ready()
    else:
        logger.info("waiting for the backend: commands wait for it for %g seconds, then fail", grace)
        broker.default_database.when_back(ready)


def _clients_possible(wanted: int, each: int, others: int) -> int:
    """As many clients as are wanted, or as the limit on open files, raised if need be, allows.

    A client needs up to `each` files; `others` is how many are needed beside.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = each * wanted + others
    if hard != resource.RLIM_INFINITY and needed > hard:
        logger.warning("at most %d clients: the limit on open files is %d", (hard - others) // each, hard)
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return (needed - others) // each
