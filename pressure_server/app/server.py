"""The server's life cycle: start the backend and the listeners, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pressure_server.app import memory_limit
from pressure_server.app.service_manager import ServiceManager
from pressure_server.app.settings import EMBEDDED, Settings
from pressure_server.auth.access_policy import Access, AccessError
from pressure_server.backend.address import Address
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.greeting import BackendRefusedError
from pressure_server.net.clients import Clients
from pressure_server.net.handler import Context, Handler, find_handler
from pressure_server.net.handshakes import MAX_HANDSHAKES
from pressure_server.net.listen import ListenerUrl
from pressure_server.net.listener import Listener
from pressure_server.net.memory import MemoryAccount
from pressure_server.net.slow_log import SlowLog
from pressure_server.queues.broker import Broker
from pressure_server.queues.expiry import Expiry
from pressure_server.queues.libraries import Libraries
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.repair.auto_repair import AutoRepair
from pressure_server.queues.storage_limit import StorageLimit
from pressure_server.queues.survey import Survey
from pressure_server.queues.sweeper import Sweeper
from pressure_server.web.connections import MAX_CONNECTIONS
from pressure_server.web.sessions import Sessions
from pressure_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from pressure_server.web.listener import HttpListener

logger = logging.getLogger(__name__)

# The part of the drain timeout for answering clients; the rest is for putting undelivered messages back.
_CLIENTS_PART = 0.8
# File descriptors of a client over TLS: its socket and a copy, see tcp_info.TlsRecords.
_FILES_OF_TLS = 2
_STOPPING = (signal.SIGTERM, signal.SIGINT)
# File descriptors besides those of clients: listeners, backend connections, the interpreter's own.
_OTHER_FILES = 64
# Seconds that a stop may take besides the times of the drain: Valkey gets 60 to write its data.
_STOP_MARGIN = 65.0
# For gc.set_threshold. Requests in flight have thousands of objects: with Python's default of 700, garbage
# collection took an eighth of the time.
_GARBAGE_THRESHOLDS = (50_000, 20, 50)


class StartError(Exception):
    """The server cannot start; the text gives the reason."""


class _StoppedError(Exception):
    """The server was told to stop before startup was complete."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raise StartError, BackendError or SettingsError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    handlers = {listen: find_handler(listen.handler) for listen in settings.listen}
    try:
        access = Access(settings.access_policy)
    except AccessError as error:
        raise StartError(str(error)) from error
    loop.add_signal_handler(signal.SIGHUP, access.reload)
    embedded = (
        Embedded(settings.data_dir, fsync=settings.durability.fsync) if settings.backend == EMBEDDED else None
    )
    manager = ServiceManager(os.environ)
    try:
        manager.starting()
        if embedded is not None:
            await _run_until_stopped(stop, embedded.start())
        address = Address(embedded.url) if embedded is not None else settings.address()
        await _serve_on(address, settings, handlers, access, embedded, stop, manager)
    except _StoppedError:
        logger.info("stopping: startup was not complete")
        manager.stopping(_STOP_MARGIN)
    finally:
        if embedded is not None:
            await embedded.stop()
        manager.close()
        # Ignore further signals: their default action would change the exit status.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        for number in _STOPPING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    logger.info("stopped")


async def _run_until_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> None:
    """Await `starting`. If `stop` is set first, cancel it and raise _StoppedError."""
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
    handlers: dict[ListenerUrl, type[Handler]],
    access: Access,
    embedded: Embedded | None,
    stop: asyncio.Event,
    manager: ServiceManager,
) -> None:
    broker = Broker(
        address,
        prefix=settings.prefix,
        policy=settings.policy,
        timeouts=settings.timeouts,
        peer_detection=PeerDetection(settings.proxy_timeout, peers_possible=embedded is None),
        durability=settings.durability,
        allow_eviction=settings.allow_eviction,
    )
    expiry = Expiry(broker, settings.implicit_queue_ttl)
    repairs = AutoRepair(broker, settings.repair_after)
    storage = StorageLimit(broker)
    sweeper, libraries = Sweeper(broker), Libraries(broker)
    survey, sessions = Survey(broker), Sessions()
    listeners: list[Listener] = []
    http: HttpListener | None = None
    try:
        await _run_until_stopped(stop, broker.start())
        expiry.start()
        repairs.start()
        storage.start()
        sweeper.start()
        libraries.start()
        memory = MemoryAccount(
            settings.buffered_bytes(memory_limit.memory_limit()), settings.max_message_bytes
        )
        handshakes = MAX_HANDSHAKES * sum(listen.tls for listen in settings.listen)
        http_files = 0 if settings.http is None else _FILES_OF_TLS * MAX_CONNECTIONS
        each = _FILES_OF_TLS if any(listen.tls for listen in settings.listen) else 1
        most = _clients_possible(settings.max_clients, each, _OTHER_FILES + handshakes + http_files)
        slow_log = SlowLog(settings.slowlog_slower_than, settings.slowlog_max_len)
        clients = Clients(most, settings.idle_timeout, access, memory, slow_log)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, _reload, access, clients, sessions, manager)
        context = Context(settings.handler_settings, broker, clients)
        loop.add_signal_handler(signal.SIGUSR1, _refuse_jobs, context)
        for listen, handler in handlers.items():
            try:
                listeners.append(await Listener.open(listen, handler(context, listen).connect, access.tls))
            except OSError as error:
                raise StartError(f"cannot listen on {listen}: {error.strerror or error}") from error
        if settings.http_settings is not None:
            survey.start()
            context.survey = survey
            http = await _open_http(context, survey, settings.http_settings, embedded, sessions)
        context.listening += [listener.listen for listener in listeners]
        if http is not None:
            logger.info("listening on %s: console, metrics and health checks", http.listen)
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        _announce(context, embedded, settings.backend_grace, manager)
        await stop.wait()
        context.is_stopping = True
        manager.stopping(settings.drain_delay + settings.drain_timeout + _STOP_MARGIN)
        if settings.drain_delay:
            logger.info(
                "stopping: not ready for new clients; draining begins in %g seconds", settings.drain_delay
            )
            await asyncio.sleep(settings.drain_delay)
        logger.info("draining: accepting no new clients, %d connected", len(clients.connected))
        for listener in listeners:
            listener.close()
        broker.end_waits()
        seconds = _CLIENTS_PART * settings.drain_timeout
        if cut_off := await clients.drain(seconds):
            logger.warning(
                "clients that did not finish within %g seconds, and were disconnected: %d", seconds, cut_off
            )
        if not await broker.settle(settings.drain_timeout - seconds):
            logger.warning(
                "undelivered messages could not all be put back: another server, or this one after its "
                "restart, recovers them"
            )
    except (StartError, BackendRefusedError, _StoppedError):
        # Sign off, so that peers do not consider this server dead.
        await broker.settle(settings.drain_timeout)
        raise
    finally:
        # Until here, so that /readyz tells that the server is stopping.
        survey.stop()
        if http is not None:
            await http.close()
        expiry.stop()
        repairs.stop()
        storage.stop()
        sweeper.stop()
        libraries.stop()
        for listener in listeners:
            listener.close()
        await broker.close()


async def _open_http(
    context: Context, survey: Survey, settings: HttpSettings, embedded: Embedded | None, sessions: Sessions
) -> HttpListener:
    # A server without --http need not have aiohttp in memory; see web/settings.py.
    from pressure_server.web.listener import HttpListener
    from pressure_server.web.shown import Shown

    try:
        return await HttpListener.open(Shown(context, survey, settings, embedded, sessions))
    except OSError as error:
        raise StartError(f"cannot listen on {settings.listen}: {error.strerror or error}") from error


def _reload(access: Access, clients: Clients, sessions: Sessions, manager: ServiceManager) -> None:
    with manager.reloading():
        access.reload([*clients.connected, *sessions.current()])


def _refuse_jobs(context: Context) -> None:
    """Accept no more jobs from beanstalk clients, as beanstalkd does after SIGUSR1."""
    context.is_draining = True
    logger.info("drain mode (SIGUSR1): puts of beanstalk clients get DRAINING")


def _announce(context: Context, embedded: Embedded | None, grace: float, manager: ServiceManager) -> None:
    broker = context.broker
    for listen in context.listening:
        logger.info("listening on %s", listen)
    what = broker.version if broker.is_up else "not connected yet"
    if embedded is not None:
        logger.info("backend: embedded %s, data in %s", what, embedded.data_dir)
    else:
        logger.info("backend: %s, database %d (%s)", broker.address, broker.address.database, what)
    where = ", ".join(map(str, context.listening))

    def ready() -> None:
        logger.info(
            "ready: queues are stored under the prefix '%s:', the name of this server is '%s'",
            context.settings.prefix,
            broker.identity,
        )
        manager.ready(f"listening on {where}")

    if broker.is_up:
        ready()
    else:
        logger.info("waiting for the backend: commands wait up to %g seconds for it, then fail", grace)
        manager.ready(f"listening on {where}; waiting for the backend")
        broker.default_database.when_back(ready)


def _clients_possible(wanted: int, each: int, others: int) -> int:
    """Return how many clients may connect: `wanted`, or fewer if the limit on open files is too low.

    A client needs up to `each` file descriptors; `others` are needed besides those of clients. The soft limit
    on open files is raised if necessary.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = each * wanted + others
    if hard != resource.RLIM_INFINITY and needed > hard:
        logger.warning(
            "serving %d clients at most: the hard limit on open files is %d", (hard - others) // each, hard
        )
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return (needed - others) // each
