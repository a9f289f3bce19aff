"""The embedded backend: a private Valkey in the server's data directory, which stops with the server.

It listens only on a unix socket in that directory, and writes an append-only file. It runs in a session of
its own: Ctrl-C in a terminal reaches only the server, which drains before it stops Valkey.

With `appendfsync always`, Valkey exits if it cannot write its append-only file, so each change would end it
again. After Valkey has ended by itself, it therefore runs with `everysec` at first: it refuses changes while
it cannot write, and still answers reads. In that time, durability holds the answers to changes.
"""

import asyncio
import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import IO, Any

from redis.exceptions import RedisError

from pressure_server.backend.address import Address
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.reconnecting import until_open
from pressure_server.backend.valkey_program import program
from pressure_server.errors import BackendError
from pressure_server.text import reason_of

logger = logging.getLogger(__name__)

# Seconds between log lines while Valkey loads its data: about a million messages a second. Also the longest
# wait for a reply.
_SAY_EVERY = 5.0
_STOP_TIMEOUT = 60.0
# Seconds before a restart: none before the first, then doubled until Valkey has run for _STABLE_AFTER.
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0
_STABLE_AFTER = 30.0
# Seconds between checks of a Valkey that runs with `everysec` for now, and how many in a row must succeed
# before it gets `always` again.
_CHECK_EVERY = 1.0
_HEALTHY_CHECKS = 3
# Seconds between looks at the size of Valkey's log.
_LIMIT_LOG_EVERY = 3600.0
# A line of Valkey's log: process, role, time and text.
_LOG_LINE = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [-.*#] (.*\S)", re.MULTILINE)
# What Valkey's log says if it cannot read its files. The tool that the log suggests cannot read the manifest.
_UNREADABLE = re.compile(r"append.only|\bAOF\b|\bRDB\b", re.IGNORECASE)
# The end of the log says why Valkey ended: how many lines are quoted, and how many bytes are searched.
_LAST_LINES = 2
_LAST_BYTES = 4096


class Embedded:
    """The Valkey of one data directory. Raises DataError if its socket's path is too long."""

    def __init__(self, data_dir: Path, *, fsync: bool = False) -> None:
        """Prepare, but do not start. With `fsync`, Valkey syncs each change before it answers."""
        self._fsync = self._syncs_always = fsync
        self.data = DataDirectory(data_dir)
        self._lock: IO[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        # Since Valkey last ran for _STABLE_AFTER: the pause before the next start, and the problems logged.
        self._pause = 0.0
        self._said: set[str] = set()

    async def start(self) -> None:
        """Start Valkey on the data directory, and return when it answers. Raises BackendError."""
        self._lock = self.data.lock()
        self.data.warn_if_open_to_others()
        if self.data.has_unfinished_restore():
            raise BackendError(
                f"a restore into {self.data.path} was interrupted: run pressure-server restore again, or "
                f"delete {self.data.restoring} to start without the restored data"
            )
        await self._stop_orphan()
        if self.data.is_running():
            # Two would corrupt the data. _stop_orphan misses a Valkey without a pid file (the disk was full).
            raise BackendError(f"another Valkey is running on {self.data.socket}: stop it")
        await self._launch()
        self._watching = asyncio.create_task(self._watch())

    def _is_ours(self, pid: int) -> bool:
        """Return whether the process is a Valkey on this socket: another process may have its pid by now."""
        if not Path("/proc/self").exists():
            return self.data.is_running()
        try:
            return os.fsencode(self.data.socket) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended, or is another user's, and hidden (ProtectProc= of systemd)
            return False

    async def _stop_orphan(self) -> None:
        """Stop the Valkey of a server that was killed. Its append-only file has all acknowledged changes."""
        try:
            pid = int(self.data.pid_file.read_text())
        except (OSError, ValueError):
            return
        if _has_ended(pid) or not self._is_ours(pid):
            return
        logger.warning("stopping a Valkey (process %d) that an earlier server has left running", pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_TIMEOUT):
                    while not _has_ended(pid):  # noqa: ASYNC110 -- no event tells that
                        await asyncio.sleep(0.05)
            except TimeoutError:
                logger.error("Valkey does not stop: killing it")
                os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.05)

    async def _launch(self) -> None:
        options = {
            "port": "0",
            "unixsocket": str(self.data.socket),
            "unixsocketperm": "700",
            "dir": str(self.data.path),
            "pidfile": str(self.data.pid_file),
            "logfile": str(self.data.log),
            "appendonly": "yes",
            "appendfsync": "always" if self._syncs_always else "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            # The middle of long queues is compressed: docs/performance.md has what that saves and costs.
            "list-compress-depth": "16",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        try:
            self.data.socket.unlink(missing_ok=True)
            self._process = await asyncio.create_subprocess_exec(
                program(),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                # Messages are nobody else's business, whatever the mode of the directory.
                preexec_fn=partial(os.umask, 0o077),
            )
        except OSError as error:  # a lack of memory, processes or files, which may pass
            raise BackendError(f"Valkey cannot be started: {reason_of(error)}") from error
        except subprocess.SubprocessError as error:
            raise BackendError(f"Valkey cannot be started: {error}") from error
        say_at = time.monotonic() + _SAY_EVERY
        async with Address(self.data.url).client(0) as client:
            while self._process.returncode is None:
                with contextlib.suppress(RedisError, TimeoutError):
                    async with asyncio.timeout(_SAY_EVERY):
                        await client.ping()
                        return
                await asyncio.sleep(0.02)
                if time.monotonic() >= say_at:
                    say_at += _SAY_EVERY
                    logger.info("Valkey is still loading its data")
        self._syncs_always = False  # the next start is careful, in case the disk is full
        if full := await self._why_not_writable():
            raise BackendError(f"Valkey did not start: {full}: free space on that disk")
        why = self._last_words()
        if _UNREADABLE.search(why):
            folder = shlex.quote(str(self.data.path))
            why += (
                f". To check it, run: pressure-server check-data --data-dir {folder}; "
                "the page Backup of the documentation says what a repair loses"
            )
        raise BackendError(f"Valkey did not start: {why}")

    async def _why_not_writable(self) -> str:
        """Return why the disk cannot be written; '' if it can."""
        try:
            return await asyncio.to_thread(self.data.why_not_writable)
        except RuntimeError:  # no thread can be started: hold up the event loop for this once
            return self.data.why_not_writable()

    def _last_words(self) -> str:
        try:
            with self.data.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = _LOG_LINE.findall(log.read().decode(errors="replace"))
        except OSError:
            lines = []
        return "; ".join(lines[-_LAST_LINES:]) or f"no reason found in {self.data.log}"

    async def _watch(self) -> None:
        """Restart Valkey when it ends unexpectedly: killed for lack of memory, say, or unable to write."""
        while self._process is not None:
            started = time.monotonic()
            status = await self._end_of(self._process)
            if time.monotonic() - started > _STABLE_AFTER:
                self._pause = 0.0
                self._said.clear()
            # If it ended by itself, its disk may be full: Valkey would end again at the first sync.
            self._syncs_always = self._fsync and status < 0
            # The log is incomplete if the disk is full, and has nothing about a signal.
            why = await self._why_not_writable() or (
                self._last_words() if status > 0 else f"see {self.data.log}"
            )
            await asyncio.sleep(self._say(BackendError(f"Valkey ended with status {status} ({why})")))
            await until_open(self._launch, self._say)

    def _say(self, problem: BackendError) -> float:
        """Log a problem, unless the log has it. Return the seconds to pause before the next start."""
        if str(problem) not in self._said:
            self._said.add(str(problem))
            logger.error("%s; starting it again", problem)
        pause, self._pause = self._pause, min(max(2 * self._pause, _FIRST_PAUSE), _MAX_PAUSE)
        return pause

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Wait until Valkey ends, and return its status. Set `always` again when the disk can be written."""
        good_looks = 0
        while True:
            is_careful = self._fsync and not self._syncs_always
            self.data.limit_log()
            try:
                async with asyncio.timeout(_CHECK_EVERY if is_careful else _LIMIT_LOG_EVERY):
                    return await process.wait()
            except TimeoutError:
                good_looks = good_looks + 1 if is_careful and await self._is_healthy() else 0
            if good_looks >= _HEALTHY_CHECKS and await self._ask("CONFIG", "SET", "appendfsync", "always"):
                self._syncs_always = True
                logger.info("Valkey syncs each write again")

    async def _is_healthy(self) -> bool:
        """Return whether Valkey's last write has succeeded, and the disk has space."""
        if await self._why_not_writable():
            return False
        state = await self._ask("INFO", "persistence")
        return state is not None and state.get("aof_last_write_status") == "ok"

    async def _ask(self, *command: str) -> Any:
        """Return the reply of Valkey; None if there is none."""
        try:
            # Any: redis-py's commands have no types.
            client: Any
            async with asyncio.timeout(_SAY_EVERY), Address(self.data.url).client(0) as client:
                return await client.execute_command(*command)
        except (RedisError, TimeoutError) as error:
            logger.debug("no reply of Valkey to %s: %s", command[0], error)
            return None

    async def stop(self) -> None:
        """Stop Valkey, which writes all data to disk first; kill it after _STOP_TIMEOUT seconds."""
        if self._watching is not None:
            self._watching.cancel()
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_TIMEOUT):
                    await process.wait()
            except TimeoutError:
                logger.error("Valkey does not stop: killing it")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._lock is not None:
            self._lock.close()


def _has_ended(pid: int) -> bool:
    """Return whether the process has ended, perhaps as a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:
        return False
