"""The crew: the workers of one server, as their supervisor sees them. A server that is one process has none.

A worker is a server of its own that accepts clients on sockets that all workers share. The crew starts them,
starts one again that has ended or hangs, forwards signals, and hands on the questions that they ask each
other.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, create_subprocess_exec
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from pressure_server.app.settings import Settings
from pressure_server.app.workers.channel import ASK_ALL, READY, WORK, Assignment, Channel, ChannelClosedError
from pressure_server.errors import BackendError, StartError
from pressure_server.net.clients import Clients
from pressure_server.net.listener import BoundSockets
from pressure_server.net.workers import COUNTED, MONITORS, RESET_STATISTICS, Process
from pressure_server.queues.broker import Broker
from pressure_server.text import counted

logger = logging.getLogger(__name__)

_MODULE = "pressure_server.app.worker"
# Seconds before a worker is started again: doubled until it has run for _STABLE_AFTER.
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0
_STABLE_AFTER = 30.0
# Seconds between checks whether a worker answers, and after which one that does not is killed: when it has
# answered before, and at first, as a busy machine may need long to start it.
_CHECK_EVERY = 1.0
_HANGS_AFTER = 10.0
_STARTS_WITHIN = 60.0
# Seconds that workers may take to end, besides the times of the drain.
_STOP_MARGIN = 5.0
# Seconds for the others to answer a question; what a worker that hangs would say is left out.
_ANSWER_TIMEOUT = 1.0
# The supervisor gives up when no worker is ready and each has failed to start this many times in a row.
_MOST_FAILURES = 3


class _Worker:
    """One worker, whichever process it is at present. `failures` to start are counted since it was ready."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.channel: Channel | None = None
        self.identity = ""  # as a server on the backend, since it was ready
        self.is_ready = False
        self.has_monitors = False
        self.failures = 0
        # It has not answered in time, and is not asked until it has answered whether it is alive.
        self.is_late = False
        # The last answers to questions about what is counted, and signals to send when it is ready.
        self.counted: dict[str, Any] = {}
        self.missed: set[signal.Signals] = set()

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.process.pid if self.process is not None else '-'})"

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Crew:
    """The workers of the server with these settings. `own`, `clients` and `broker` belong to this process.

    `is_lost` is whether no worker can start again; then the crew has called `give_up`.
    """

    def __init__(
        self,
        settings: Settings,
        own: Process,
        clients: Clients,
        broker: Broker,
        give_up: Callable[[], None],
    ) -> None:
        self.is_lost = False
        self._settings = settings
        self._share = settings.of_worker()
        self._stop_timeout = settings.drain_delay + settings.drain_timeout + _STOP_MARGIN
        self._bound: Sequence[BoundSockets] = ()
        self._own = own
        self._clients = clients
        self._broker = broker
        self._give_up = give_up
        self._counted_by_ended: dict[str, Any] = {}
        # Signals whose effect lasts: a worker that is started later gets them, too.
        self._lasting: set[signal.Signals] = set()
        self._workers = [_Worker(number) for number in range(1, settings.processes)]
        self._keeping: list[asyncio.Task[None]] = []
        self._is_to_stop = asyncio.Event()
        self._changed = asyncio.Event()
        clients.monitors.tell_others = lambda _has_monitors, lines: self._tell_of_monitors(lines=lines)

    async def start(self, bound: Sequence[BoundSockets]) -> None:
        """Start all workers, and wait until each has become ready or has failed once. Raise StartError."""
        self._bound = bound
        self._keeping = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
        while not all(worker.is_ready or worker.failures for worker in self._workers):
            self._changed.clear()
            await self._changed.wait()
        if self._is_down():
            raise StartError("no worker can start: the log has the reasons")

    def _is_down(self) -> bool:
        return bool(self._workers) and not any(worker.is_ready for worker in self._workers)

    def check_readiness(self) -> None:
        """Raise BackendError if no worker is ready for clients."""
        if self._is_down():
            raise BackendError("no worker is ready")

    def forward(self, number: signal.Signals) -> None:
        """Send a signal to all workers: at once, or when they are ready, as it would end one that starts."""
        if number == signal.SIGUSR1:
            self._lasting.add(number)
        for worker in self._workers:
            if worker.is_ready:
                worker.kill(number)
            else:
                worker.missed.add(number)

    async def stop(self) -> None:
        """Let all workers drain and end; kill those that do not. May be called again."""
        self._is_to_stop.set()
        self._kill_all(signal.SIGTERM)
        if not self._keeping:
            return
        _, late = await asyncio.wait(self._keeping, timeout=self._stop_timeout)
        if late:
            logger.error("killing %s that did not stop", counted(len(late), "worker"))
            self._kill_all(signal.SIGKILL)
            await asyncio.wait(late)

    def _kill_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.kill(number)

    async def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Ask all workers, and this process, and return the answers.

        What a worker that is away would say is left out, but for what it has counted. That stays even if it
        has ended, as counts must not become less.
        """
        answers = await asyncio.gather(*(self._ask(one, question, arguments) for one in self._workers))
        if question == RESET_STATISTICS:
            # Not earlier: until then, answers to earlier questions arrive, and workers that end add theirs.
            self._counted_by_ended.clear()
            for worker in self._workers:
                worker.counted.clear()
        own = await self._own.answer(question, arguments)
        ended = self._counted_by_ended.get(question)
        return [answer for answer in (own, ended, *answers) if answer is not None]

    async def _ask(self, worker: _Worker, question: str, arguments: tuple[Any, ...]) -> Any:
        answer = None
        if worker.channel is not None and not worker.is_late:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT):
                    answer = await worker.channel.ask(question, *arguments)
            except TimeoutError:
                worker.is_late = True
            except ChannelClosedError:
                pass
        if question in COUNTED and answer is not None:
            worker.counted[question] = answer
        return worker.counted.get(question) if answer is None else answer

    async def _keep(self, worker: _Worker) -> None:
        """Run a worker, and start it again when it has ended, until the crew stops."""
        pause = 0.0
        while not self._is_to_stop.is_set():
            started = time.monotonic()
            try:
                status = await self._run(worker)
                why = f"{worker} has ended {_described(status)}"
            except Exception as error:  # whatever it is, the worker must be started again
                why = f"worker {worker.number} cannot be started: {error!r}"
            self._note_end(worker)
            if self._is_to_stop.is_set():
                return
            if all(not one.is_ready and one.failures >= _MOST_FAILURES for one in self._workers):
                self.is_lost = True
                self._give_up()
            pause = 0.0 if time.monotonic() - started > _STABLE_AFTER else pause
            logger.error("%s: it is started again in %s", why, counted(pause, "second"))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_to_stop.wait()
            pause = min(max(2 * pause, _FIRST_PAUSE), _MAX_PAUSE)

    def _note_end(self, worker: _Worker) -> None:
        """Note that the process of a worker has ended."""
        was_ready, worker.is_ready, worker.has_monitors = worker.is_ready, False, False
        worker.failures = 0 if was_ready else worker.failures + 1
        ended = self._counted_by_ended
        for question, answer in worker.counted.items():
            earlier = [ended[question]] if question in ended else []
            ended[question] = COUNTED[question]([*earlier, answer])
        worker.counted.clear()
        if was_ready:
            self._broker.note_end(worker.identity)
        self._changed.set()
        self._tell_of_monitors()

    async def _run(self, worker: _Worker) -> int:
        """Run one process of a worker, and return its exit status. Raises OSError."""
        ours, its = socket.socketpair()
        files = [one.fileno() for bound in self._bound for one in bound.sockets]
        with its, ExitStack() as unless_started:
            unless_started.push(ours)
            # It imports from the same folders as this process, and no other.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            worker.process = await create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE, str(its.fileno()), env=environment,
                stdin=DEVNULL, pass_fds=(its.fileno(), *files), start_new_session=True,
            )  # fmt: skip
            unless_started.pop_all()
        if self._is_to_stop.is_set():
            worker.kill(signal.SIGTERM)  # it was told while the process was made
        channel = await Channel.over(ours, lambda what, arguments: self._answer(worker, what, arguments))
        worker.channel = channel
        watching = asyncio.create_task(self._watch(worker, channel))
        try:
            return await worker.process.wait()
        finally:
            watching.cancel()
            worker.channel = None
            channel.close()

    async def _watch(self, worker: _Worker, channel: Channel) -> None:
        """Kill a worker whose event loop stands still."""
        patience = _STARTS_WITHIN
        with suppress(ChannelClosedError):
            while True:
                try:
                    async with asyncio.timeout(patience):
                        await channel.check_alive()
                except TimeoutError:
                    silent = counted(patience, "second")
                    logger.error("%s does not answer for %s: killing it", worker, silent)
                    worker.kill(signal.SIGKILL)
                    return
                worker.is_late, patience = False, _HANGS_AFTER
                await asyncio.sleep(_CHECK_EVERY)

    async def _answer(self, worker: _Worker, what: str, arguments: tuple[Any, ...]) -> Any:
        if what == WORK:
            files = tuple((one.listen, tuple(each.fileno() for each in one.sockets)) for one in self._bound)
            return Assignment(worker.number, self._settings.processes, self._share, files)
        if what == READY:
            worker.is_ready, worker.identity = True, arguments[0]
            for number in worker.missed | self._lasting:
                worker.kill(number)
            worker.missed.clear()
            self._changed.set()
            self._tell_of_monitors()
        elif what == ASK_ALL:
            return await self.ask(*arguments)
        elif what == MONITORS:
            worker.has_monitors, lines = arguments
            self._tell_of_monitors(worker, lines)
        return None

    def _tell_of_monitors(self, sender: _Worker | None = None, lines: bytes = b"") -> None:
        """Tell each worker whether others have monitors, and show theirs the lines of the sender.

        Without a sender, this process has the lines.
        """
        self._clients.show_to_others(wanted=any(one.has_monitors for one in self._workers))
        for worker in self._workers:
            others = [one for one in self._workers if one is not worker and one.has_monitors]
            if worker.channel is None or (worker is sender and lines):
                continue
            if not lines or worker.has_monitors:
                worker.channel.tell(MONITORS, bool(others), lines)


def _described(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    known = {one.value: one.name for one in signal.Signals}
    return f"by {known.get(-status, f'signal {-status}')}"
