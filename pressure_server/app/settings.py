"""Settings: what can be set, as values that have been checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pressure_server.auth.access import AccessPolicy, read_password
from pressure_server.auth.tls import TlsFiles
from pressure_server.backend.address import Address
from pressure_server.backend.levels import Level
from pressure_server.backend.link import Patience
from pressure_server.net.handler import HandlerSettings
from pressure_server.net.listen import Listen, SettingsError
from pressure_server.queues.policy import Policy

EMBEDDED = "embedded:"
DEFAULT_LISTEN = ("resp://127.0.0.1:4000",)
LEAST_BUFFERED = 64 << 20
# Seconds: a backend that may drop keys leaves queues stuck, which have to be repaired.
_REPAIR_AFTER_EVICTION = 30.0


@dataclass(frozen=True)
class Store:
    """Where queues are kept: what every command must know that looks at them."""

    backend: str = field(repr=False)
    data_dir: Path
    prefix: str
    backend_password_file: Path | None

    def __post_init__(self) -> None:
        """Check what can be checked without opening anything. Raises SettingsError."""
        if not self.prefix:
            raise SettingsError("the prefix must not be empty: keys of queues would be told from no others")
        for name, text in (("prefix", self.prefix), ("data directory", str(self.data_dir))):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SettingsError(f"the {name} must be UTF-8") from error
        if self.backend != EMBEDDED:
            self.address()
        elif self.backend_password_file is not None:
            raise SettingsError("the embedded backend has no password: --backend-password-file is of no use")

    def address(self) -> Address:
        """The address of a backend that is not embedded. Raises SettingsError."""
        try:
            address = Address(self.backend)
            if self.backend_password_file is None:
                return address
            if address.password is not None:
                raise ValueError("its password is given twice, in the URL and in --backend-password-file")
            return Address(_with_password(self.backend, read_password(self.backend_password_file)))
        except ValueError as error:
            raise SettingsError(f"the backend cannot be used: {error}") from error


@dataclass(frozen=True)
class Settings(Store):
    """All settings of `pressure-server serve`; times in seconds, sizes in bytes."""

    listen: tuple[Listen, ...]
    default_bound: int
    auto_create: bool
    overflow: str
    put_timeout: float
    role_timeout: float
    implicit_queue_ttl: float
    auto_repair_after: float
    allow_eviction: bool
    backend_timeout: float
    backend_grace: float
    proxy_timeout: float
    durability: Level
    max_clients: int
    idle_timeout: float
    max_message_bytes: int
    drain_delay: float
    max_buffered_bytes: int
    max_waiting: int
    drain_timeout: float
    password: str | None = field(repr=False)
    password_file: Path | None
    users: Path | None
    protected_mode: bool
    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None

    def __post_init__(self) -> None:
        """Check what can be checked without opening anything of others. Raises SettingsError."""
        super().__post_init__()
        if self.password is not None and self.password_file is not None:
            raise SettingsError("the password is given twice, by --password and by --password-file")
        if self.tls_certificate is None:
            if secure := next((listen for listen in self.listen if listen.tls), None):
                raise SettingsError(f"{secure} needs --tls-certificate, and --tls-key")
            if self.tls_key is not None or self.tls_client_ca is not None:
                raise SettingsError("--tls-key and --tls-client-ca are of no use without --tls-certificate")

    @property
    def doors(self) -> AccessPolicy:
        """Who may come in."""
        tls = self.tls_certificate and TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)
        password = None if self.password is None else os.fsencode(self.password)
        return AccessPolicy(password, self.password_file, self.users, self.protected_mode, tls or None)

    @property
    def for_handlers(self) -> HandlerSettings:
        """What handlers need of them."""
        return HandlerSettings(
            self.prefix, self.max_message_bytes, self.idle_timeout, is_embedded=self.backend == EMBEDDED
        )

    @property
    def patience(self) -> Patience:
        """How long the backend may take."""
        return Patience(answer=self.backend_timeout, grace=self.backend_grace)

    @property
    def repair_after(self) -> float:
        """After how many seconds a queue that is stuck is repaired; 0 is never."""
        return self.auto_repair_after or (_REPAIR_AFTER_EVICTION if self.allow_eviction else 0.0)

    @property
    def policy(self) -> Policy:
        """What is done on every queue alike."""
        return Policy(
            create_bound=self.default_bound if self.auto_create else None,
            overflow=self.overflow,
            put_timeout=self.put_timeout or None,
            role_timeout=self.role_timeout,
            max_waiting=self.max_waiting,
        )

    def buffered_bytes(self, memory: int) -> int:
        """How much may be buffered for all clients, where there is so much memory."""
        return self.max_buffered_bytes or max(LEAST_BUFFERED, memory // 4)


def _with_password(url: str, password: bytes) -> str:
    """The backend's URL with the password in it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{host}"))


def backend_from_specification(environment: Mapping[str, str]) -> str | None:
    """The backend that pressure 0.15's variables name (Message Brokers); None where none is set.

    REDIS_SERVER, REDIS_PORT and REDIS_DB; any of them selects Redis, with the defaults for the others.
    Raises SettingsError.
    """
    names = ("REDIS_SERVER", "REDIS_PORT", "REDIS_DB")
    if not any(environment.get(name) for name in names):
        return None
    server = environment.get("REDIS_SERVER") or "127.0.0.1"
    numbers = {}
    for name, default, largest in (("REDIS_PORT", "6379", 65535), ("REDIS_DB", "0", 9999)):
        text = environment.get(name) or default
        if not text.isascii() or not text.isdigit() or int(text) > largest:
            raise SettingsError(f"{name}='{text}' must be a number from 0 to {largest}")
        numbers[name] = int(text)
    host = f"[{server}]" if ":" in server else server
    return f"redis://{host}:{numbers['REDIS_PORT']}/{numbers['REDIS_DB']}"
