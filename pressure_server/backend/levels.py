"""Durability levels: what the backend must have done with a change before the client gets its reply.

Pure: this module decides which command waits for a level, and whether a backend can provide the level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pressure_server.errors import BackendError

# The settings of a backend that syncs each change before it replies.
SYNCS_EACH_CHANGE = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}


class DurabilityUnavailableError(BackendError):
    """The backend cannot provide the level; the text says why."""


class ReplicasMissingError(DurabilityUnavailableError):
    """Too few replicas are connected at present."""


@dataclass(frozen=True)
class Level:
    """A durability level: `replicas` replicas must have a change, or with `fsync` the backend's disk.

    Level() is `none`.
    """

    replicas: int = 0
    fsync: bool = False

    def __str__(self) -> str:
        if self.fsync:
            return "fsync"
        return f"replica:{self.replicas}" if self.replicas else "none"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Return the level named `none`, `replica`, `replica:N` or `fsync`. Raises ValueError."""
        if text == "none":
            return cls()
        if text == "fsync":
            return cls(fsync=True)
        if found := re.fullmatch(r"replica(:0*([1-9][0-9]?|100))?", text):
            return cls(replicas=int(found[2] or 1))
        raise ValueError(f"'{text}' must be none, replica, replica:N (N from 1 to 100) or fsync")

    def wait_for(self, config: Mapping[bytes, bytes], *, replicas: int) -> tuple[bytes, ...] | None:
        """Return the command that waits for the level, without its timeout; None if a reply alone is proof.

        `config` has the backend's settings for its append-only file; it is empty if they are not revealed.
        `replicas` is the number of connected replicas. Raises DurabilityUnavailableError; if that is because
        of their number, ReplicasMissingError.
        """
        if self.replicas:
            if replicas < self.replicas:
                raise ReplicasMissingError(
                    f"durability {self} needs {self.replicas} connected replicas; the backend has {replicas}"
                )
            return (b"WAIT", b"%d" % self.replicas)
        if self.fsync:
            self._check_syncs(config)
        return None

    @staticmethod
    def _check_syncs(config: Mapping[bytes, bytes]) -> None:
        """Raise DurabilityUnavailableError unless the backend syncs each change before it replies.

        WAITAOF is no other way: with `appendfsync everysec`, Redis 7.4 and Valkey answer it before they sync
        (redis/redis#13793).
        """
        if not config:
            raise DurabilityUnavailableError(
                "durability fsync needs `appendfsync always` in the backend, which refuses CONFIG GET, so "
                "its settings are unknown"
            )
        for setting, value in SYNCS_EACH_CHANGE.items():
            if config.get(setting) != value:
                found = config.get(setting, b"").decode()
                raise DurabilityUnavailableError(
                    f"durability fsync needs `{setting.decode()} {value.decode()}` in the backend, which has "
                    f"`{found}`"
                )
