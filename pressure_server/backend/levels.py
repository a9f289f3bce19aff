"""Durability levels: what the backend must have done with a change before the client gets its reply.

Pure: this module decides which command waits for a level, and whether a backend can provide the level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pressure_server.errors import BackendError


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

    def wait_for(
        self, config: Mapping[bytes, bytes], *, has_waitaof: bool, replicas: int
    ) -> tuple[bytes, ...] | None:
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
        if not self.fsync:
            return None
        if config and config.get(b"appendonly") != b"yes":
            raise DurabilityUnavailableError(
                "durability fsync needs an append-only file: set `appendonly yes` in the backend"
            )
        syncs = config.get(b"appendfsync")
        if syncs == b"no":
            raise DurabilityUnavailableError(
                "durability fsync needs `appendfsync always` or `everysec` in the backend, which has `no`"
            )
        # With `always`, the backend replies after its fsync.
        if syncs == b"always" and config.get(b"no-appendfsync-on-rewrite") != b"yes":
            return None
        if has_waitaof:
            return (b"WAITAOF", b"1", b"0")
        raise DurabilityUnavailableError(
            "durability fsync needs `appendfsync always` and `no-appendfsync-on-rewrite no` in the backend, "
            "or Redis 7.2 or Valkey, which have WAITAOF"
            + ("" if config else "; the backend refuses CONFIG GET, so its settings are unknown")
        )
