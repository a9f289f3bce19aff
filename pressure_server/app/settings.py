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
        "The address to listen on, and its protocol: resp://HOST:PORT, memcached://HOST:PORT or "
        "beanstalk://HOST:PORT, with an s for TLS (resps://), or resp+unix:///PATH for a Unix socket. "
        "Repeat the option for more listeners; in the variable, separate URLs by spaces. Port 0 chooses "
        "a free port. A name stands for all its addresses; 0.0.0.0 stands for all IPv4 addresses of the "
        "machine, and [::] for all of IPv4 and IPv6. Options of a listener are at its end: "
        "memcached://…?mode=kv, beanstalk://…?max_job_size=65535.",
        multiple=True,
        default=("resp://127.0.0.1:4000",),
        metavar="URL",
        callback=checked(_listeners),
    )
    http: ListenerUrl | None = setting(
        "The address of the HTTP listener with health checks, metrics and the console: http://HOST:PORT, "
        "https://HOST:PORT, or http+unix:///PATH. Without it there is none. Options at its end: "
        "?host=NAME allows a name under which a server without passwords may be called.",
        metavar="URL",
        callback=checked(_http),
    )
    documentation_url: str | None = setting(
        "Where the developers of your applications find this documentation. Errors that refuse a command "
        "name the page that helps, and this address.",
        metavar="URL",
        callback=checked(_documentation_url),
    )
    workers: int = setting(
        "The number of processes that serve clients; 0 means one for each processor. They share the "
        "listeners, and the limits on clients, waiting operations and buffers. Several pay off when one "
        "processor is busy.",
        default=1,
        type=Integer(0, 128),
    )
    metrics_queues: int = setting(
        "The most queues with metrics of their own. Sums over all queues are always there.",
        default=100,
        type=Integer(0),
    )
    metrics_match: str = setting(
        "A pattern of the names of queues with metrics of their own, as for KEYS.",
        default="*",
        metavar="PATTERN",
    )


@dataclass(frozen=True, repr=False)
class Settings(Store, ListenerSettings):
    """All settings of `pressure-server serve`; times in seconds, sizes in bytes.

    Its fields are the options, in the order of the help. `repr` is off because of the passwords.
    """

    default_bound: int = setting(
        "The bound of queues that a put creates: the most messages such a queue holds. 0: unbounded.",
        group="Queues",
        default=0,
        type=Integer(0, 2**53),
    )
    default_max_bytes: int = setting(
        "The most bytes of messages of a queue that is created without MAX-BYTES. A queue that has "
        "reached it is full. 0: any number.",
        default=0,
        type=Bytes(0, 2**53),
    )
    auto_create: bool = setting(
        "Whether a put creates its queue if the queue does not exist. If off, such a put fails with "
        "-NOQUEUE.",
        default=True,
    )
    overflow: str = setting(
        "What a put on a full queue does: wait for room (block), or fail with -FULL (error). A queue can "
        "override this when it is created.",
        default=BLOCK,
        type=click.Choice([BLOCK, ERROR]),
    )
    put_timeout: float = time_setting(
        "How long a put waits for room in a full queue before it fails with -FULL. 0: no limit. Set a "
        "time shorter than the read timeout of the clients, so that they receive the error.",
        0.0,
    )
    role_timeout: float = time_setting(
        "How long an operation waits if a native client, which uses the backend directly, holds the "
        "producer or consumer role of the queue. After that it fails with -INUSE. 0: fail at once. A get "
        "on an empty queue waits for its own timeout instead.",
        Policy.role_timeout,
    )
    implicit_queue_ttl: float = time_setting(
        "How long a queue that a put created may be empty and unused before the server deletes it. "
        "0: never delete.",
        3600.0,
    )
    outcome_ttl: float = time_setting(
        "How long a queue remembers the outcome of a put with a transaction id. Within this time, the "
        "same id puts nothing again.",
        Policy.outcome_ttl,
        least=1,
    )
    max_outcomes: int = setting(
        "The maximum number of outcomes that a queue remembers, about 200 bytes each. With more puts in "
        "--outcome-ttl, the oldest outcomes are forgotten earlier.",
        default=Policy.max_outcomes,
        type=Integer(1, 100_000_000),
    )
    auto_repair_after: float = time_setting(
        "How long a queue must be stuck before the server repairs it. A native client that dies while "
        "it holds a role leaves its queue stuck. Use a time longer than any pause of a live client. "
        "0: never repair; with --allow-eviction, repair after 30 seconds.",
        0.0,
    )
    backend_timeout: float = time_setting(
        "How long the server waits for a reply from the backend before it closes the connection and "
        "reconnects.",
        5.0,
        least=0.001,
        group="Reliability",
    )
    backend_grace: float | None = time_setting(
        "How long commands wait for a lost connection to the backend to be restored, before they fail "
        "with -BACKEND. 0: fail at once. By default 5 seconds, or 20 with Sentinel or a cluster.",
        None,
    )
    proxy_timeout: float = time_setting(
        "The time within which undelivered messages of a dead server on the same backend are put back. A "
        "server is considered dead after 0.7 of it without a heartbeat. If the times of two servers "
        "differ, the longer one applies.",
        15.0,
        least=0.1,
    )
    durability: Level = setting(
        "What must have happened to a change before the client receives its reply: none (the backend "
        "has the change in memory), replica[:N] (N replicas have it too, 1 by default), or fsync (it is "
        "on the backend's disk).",
        default="none",
        type=DurabilityType(),
    )
    allow_eviction: bool = setting(
        "Whether to accept a backend whose maxmemory-policy evicts arbitrary keys when its memory is "
        "full. Such a backend loses messages. Queues that lose some of their keys are repaired after 30 "
        "seconds, or after --auto-repair-after.",
        default=False,
    )
    max_clients: int = setting(
        "The maximum number of connected clients. A further client takes the place of one that has not "
        "logged in, although it must, or is refused. A low limit on open files lowers it.",
        group="Limits",
        default=10000,
        type=Integer(1, 1_000_000),
    )
    idle_timeout: float = time_setting(
        "How long a client may stay idle, without sending a command, before it is disconnected. Clients "
        "that wait for a message, for room or for a role are not idle, and neither are clients that have "
        "reserved jobs or opened reads. 0: no limit.",
        0.0,
    )
    tcp_keepalive: float = time_setting(
        "How long a TCP connection, of a client or to the backend, may be silent before the kernel asks "
        "whether the other side is still there. The connection ends after twice this time without an "
        "answer. 0: never ask.",
        DEFAULT_SECONDS,
        most=MAX_SECONDS,
    )
    max_message_bytes: int = setting(
        "The largest message, or other argument of a command, in bytes. A client that sends a larger one "
        "receives a protocol error and is disconnected.",
        default=32 << 20,
        show_default="32mb",
        type=Bytes(1, 512 << 20),
    )
    max_buffered_bytes: int = setting(
        "The maximum size of buffered requests and replies, for all clients together. Above three "
        "quarters of it, clients with more than 4kb are throttled. Above it, the client with the largest "
        "buffers receives -OOM and is disconnected. 0: a quarter of the memory of the machine or "
        "container, but at least 64mb.",
        default=0,
        show_default="0",
        type=Bytes(0, 2**53),
    )
    max_waiting: int = setting(
        "The maximum number of operations that wait at the same time, for messages, room or roles. "
        "Further ones fail with -OVERLOAD. Each waiting operation takes about 4 KiB of memory.",
        default=Policy.max_waiting,
        type=Integer(0, 100_000_000),
    )
    max_queues: int = setting(
        "The most queues that servers create in a database of the backend. Further ones fail with "
        "-MAXQUEUES. Queues of native clients do not count. 0: any number.",
        default=0,
        type=Integer(0, 2**53),
    )
    max_stored_bytes: int = setting(
        "The most memory that the backend may use. Above it, puts fail with -BACKEND … OOM. 0: any "
        "amount; the backend's own maxmemory applies in any case.",
        default=0,
        type=Bytes(0, 2**53),
    )
    password: str | None = setting(
        "Require clients to log in with this password, as the user 'default'. Prefer --password-file: "
        "command lines and variables can be visible to other users.",
        group="Security",
    )
    password_file: Path | None = setting(
        "A file with the password of the user 'default' on one line, instead of --password.",
        type=FILE,
    )
    users: Path | None = setting(
        "A TOML file with users: their password hashes, rights, and the queues they may use.",
        type=FILE,
    )
    protected_mode: bool = setting(
        "Refuse clients on other machines unless a password or users are set.",
        default=True,
    )
    tls_certificate: Path | None = setting(
        "A PEM file with the certificate for TLS listeners, followed by its chain.",
        type=FILE,
    )
    tls_key: Path | None = setting(
        "A PEM file with the private key of the certificate, if --tls-certificate does not contain it.",
        type=FILE,
    )
    tls_client_ca: Path | None = setting(
        "A PEM file with CA certificates. If set, TLS clients must present a certificate signed by one "
        "of them.",
        type=FILE,
    )
    drain_delay: float = time_setting(
        "How long the server continues to serve old and new clients after SIGTERM or SIGINT, while its "
        "readiness check already fails. Gives load balancers time to notice. 0: drain at once.",
        0.0,
        group="Stopping",
    )
    drain_timeout: float = time_setting(
        "How long the server may take, after --drain-delay, to finish the commands that have begun, "
        "disconnect its clients, and put undelivered messages back. The connections of clients that wait "
        "end at once, without a reply.",
        10.0,
    )
    slowlog_slower_than: float = time_setting(
        "The slow log (SLOWLOG) keeps commands that took this time or longer, apart from commands that "
        "waited for a message, for room or for a role. 0: all measured commands. Negative: none.",
        0.01,
        least=-(2.0**31),
        group="Slow log",
    )
    slowlog_max_len: int = setting(
        "How many commands the slow log keeps.",
        default=128,
        type=Integer(0, 1_000_000),
    )
    log_level: str = setting(
        "Log messages of this severity and above.",
        group="Logs",
        default="info",
        type=click.Choice(LEVELS),
    )
    log_format: str = setting(
        "The format of the log: lines of text, or one JSON object per line.",
        default="text",
        type=click.Choice(FORMATS),
    )

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
