"""One run of the server: start the backend and the listeners, serve, drain, exit."""

import asyncio
import contextlib
import gc
import logging
import os
import platform
import signal
from collections.abc import Coroutine, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pressure_server import __version__
from pressure_server.app.open_files import take_files
from pressure_server.app.process import memory_limit
from pressure_server.app.service_manager import ServiceManager
from pressure_server.app.settings import Settings
from pressure_server.app.store import EMBEDDED
from pressure_server.app.workers.channel import ASK_ALL, READY, Assignment, Channel, ChannelClosedError
from pressure_server.app.workers.crew import Crew
from pressure_server.auth.access_policy import Access
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.link import Timeouts
from pressure_server.compiled import variant
from pressure_server.errors import BackendRefusedError, PressureError, StartError
from pressure_server.net.clients import Clients
from pressure_server.net.handler import Context, find_handler
from pressure_server.net.listener import BoundSockets, Listener, ListenerUrl, SettingsError
from pressure_server.net.memory import MemoryAccount
from pressure_server.net.slow_log import SlowLog
from pressure_server.net.workers import MONITORS, Process, Workers
from pressure_server.queues.broker import Broker
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.repair import AutoRepair
from pressure_server.queues.survey import Survey
from pressure_server.queues.upkeep import Expiry, Libraries, limit_storage, sweep
from pressure_server.text import counted
from pressure_server.web.http_settings import HttpSettings

if TYPE_CHECKING:
    from pressure_server.web.http_listener import HttpListener

logger = logging.getLogger(__name__)

# The part of the drain timeout for answering clients; the rest is for putting undelivered messages back.
_CLIENTS_PART = 0.8
_STOPPING = (signal.SIGTERM, signal.SIGINT)
# Seconds that a stop may take besides the times of the drain: Valkey gets 60 to write its data.
_STOP_MARGIN = 65.0
# Seconds for the supervisor to answer: a second for each worker that hangs.
_ASK_TIMEOUT = 3.0
# Seconds between looks at which databases the workers use.
_FOLLOW_EVERY = 5.0
# For gc.set_threshold. Requests in flight have thousands of objects: with Python's default of 700, garbage
# collection took an eighth of the time.
_GARBAGE_THRESHOLDS = (50_000, 20, 50)


class _StoppedError(Exception):
    """The server was told to stop before startup was complete."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raise StartError, BackendError or SettingsError."""
    await Server(settings).run()


class Server:
    """One run of the server. A worker has an assignment, and a channel to its supervisor.

    Raise StartError or SettingsError if the settings cannot be used.
    """

    def __init__(
        self, settings: Settings, assignment: Assignment | None = None, supervisor: Channel | None = None
    ) -> None:
        self._settings = settings
        self._assignment = assignment
        self._supervisor = supervisor
        self._access = Access(settings.access_policy)
        self._manager = ServiceManager(os.environ if assignment is None else {})
        self._connections = take_files(settings)
        self._embedded: Embedded | None = None
        if settings.backend == EMBEDDED and assignment is None:  # the supervisor runs it
            self._embedded = Embedded(settings.data_dir, fsync=settings.durability.fsync)
        peers_possible = settings.backend != EMBEDDED or settings.workers > 1 or assignment is not None
        self._broker = Broker(
            settings.address(settings.keepalive),
            prefix=settings.prefix,
            shards=settings.shards,
            policy=settings.policy,
            timeouts=Timeouts(answer=settings.backend_timeout, grace=settings.backend_grace),
            peer_detection=PeerDetection(settings.proxy_timeout, peers_possible=peers_possible),
            durability=settings.durability,
            allow_eviction=settings.allow_eviction,
        )
        # Numbers that no other process of the server gives.
        step = assignment.processes if assignment else settings.processes
        first = assignment.number if assignment else step
        self._clients = Clients(
            self._connections.clients,
            settings.idle_timeout,
            self._access,
            MemoryAccount(settings.max_buffered_bytes, settings.max_message_bytes),
            SlowLog(settings.slowlog_slower_than, settings.slowlog_max_len, count(first - 1, step)),
            count(first, step),
        )
        self._broker.jobs_of_clients = self._clients.reserved_jobs
        self._process = Process(self._clients, self._broker, accepts=settings.workers == 1)
        self._crew = Crew(settings, self._process, self._clients, self._broker, self.stop)
        workers = Workers(self._ask_all)
        self._context = Context(settings.handler_settings, self._broker, self._clients, workers)
        self._context.check_workers = self._crew.check_readiness
        self._tasks: list[asyncio.Task[None]] = []
        self._bound: list[BoundSockets] = []
        self._listeners: list[Listener] = []
        self._http: HttpListener | None = None
        self._is_to_stop = asyncio.Event()

    def stop(self) -> None:
        """Stop, as after SIGTERM."""
        self._is_to_stop.set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raise StartError or BackendError."""
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._access.reload)
        try:
            await self._start()
            await self._is_to_stop.wait()
            await self._drain()
            if self._crew.is_lost:
                raise StartError("no worker can be started any longer: the log has the reasons")
        except (StartError, SettingsError, BackendRefusedError, _StoppedError) as error:
            # Sign off, so that peers do not consider this server dead.
            await self._broker.settle(self._settings.drain_timeout)
            if not isinstance(error, _StoppedError):
                raise
            logger.info("stopping: startup was not complete")
            self._manager.stopping(_STOP_MARGIN)
        finally:
            await self._exit()
        logger.info("stopped")

    async def _start(self) -> None:
        """Start the backend and the background tasks, then listen. Raise _StoppedError if told to stop."""
        self._manager.starting()
        if self._embedded is not None:
            await self._unless_stopped(self._embedded.start())
        broker, settings = self._broker, self._settings
        await self._unless_stopped(broker.start())
        background = (
            Expiry(broker, settings.implicit_queue_ttl).run(),
            AutoRepair(broker, settings.repair_after).run(),
            Libraries(broker).run(),
            sweep(broker),
            limit_storage(broker),
        )
        self._tasks = list(map(asyncio.create_task, background))
        if self._supervisor is not None:
            self._supervisor.answer = self._process.answer
            self._clients.monitors.tell_others = partial(self._supervisor.tell, MONITORS)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._refuse_jobs)
        await self._listen()
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        self._announce()

    async def _unless_stopped(self, starting: Coroutine[Any, Any, object]) -> None:
        """Await `starting`. If the server is told to stop first, cancel it and raise _StoppedError."""
        started, stopped = asyncio.create_task(starting), asyncio.create_task(self._is_to_stop.wait())
        await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        started.cancel()
        try:
            await started
        except asyncio.CancelledError:
            raise _StoppedError from None

    async def _listen(self) -> None:
        """Open the listeners, or start the workers that do. Raise StartError."""
        await self._bind()
        limits = self._connections
        if self._settings.workers > 1:
            self._tasks.append(asyncio.create_task(self._follow_databases()))
            await self._unless_stopped(self._crew.start(self._bound))
        else:
            for bound in self._bound:
                connect = find_handler(bound.listen.handler)(self._context, bound.listen).connect
                opened = await Listener.open(bound, connect, self._access.tls, limits.handshakes)
                self._listeners.append(opened)
        if self._settings.http is not None:
            await self._listen_http(self._settings.http)
        self._context.listening += [bound.listen for bound in self._bound]

    async def _listen_http(self, listen: ListenerUrl) -> None:
        # A server without --http need not have aiohttp in memory; see web/http_settings.py.
        from pressure_server.web.http_listener import HttpListener
        from pressure_server.web.http_requests import HttpContext

        survey = self._context.survey = Survey(self._broker)
        self._tasks.append(asyncio.create_task(survey.run()))
        resp = find_handler("resp")(self._context, ListenerUrl("resp"))
        settings, limits = self._settings, self._connections
        http = HttpSettings(
            listen,
            settings.metrics_queues,
            settings.metrics_match,
            settings.keepalive,
            limits.http,
            limits.handshakes,
        )
        with _listening_on(listen):
            self._http = await HttpListener.open(
                HttpContext(self._context, survey, http, self._embedded, resp, machine_memory=memory_limit())
            )
        logger.info("listening on %s: console, metrics and health checks", self._http.listen)

    async def _bind(self) -> None:
        """Bind the sockets of the listeners, or take those that the supervisor has bound."""
        if self._assignment is not None:
            self._bound = self._assignment.sockets()
            return
        any_ipv4 = "0.0.0.0"  # noqa: S104 -- the user's choice
        listens = dict.fromkeys(self._settings.listen)
        with_any_ipv4 = {listen.port for listen in listens if listen.host == any_ipv4 and listen.port}
        for listen in listens:
            # `::` can be combined with 0.0.0.0 and the same port.
            leave = (any_ipv4,) if listen.host != any_ipv4 and listen.port in with_any_ipv4 else ()
            with _listening_on(listen):
                self._bound.append(await BoundSockets.bind(listen, self._settings.keepalive, leave=leave))

    async def _ask_all(self, question: str, *arguments: Any) -> list[Any]:
        if self._supervisor is not None:
            with contextlib.suppress(TimeoutError, ChannelClosedError):
                async with asyncio.timeout(_ASK_TIMEOUT):
                    answers: list[Any] | None = await self._supervisor.ask(ASK_ALL, question, *arguments)
                    if answers:
                        return answers
        # A worker is in the crew of its supervisor; it answers alone if that has gone.
        return await self._crew.ask(question, *arguments)

    async def _follow_databases(self) -> None:
        """Open the databases that the workers use, so that the console and the metrics show them."""
        while True:
            with contextlib.suppress(PressureError):
                for number in await self._context.workers.databases():
                    await self._broker.database(number)
            await asyncio.sleep(_FOLLOW_EVERY)

    def _announce(self) -> None:
        """Log what the server uses, and report to its supervisor or service manager that it is ready."""
        broker = self._broker
        if self._supervisor is not None:
            self._supervisor.tell(READY, broker.identity)
            logger.info("serving, the name of this process is '%s'", broker.identity)
            return
        logger.info("pressure-server %s (%s), Python %s", __version__, variant(), platform.python_version())
        for listen in self._context.listening:
            logger.info("listening on %s", listen)
        if self._access.refuses_other_machines and any(
            opened.is_reachable for opened in (*self._bound, self._http) if opened is not None
        ):
            logger.warning(
                "no password is set, so all clients on other machines are refused (protected mode): set "
                "--password-file or --users, or turn it off with --no-protected-mode"
            )
        version = broker.version if broker.is_up else "not connected yet"
        if self._embedded is not None:
            logger.info("backend: embedded %s, data in %s", version, self._embedded.data.path)
        else:
            logger.info("backend: %s, database %d (%s)", broker.address, broker.address.database, version)
        if broker.is_up:
            self._announce_ready()
        else:
            grace = counted(self._broker.grace, "second")
            logger.info("waiting for the backend: commands wait up to %s for it, then fail", grace)
            self._manager.ready(f"{self._status()}; waiting for the backend")
            broker.when_back(self._announce_ready)

    def _announce_ready(self) -> None:
        logger.info(
            "ready: queues are stored under the prefix '%s:', the name of this server is '%s'",
            self._settings.prefix,
            self._broker.identity,
        )
        self._manager.ready(self._status())

    def _status(self) -> str:
        return f"listening on {', '.join(map(str, self._context.listening))}"

    def _reload(self) -> None:
        """Read the users, the TLS files and the settings of queues by name again, after SIGHUP."""
        with self._manager.reloading():
            sessions = self._http.sessions() if self._http is not None else ()
            self._access.reload([*self._clients.connected, *sessions])
            self._clients.users_changed()
            try:
                policy = self._settings.policy
                self._broker.change_policy(policy)
            except (SettingsError, StartError) as error:
                logger.error("the previous settings of queues stay in force: %s", error)
            else:
                logger.info("reloaded %s with settings of queues", counted(len(policy.templates), "section"))
        self._crew.forward(signal.SIGHUP)

    def _refuse_jobs(self) -> None:
        """Accept no more jobs from beanstalk clients, as beanstalkd does after SIGUSR1."""
        self._context.is_draining = True
        self._crew.forward(signal.SIGUSR1)
        logger.info("drain mode (SIGUSR1): puts of beanstalk clients get DRAINING")

    async def _drain(self) -> None:
        """Let load balancers notice, finish the commands of clients, and put undelivered messages back."""
        settings = self._settings
        self._context.is_stopping = True
        self._manager.stopping(settings.drain_delay + settings.drain_timeout + _STOP_MARGIN)
        stopping = asyncio.create_task(self._crew.stop())
        is_orphan = self._supervisor is not None and self._supervisor.closed.done()
        if settings.drain_delay and not is_orphan:
            logger.info(
                "stopping: not ready for new clients; draining begins in %s",
                counted(settings.drain_delay, "second"),
            )
            await asyncio.sleep(settings.drain_delay)
        if settings.workers == 1:
            logger.info("draining: accepting no new clients, %d connected", len(self._clients.connected))
        self._close_listeners()
        self._broker.end_waits()
        await stopping
        seconds = _CLIENTS_PART * settings.drain_timeout
        if cut_off := await self._clients.drain(seconds):
            logger.warning(
                "clients that did not finish within %s, and were disconnected: %d",
                counted(seconds, "second"),
                cut_off,
            )
        if not await self._broker.settle(settings.drain_timeout - seconds):
            logger.warning(
                "undelivered messages could not all be put back: another server, or this one after its "
                "restart, recovers them"
            )

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        for bound in self._bound:
            bound.close()

    async def _exit(self) -> None:
        """Close everything that was started. From here on signals are ignored."""
        try:
            for task in self._tasks:
                task.cancel()
            # Until here, so that /readyz tells that the server is stopping.
            if self._http is not None:
                await self._http.close()
            await self._crew.stop()
            self._close_listeners()
            await self._broker.close()
        finally:
            if self._embedded is not None:
                await self._embedded.stop()
            self._manager.close()
            # Their default action would change the exit status.
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
            for number in _STOPPING:
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _listening_on(listen: ListenerUrl) -> Iterator[None]:
    """Turn OSError into StartError."""
    try:
        yield
    except OSError as error:
        raise StartError(f"cannot listen on {listen}: {error.strerror or error}") from error
