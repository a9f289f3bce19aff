"""Levels of durability: what a backend must have done with a change before its client is answered.

Pure: what is asked of the backend for a level, and whether it can do it at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pressure_server.errors import BackendError


class CannotBeDurableError(BackendError):
    """The backend cannot give what the level asks for; the text says why."""


@dataclass(frozen=True)
class Level:
    """`replicas` have the change, or with `fsync` the backend's disk has; Level() is neither."""

    replicas: int = 0
    fsync: bool = False

    def __str__(self) -> str:
        if self.fsync:
            return "fsync"
        return f"replica:{self.replicas}" if self.replicas else "none"

    @classmethod
    def parse(cls, text: str) -> Level:
        """`none`, `replica`, `replica:N` or `fsync`. Raises ValueError."""
        word, colon, number = text.partition(":")
        if text == "none":
            return cls()
        if text == "fsync":
            return cls(fsync=True)
        if word == "replica" and (not colon or (number.isascii() and number.isdigit())):
            replicas = int(number) if colon else 1
            if 1 <= replicas <= 100:
                return cls(replicas=replicas)
        raise ValueError(f"'{text}' must be none, replica, replica:N (N from 1 to 100) or fsync")

    def wait_for(
        self, config: Mapping[str, str] | None, *, has_waitaof: bool, replicas: int
    ) -> tuple[bytes, ...] | None:
        """The command that waits for it, without its timeout; None where a reply is proof by itself.

        `config` has the backend's settings of its append-only file, None where it does not tell; `replicas`
        is how many are connected. Raises CannotBeDurableError.
        """
        if self.replicas:
            if replicas < self.replicas:
                raise CannotBeDurableError(
                    f"durability {self} needs {self.replicas} connected replicas; the backend has {replicas}"
                )
            return (b"WAIT", b"%d" % self.replicas)
        if not self.fsync:
            return None
        if config is not None and config.get("appendonly") != "yes":
            raise CannotBeDurableError(
                "durability fsync needs an append-only file: set `appendonly yes` in the backend"
            )
        if config is not None and config.get("appendfsync") == "no":
            raise CannotBeDurableError(
                "durability fsync needs `appendfsync always` or `everysec` in the backend, which has `no`"
            )
        # Redis answers after its fsync, where it does one for every write.
        if (
            config is not None
            and config.get("appendfsync") == "always"
            and config.get("no-appendfsync-on-rewrite") != "yes"
        ):
            return None
        if has_waitaof:
            return (b"WAITAOF", b"1", b"0")
        raise CannotBeDurableError(
            "durability fsync needs `appendfsync always` and `no-appendfsync-on-rewrite no` in the backend, "
            "or Redis 7.2 or Valkey, which have WAITAOF"
            + ("" if config is not None else "; CONFIG GET, which would tell, is refused")
        )
