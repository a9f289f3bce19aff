"""The store of queues: its settings, and access for commands that run beside a server, or without one."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import click
from click.core import ParameterSource

from pressure_server.app.option_types import FILE, Integer, setting
from pressure_server.auth.access_policy import read_password
from pressure_server.backend.address import Address, BackendAddress, address_of
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.embedded import Embedded
from pressure_server.backend.link import Timeouts
from pressure_server.keepalive import DEFAULT, Keepalive
from pressure_server.net.listener import SettingsError
from pressure_server.queues.broker import Broker
from pressure_server.queues.placement import MOST_SHARDS
from pressure_server.queues.policy import Policy

EMBEDDED = "embedded:"
# Seconds to remove this process's call records from the backend.
_SETTLE_TIMEOUT = 2.0


def _backend(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Use REDIS_SERVER, REDIS_PORT and REDIS_DB if neither --backend nor PRESSURE_BACKEND is given."""
    if ctx.get_parameter_source("backend") not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        return value
    return backend_from_redis_variables(os.environ) or value


def backend_from_redis_variables(environment: Mapping[str, str]) -> str | None:
    """Return the URL of the backend that the variables of pressure 0.15 (Message Brokers) select.

    Any of REDIS_SERVER, REDIS_PORT and REDIS_DB selects Redis; the others have defaults. Return None if none
    of them is set. Raise SettingsError if a number is invalid.
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


@dataclass(frozen=True, repr=False)
class Store:
    """The location of the queues: the settings of every command that accesses them."""

    backend: str = setting(default=EMBEDDED, metavar="URL", callback=_backend)
    """The Redis or Valkey that stores the queues: redis://HOST:PORT/DATABASE, rediss:// for TLS,
    unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DATABASE, redis+cluster://HOST:PORT,HOST:PORT,
    or embedded: to run a Valkey inside this server. If neither this option nor its variable is set,
    REDIS_SERVER, REDIS_PORT and REDIS_DB select a Redis."""
    backend_password_file: Path | None = setting(type=FILE)
    """A file with the backend's password on one line, instead of a password in the --backend URL."""
    data_dir: Path = setting(default=Path("pressure-data"), type=FILE)
    """The directory in which the embedded backend stores its data."""
    prefix: str = setting(default="__pressure__")
    """The prefix of all keys in the backend. Servers and native clients that share queues must use the same
    prefix."""
    shards: int = setting(default=16, type=Integer(1, MOST_SHARDS))
    """On a cluster: into how many shards the queues are divided. It cannot be changed later. A node serves
    its part of them, so have several for each."""

    # The configuration file, for the settings of queues by name: they are read again while the server runs.
    config: Path | None = field(default=None, compare=False, kw_only=True)

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

    def address(self, keepalive: Keepalive = DEFAULT) -> BackendAddress:
        """Return the backend's address. Raise SettingsError."""
        if self.backend == EMBEDDED:
            return Address(DataDirectory(self.data_dir).url)
        try:
            address = address_of(self.backend, keepalive)
            if self.backend_password_file is None:
                return address
            if address.password is not None:
                raise ValueError("its password is given twice, in its URL and by --backend-password-file")
            url = _with_password(self.backend, read_password(self.backend_password_file))
            return address_of(url, keepalive)
        except ValueError as error:
            raise SettingsError(f"the backend cannot be used: {error}") from error


@contextlib.asynccontextmanager
async def open_store(store: Store) -> AsyncIterator[Broker]:
    """Yield a broker that changes nothing by itself. Raise SettingsError or BackendError.

    If no server runs the embedded backend, start it for that time.
    """
    async with contextlib.AsyncExitStack() as stack:
        if store.backend == EMBEDDED:
            if not store.data_dir.is_dir():
                raise SettingsError(
                    f"there is no data directory {store.data_dir.absolute()}: set --data-dir or --backend as "
                    "for the server (its unit of systemd sets /var/lib/pressure-server)"
                )
            embedded = Embedded(store.data_dir)
            if not embedded.data.is_running():
                stack.push_async_callback(embedded.stop)
                await embedded.start()
        broker = Broker(
            store.address(),
            prefix=store.prefix,
            shards=store.shards,
            policy=Policy(),
            timeouts=Timeouts(grace=0),
        )
        stack.push_async_callback(broker.close)
        stack.push_async_callback(broker.settle, _SETTLE_TIMEOUT)
        await broker.start(to_look=True)
        yield broker


def _with_password(url: str, password: bytes) -> str:
    """Return the backend's URL with the password added."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.rstrip(':')}:{quote(password, safe='')}@{host}"))
