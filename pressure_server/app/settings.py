"""The settings of the server: the options of `serve`, and their meaning. Store has those for the backend."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from pressure_server.app.log_output import FORMATS, LEVELS
from pressure_server.app.option_types import (
    FILE,
    Bytes,
    DurabilityType,
    Integer,
    checked,
    setting,
    time_setting,
)
from pressure_server.app.process import memory_limit, processors
from pressure_server.app.queue_sections import read_templates
from pressure_server.app.store import EMBEDDED, Store
from pressure_server.auth.access_policy import AccessPolicy, TlsFiles
from pressure_server.backend.durability import Level
from pressure_server.keepalive import DEFAULT_SECONDS, MAX_SECONDS, Keepalive
from pressure_server.net.handler import HandlerSettings, find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.queues.policy import BLOCK, ERROR, Policy
from pressure_server.web.http_settings import check_http

_MIN_BUFFERED_BYTES = 64 << 20
# Seconds. The default of --auto-repair-after with --allow-eviction, because eviction leaves queues stuck.
_REPAIR_AFTER_EVICTION = 30.0


def _listeners(urls: tuple[str, ...]) -> tuple[ListenerUrl, ...]:
    """Parse listener URLs, and check each with its handler."""
    listeners = tuple(map(ListenerUrl.parse, urls))
    for listen in listeners:
        find_handler(listen.handler).check(listen)
    return listeners


def _http(url: str | None) -> ListenerUrl | None:
    """Parse the URL of the HTTP listener."""
    if not url:
        return None
    listen = ListenerUrl.parse(url)
    check_http(listen)
    return listen


def _documentation_url(url: str | None) -> str | None:
    """Check the address: error replies and log lines have it."""
    if url and not re.fullmatch(r"https?://[!-~]+", url):
        raise SettingsError("write https://HOST/PATH, without spaces")
    return url


@dataclass(frozen=True, repr=False)
class ListenerSettings:
    """The options of listeners. The help lists them before the options of Store."""

    listen: tuple[ListenerUrl, ...] = setting(
        multiple=True, default=("resp://127.0.0.1:4000",), metavar="URL", callback=checked(_listeners)
    )
    """The address to listen on, and its protocol: resp://HOST:PORT, memcached://HOST:PORT or
    beanstalk://HOST:PORT, with an s for TLS (resps://), or resp+unix:///PATH for a Unix socket. Repeat the
    option for more listeners; in the variable, separate URLs by spaces. Port 0 chooses a free port. A name
    stands for all its addresses; 0.0.0.0 stands for all IPv4 addresses of the machine, and [::] for all of
    IPv4 and IPv6. Options of a listener are at its end: memcached://…?mode=kv,
    beanstalk://…?max_job_size=65535."""
    http: ListenerUrl | None = setting(metavar="URL", callback=checked(_http))
    """The address of the HTTP listener with health checks, metrics and the console: http://HOST:PORT,
    https://HOST:PORT, or http+unix:///PATH. Without it there is none. Options at its end: ?host=NAME allows a
    name under which a server without passwords may be called."""
    documentation_url: str | None = setting(metavar="URL", callback=checked(_documentation_url))
    """Where the developers of your applications find this documentation. Errors that refuse a command name
    the page that helps, and this address."""
    workers: int = setting(default=1, type=Integer(0, 128))
    """The number of processes that serve clients; 0 means one for each processor. They share the listeners,
    and the limits on clients, waiting operations and buffers. Several pay off when one processor is busy."""
    metrics_queues: int = setting(default=100, type=Integer(0))
    """The most queues with metrics of their own. Sums over all queues are always there."""
    metrics_match: str = setting(default="*", metavar="PATTERN")
    """A pattern of the names of queues with metrics of their own, as for KEYS."""


@dataclass(frozen=True, repr=False)
class Settings(Store, ListenerSettings):
    """All settings of `pressure-server serve`; times in seconds, sizes in bytes.

    Its fields are the options, in the order of the help. `repr` is off because of the passwords.
    """

    default_bound: int = setting(default=0, type=Integer(0, 2**53), group="Queues")
    """The bound of queues that a put creates: the most messages such a queue holds. 0: unbounded."""
    default_max_bytes: int = setting(default=0, type=Bytes(0, 2**53))
    """The most bytes of messages of a queue that is created without MAX-BYTES. A queue that has reached it is
    full. 0: any number."""
    auto_create: bool = setting(default=True)
    """Whether a put creates its queue if the queue does not exist. If off, such a put fails with -NOQUEUE."""
    overflow: str = setting(default=BLOCK, type=click.Choice([BLOCK, ERROR]))
    """What a put on a full queue does: wait for room (block), or fail with -FULL (error). A queue can
    override this when it is created."""
    put_timeout: float = time_setting(0.0)
    """How long a put waits for room in a full queue before it fails with -FULL. 0: no limit. Set a time
    shorter than the read timeout of the clients, so that they receive the error."""
    role_timeout: float = time_setting(Policy.role_timeout)
    """How long an operation waits if a native client, which uses the backend directly, holds the producer or
    consumer role of the queue. After that it fails with -INUSE. 0: fail at once. A get on an empty queue
    waits for its own timeout instead."""
    implicit_queue_ttl: float = time_setting(3600.0)
    """How long a queue that a put created may be empty and unused before the server deletes it. 0: never
    delete."""
    outcome_ttl: float = time_setting(Policy.outcome_ttl, least=1)
    """How long a queue remembers the outcome of a put with a transaction id. Within this time, the same id
    puts nothing again."""
    max_outcomes: int = setting(default=Policy.max_outcomes, type=Integer(1, 100_000_000))
    """The maximum number of outcomes that a queue remembers, about 200 bytes each. With more puts in
    --outcome-ttl, the oldest outcomes are forgotten earlier."""
    auto_repair_after: float = time_setting(0.0)
    """How long a queue must be stuck before the server repairs it. A native client that dies while it holds a
    role leaves its queue stuck. Use a time longer than any pause of a live client. 0: never repair; with
    --allow-eviction, repair after 30 seconds."""
    backend_timeout: float = time_setting(5.0, least=0.001, group="Reliability")
    """How long the server waits for a reply from the backend before it closes the connection and
    reconnects."""
    backend_grace: float | None = time_setting(None)
    """How long commands wait for a lost connection to the backend to be restored, before they fail with
    -BACKEND. 0: fail at once. By default 5 seconds, or 20 with Sentinel or a cluster."""
    proxy_timeout: float = time_setting(15.0, least=0.1)
    """The time within which undelivered messages of a dead server on the same backend are put back. A server
    is considered dead after 0.7 of it without a heartbeat. If the times of two servers differ, the longer one
    applies."""
    durability: Level = setting(default="none", type=DurabilityType())
    """What must have happened to a change before the client receives its reply: none (the backend has the
    change in memory), replica[:N] (N replicas have it too, 1 by default), or fsync (it is on the backend's
    disk)."""
    allow_eviction: bool = setting(default=False)
    """Whether to accept a backend whose maxmemory-policy evicts arbitrary keys when its memory is full. Such
    a backend loses messages. Queues that lose some of their keys are repaired after 30 seconds, or after
    --auto-repair-after."""
    max_clients: int = setting(default=10000, type=Integer(1, 1_000_000), group="Limits")
    """The maximum number of connected clients. A further client takes the place of one that has not logged
    in, although it must, or is refused. A low limit on open files lowers it."""
    idle_timeout: float = time_setting(0.0)
    """How long a client may stay idle, without sending a command, before it is disconnected. Clients that
    wait for a message, for room or for a role are not idle, and neither are clients that have reserved jobs
    or opened reads. 0: no limit."""
    tcp_keepalive: float = time_setting(DEFAULT_SECONDS, most=MAX_SECONDS)
    """How long a TCP connection, of a client or to the backend, may be silent before the kernel asks whether
    the other side is still there. The connection ends after twice this time without an answer. 0: never
    ask."""
    max_message_bytes: int = setting(default=32 << 20, show_default="32mb", type=Bytes(1, 512 << 20))
    """The largest message, or other argument of a command, in bytes. A client that sends a larger one
    receives a protocol error and is disconnected."""
    max_buffered_bytes: int = setting(default=0, show_default="0", type=Bytes(0, 2**53))
    """The maximum size of buffered requests and replies, for all clients together. Above three quarters of
    it, clients with more than 4kb are throttled. Above it, the client with the largest buffers receives -OOM
    and is disconnected. 0: a quarter of the memory of the machine or container, but at least 64mb."""
    max_waiting: int = setting(default=Policy.max_waiting, type=Integer(0, 100_000_000))
    """The maximum number of operations that wait at the same time, for messages, room or roles. Further ones
    fail with -OVERLOAD. Each waiting operation takes about 4 KiB of memory."""
    max_queues: int = setting(default=0, type=Integer(0, 2**53))
    """The most queues that servers create in a database of the backend. Further ones fail with -MAXQUEUES.
    Queues of native clients do not count. 0: any number."""
    max_stored_bytes: int = setting(default=0, type=Bytes(0, 2**53))
    """The most memory that the backend may use. Above it, puts fail with -BACKEND … OOM. 0: any amount; the
    backend's own maxmemory applies in any case."""
    password: str | None = setting(group="Security")
    """Require clients to log in with this password, as the user 'default'. Prefer --password-file: command
    lines and variables can be visible to other users."""
    password_file: Path | None = setting(type=FILE)
    """A file with the password of the user 'default' on one line, instead of --password."""
    users: Path | None = setting(type=FILE)
    """A TOML file with users: their password hashes, rights, and the queues they may use."""
    protected_mode: bool = setting(default=True)
    """Refuse clients on other machines unless a password or users are set."""
    tls_certificate: Path | None = setting(type=FILE)
    """A PEM file with the certificate for TLS listeners, followed by its chain."""
    tls_key: Path | None = setting(type=FILE)
    """A PEM file with the private key of the certificate, if --tls-certificate does not contain it."""
    tls_client_ca: Path | None = setting(type=FILE)
    """A PEM file with CA certificates. If set, TLS clients must present a certificate signed by one of
    them."""
    drain_delay: float = time_setting(0.0, group="Stopping")
    """How long the server continues to serve old and new clients after SIGTERM or SIGINT, while its readiness
    check already fails. Gives load balancers time to notice. 0: drain at once."""
    drain_timeout: float = time_setting(10.0)
    """How long the server may take, after --drain-delay, to finish the commands that have begun, disconnect
    its clients, and put undelivered messages back. The connections of clients that wait end at once, without
    a reply."""
    slowlog_slower_than: float = time_setting(0.01, least=-(2.0**31), group="Slow log")
    """The slow log (SLOWLOG) keeps commands that took this time or longer, apart from commands that waited
    for a message, for room or for a role. 0: all measured commands. Negative: none."""
    slowlog_max_len: int = setting(default=128, type=Integer(0, 1_000_000))
    """How many commands the slow log keeps."""
    log_level: str = setting(default="info", type=click.Choice(LEVELS), group="Logs")
    """Log messages of this severity and above."""
    log_format: str = setting(default="text", type=click.Choice(FORMATS))
    """The format of the log: lines of text, or one JSON object per line."""

    def __post_init__(self) -> None:
        """Check that the values can be used together. Raise SettingsError."""
        super().__post_init__()
        if not self.workers:
            object.__setattr__(self, "workers", processors())
        if not self.max_buffered_bytes:
            object.__setattr__(self, "max_buffered_bytes", max(_MIN_BUFFERED_BYTES, memory_limit() // 4))
        if self.password is not None and self.password_file is not None:
            raise SettingsError("the password is given twice, by --password and by --password-file")
        if self.tls_certificate is None:
            for one in (*self.listen, self.http):
                if one and one.tls:
                    raise SettingsError(
                        f"{one} needs --tls-certificate, and --tls-key for a separate key file"
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
            documentation=f"at {url}"
            if (url := self.documentation_url)
            else "in the documentation of pressure-server",
        )

    @property
    def repair_after(self) -> float:
        """How many seconds a queue must be stuck before it is repaired; 0 means never."""
        return self.auto_repair_after or (_REPAIR_AFTER_EVICTION if self.allow_eviction else 0.0)

    @property
    def policy(self) -> Policy:
        """The policy that applies to all queues. Raises SettingsError if --config can no longer be read."""
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
            templates=() if self.config is None else read_templates(self.config, self.default_bound),
        )

    @property
    def processes(self) -> int:
        """The number of processes: the workers and their supervisor, or one."""
        return self.workers + 1 if self.workers > 1 else 1

    def of_worker(self) -> Settings:
        """Return the settings of each worker: its share of the limits."""
        limits = ("max_clients", "max_waiting", "max_buffered_bytes")
        shares: dict[str, Any] = {name: -(-getattr(self, name) // self.workers) for name in limits}
        return replace(self, workers=1, http=None, **shares)
