"""The store of queues: its settings, and access for commands that run beside a server, or without one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pressure_server.auth.access_policy import read_password
from pressure_server.backend.address import Address
from pressure_server.backend.addresses import BackendAddress, address_of
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.link import Timeouts
from pressure_server.keepalive import DEFAULT, Keepalive
from pressure_server.net.listener import SettingsError
from pressure_server.queues.broker import Broker
from pressure_server.queues.policy import Policy

EMBEDDED = "embedded:"
# Seconds to remove this process's call records from the backend.
_SETTLE_TIMEOUT = 2.0


@dataclass(frozen=True)
class Store:
    """The location of the queues: the settings of every command that accesses them."""

    backend: str = field(repr=False)
    data_dir: Path
    prefix: str
    shards: int
    backend_password_file: Path | None

    def __post_init__(self) -> None:
        """Check the values, without connecting to the backend. Raise SettingsError."""
        if not self.prefix:
            raise SettingsError("the prefix must not be empty: it tells keys of queues from other keys")
        for name, text in (("prefix", self.prefix), ("data directory", str(self.data_dir))):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SettingsError(f"the {name} must be UTF-8") from error
        if self.backend != EMBEDDED:
            self.address()
        elif self.backend_password_file is not None:
            raise SettingsError("the embedded backend has no password: remove --backend-password-file")

    @property
    def keepalive(self) -> Keepalive:
        """The keepalive of connections."""
        return DEFAULT

    def address(self) -> BackendAddress:
        """Return the address of a backend that is not embedded. Raise SettingsError."""
        try:
            address = address_of(self.backend, self.keepalive)
            if self.backend_password_file is None:
                return address
            if address.password is not None:
                raise ValueError("its password is given twice, in its URL and by --backend-password-file")
            return address_of(
                _with_password(self.backend, read_password(self.backend_password_file)), self.keepalive
            )
        except ValueError as error:
            raise SettingsError(f"the backend cannot be used: {error}") from error


@contextlib.asynccontextmanager
async def open_store(store: Store) -> AsyncIterator[Broker]:
    """Yield a broker that changes nothing by itself. Raise SettingsError or BackendError.

    If no server runs the embedded backend, start it for that time.
    """
    async with _backend(store) as address:
        broker = Broker(
            address, prefix=store.prefix, shards=store.shards, policy=Policy(), timeouts=Timeouts(grace=0)
        )
        try:
            await broker.start(to_look=True)
            yield broker
        finally:
            await broker.settle(_SETTLE_TIMEOUT)
            await broker.close()


@contextlib.asynccontextmanager
async def _backend(store: Store) -> AsyncIterator[BackendAddress]:
    """Yield the backend's address."""
    if store.backend != EMBEDDED:
        yield store.address()
        return
    if not store.data_dir.is_dir():
        raise SettingsError(
            f"there is no data directory {store.data_dir.absolute()}: set --data-dir or --backend as for the "
            "server (its unit of systemd sets /var/lib/pressure-server)"
        )
    embedded = Embedded(store.data_dir)
    if embedded.is_running():
        yield Address(embedded.url)
        return
    try:
        await embedded.start()
        yield Address(embedded.url)
    finally:
        await embedded.stop()


def _with_password(url: str, password: bytes) -> str:
    """Return the backend's URL with the password added."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{host}"))
