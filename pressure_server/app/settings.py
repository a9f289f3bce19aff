"""The settings of the server, as checked values, and what they mean for its parts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pressure_server.app.process import processors
from pressure_server.app.store import EMBEDDED, Store
from pressure_server.auth.access_policy import AccessPolicy, TlsFiles
from pressure_server.backend.levels import Level
from pressure_server.backend.link import Timeouts
from pressure_server.keepalive import Keepalive
from pressure_server.net.handler import HandlerSettings
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.queues.policy import Policy
from pressure_server.web.http_settings import HttpSettings

DEFAULT_LISTEN = ("resp://127.0.0.1:4000",)
MIN_BUFFERED_BYTES = 64 << 20
# Seconds. The default of --auto-repair-after with --allow-eviction, because eviction leaves queues stuck.
_REPAIR_AFTER_EVICTION = 30.0
# What errors say of the page that they name.
_NO_DOCUMENTATION_URL = "in the documentation of pressure-server"


@dataclass(frozen=True)
class Settings(Store):
    """All settings of `pressure-server serve`; times in seconds, sizes in bytes."""

    listen: tuple[ListenerUrl, ...]
    http: ListenerUrl | None
    workers: int
    metrics_queues: int
    metrics_match: str
    default_bound: int
    auto_create: bool
    overflow: str
    put_timeout: float
    role_timeout: float
    implicit_queue_ttl: float
    outcome_ttl: float
    max_outcomes: int
    default_max_bytes: int
    auto_repair_after: float
    allow_eviction: bool
    backend_timeout: float
    backend_grace: float | None
    proxy_timeout: float
    durability: Level
    max_clients: int
    idle_timeout: float
    tcp_keepalive: float
    max_message_bytes: int
    drain_delay: float
    max_buffered_bytes: int
    max_waiting: int
    max_queues: int
    max_stored_bytes: int
    drain_timeout: float
    slowlog_slower_than: float
    slowlog_max_len: int
    password: str | None = field(repr=False)
    password_file: Path | None
    users: Path | None
    protected_mode: bool
    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    documentation_url: str | None
    log_level: str
    log_format: str

    def __post_init__(self) -> None:
        """Check that the values can be used together. Raise SettingsError."""
        super().__post_init__()
        if not self.workers:
            object.__setattr__(self, "workers", processors())
        if self.password is not None and self.password_file is not None:
            raise SettingsError("the password is given twice, by --password and by --password-file")
        if self.tls_certificate is None:
            if secure := next(
                (listen for listen in (*self.listen, self.http) if listen and listen.tls), None
            ):
                raise SettingsError(
                    f"{secure} needs --tls-certificate, and --tls-key for a separate key file"
                )
            if self.tls_key is not None or self.tls_client_ca is not None:
                raise SettingsError("--tls-key and --tls-client-ca have no effect without --tls-certificate")

    @property
    def access_policy(self) -> AccessPolicy:
        """The access policy: passwords, users, protected mode and TLS."""
        tls = self.tls_certificate and TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)
        password = None if self.password is None else os.fsencode(self.password)
        return AccessPolicy(password, self.password_file, self.users, self.protected_mode, tls or None)

    @property
    def keepalive(self) -> Keepalive:
        """The keepalive of all connections, to clients and to the backend."""
        return Keepalive(self.tcp_keepalive)

    @property
    def handler_settings(self) -> HandlerSettings:
        """The settings that handlers need."""
        return HandlerSettings(
            self.prefix,
            self.max_message_bytes,
            self.idle_timeout,
            self.tcp_keepalive,
            is_embedded=self.backend == EMBEDDED,
            documentation=(
                f"at {self.documentation_url}" if self.documentation_url else _NO_DOCUMENTATION_URL
            ),
        )

    @property
    def http_settings(self) -> HttpSettings | None:
        """The settings of the HTTP listener, if there is one."""
        if self.http is None:
            return None
        return HttpSettings(self.http, self.metrics_queues, self.metrics_match, self.keepalive)

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the backend."""
        return Timeouts(answer=self.backend_timeout, grace=self.backend_grace)

    @property
    def repair_after(self) -> float:
        """How many seconds a queue must be stuck before it is repaired; 0 means never."""
        return self.auto_repair_after or (_REPAIR_AFTER_EVICTION if self.allow_eviction else 0.0)

    @property
    def policy(self) -> Policy:
        """The policy that applies to all queues."""
        return Policy(
            create_bound=self.default_bound if self.auto_create else None,
            overflow=self.overflow,
            put_timeout=self.put_timeout or None,
            role_timeout=self.role_timeout,
            max_waiting=self.max_waiting,
            outcome_ttl=self.outcome_ttl,
            max_outcomes=self.max_outcomes,
            max_bytes=self.default_max_bytes,
            max_queues=self.max_queues,
            max_stored_bytes=self.max_stored_bytes,
        )

    def buffered_bytes(self, memory: int) -> int:
        """Return the memory budget in bytes for all clients, on a machine with `memory` bytes."""
        return self.max_buffered_bytes or max(MIN_BUFFERED_BYTES, memory // 4)
