"""The data directory of an embedded backend: its files, and the lock that gives it to one process."""

import errno
import fcntl
import logging
import os
import socket
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

from pressure_server.errors import BackendError
from pressure_server.text import reason_of

logger = logging.getLogger(__name__)

# The longest path of a unix socket on Linux, with its terminating zero byte.
_SOCKET_PATH = 108
# Bytes that must fit on the disk, so that it counts as writable.
_ROOM = 1 << 20
# Bytes of Valkey's log after which a new one begins. Each rewrite of the append-only file adds a thousand.
_LONGEST_LOG = 10 << 20
# Other errors, such as a lack of permission, do not show that no Valkey is running.
_NOBODY_LISTENS = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)
# By the number of an error: what to do.
_REMEDIES = {
    errno.ELOOP: "delete its server.lock, which must not be a link",
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space within the quota of its owner",
    errno.EROFS: "set --data-dir to a directory on a disk that can be written",
    errno.EACCES: "let the user of this process write there, or set --data-dir",
    errno.EPERM: "let the user of this process write there, or set --data-dir",
}


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read. Raise OSError if it is a link: it may lead anywhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class DataError(BackendError):
    """A data directory, or a backup of one, cannot be used."""


class DataDirectory:
    """A data directory, which need not exist. Raises DataError if the socket's path is too long."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.socket = self.path / "valkey.sock"
        self.pid_file = self.path / "valkey.pid"
        self.log = self.path / "valkey.log"
        self.former_log = self.path / "valkey.log.1"
        self.append_only = self.path / "appendonlydir"
        # A restore unpacks a backup here, and then renames the parts.
        self.restoring = self.path / "restoring"
        if len(os.fsencode(self.socket)) >= _SOCKET_PATH:
            raise DataError(
                f"the data directory's path is too long: {self.socket} must be shorter than "
                f"{_SOCKET_PATH} bytes"
            )

    @property
    def url(self) -> str:
        """The URL of the Valkey."""
        return f"unix://{quote(str(self.socket))}"

    def is_running(self) -> bool:
        """Return whether a Valkey listens on the socket, whichever process has started it."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) not in _NOBODY_LISTENS

    def lock(self) -> IO[str]:
        """Create the directory if necessary, and lock it until the returned file is closed.

        Raise DataError if another process has locked it, or if it cannot be used.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as on_error:
                lock = open(self.path / "server.lock", "a+", encoding="utf-8", opener=_open_private)  # noqa: SIM115 -- closing releases the lock
                on_error.enter_context(lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.seek(0)
                    owner = lock.read().strip() or "another process"
                    raise DataError(f"the data directory {self.path} is in use by {owner}") from None
                if os.geteuid() == 0:
                    # A command of root makes the file, and the server runs as the owner of the directory.
                    folder = self.path.stat()
                    with suppress(OSError):  # root in a container may not be permitted to
                        os.fchown(lock.fileno(), folder.st_uid, folder.st_gid)
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), b"pressure-server, process %d\n" % os.getpid())
                on_error.pop_all()
                return lock
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0)
            why = reason_of(error) + (f"; {remedy}" if remedy else "")
            raise DataError(f"cannot use the data directory {self.path}: {why}") from error

    def why_not_writable(self) -> str:
        """Write a file of _ROOM bytes, and delete it. Return why that fails; '' if it does not."""
        probe = self.path / "probe"
        try:
            probe.unlink(missing_ok=True)
            with open(probe, "xb", opener=_open_private) as file:
                file.write(bytes(_ROOM))
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        finally:
            with suppress(OSError):
                probe.unlink()
        return ""

    def limit_log(self) -> None:
        """Keep a long log aside, in place of the one kept before. Valkey opens its log for each line."""
        with suppress(OSError):
            if self.log.stat().st_size >= _LONGEST_LOG:
                self.log.replace(self.former_log)

    def warn_if_open_to_others(self) -> None:
        """Warn if the directory's mode lets users in who are neither its owner nor in its group."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & stat.S_IRWXO:
            logger.warning(
                "the data directory %s is open to all users (mode %o): chmod 700 it", self.path, mode
            )

    def give_to_owner(self) -> None:
        """As root, give all files to the owner of the directory: the server may run as another user."""
        if os.geteuid() != 0:
            return
        owner = self.path.stat()
        for _, folders, files, descriptor in os.fwalk(self.path):
            for name in (*folders, *files):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=descriptor, follow_symlinks=False)

    def keep_aside(self, occasion: str) -> Path:
        """Make a folder in the directory for its former data, named after the occasion and the time."""
        path = self.path / f"before-{occasion}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        path.mkdir(mode=0o700)
        return path

    def has_data(self) -> bool:
        """Return whether there are files of Valkey's data."""
        return self.append_only.is_dir() and any(self.append_only.iterdir())

    def has_unfinished_restore(self) -> bool:
        """Return whether a restore was killed before its data was in place: the directory looks empty."""
        return self.restoring.exists() and not self.append_only.exists()
