"""The options of the commands; each is also a variable PRESSURE_… and a key of the TOML file.

Parsing, `--help` and docs/reference/options.md are generated from the table in this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from pressure_server.app import log_output
from pressure_server.app.option_sources import backend_from_redis_variables, check_environment, read_config
from pressure_server.app.option_types import Bytes, DurabilityType, Integer, Option, option, time_option
from pressure_server.app.settings import DEFAULT_LISTEN
from pressure_server.app.store import EMBEDDED
from pressure_server.keepalive import DEFAULT_SECONDS, MAX_SECONDS
from pressure_server.net.handler import find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.queues.placement import MOST_SHARDS
from pressure_server.queues.policy import BLOCK, ERROR, Policy
from pressure_server.web.http_settings import check_http

# The options of commands that look at a store of queues.
STORE_OPTIONS = ("config", "backend", "backend_password_file", "data_dir", "prefix", "shards")
_FILE = click.Path(path_type=Path)


def _config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Check the environment, and read the configuration file: before the other options have values."""
    check_environment(os.environ, _OPTIONS)
    if path is not None:
        read_config(ctx, path, _OPTIONS)


def _listens(
    ctx: click.Context, parameter: click.Parameter, urls: tuple[str, ...]
) -> tuple[ListenerUrl, ...]:
    """Parse listener URLs, and check each with its handler."""
    return tuple(_parse(ctx, parameter, url, _check_listen) for url in urls)


def _check_listen(listen: ListenerUrl) -> None:
    find_handler(listen.handler).check(listen)


def _http(ctx: click.Context, parameter: click.Parameter, url: str | None) -> ListenerUrl | None:
    """Parse the URL of the HTTP listener."""
    return _parse(ctx, parameter, url, check_http) if url else None


def _documentation_url(ctx: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Check the address: error replies and log lines have it."""
    if url and not re.fullmatch(r"https?://[!-~]+", url):
        raise click.BadParameter("write https://HOST/PATH, without spaces", ctx, parameter)
    return url


def _parse(
    ctx: click.Context, parameter: click.Parameter, url: str, check: Callable[[ListenerUrl], None]
) -> ListenerUrl:
    try:
        listen = ListenerUrl.parse(url)
        check(listen)
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return listen


def _backend(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Use REDIS_SERVER, REDIS_PORT and REDIS_DB if neither --backend nor PRESSURE_BACKEND is given."""
    if ctx.get_parameter_source("backend") not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        return value
    return backend_from_redis_variables(os.environ) or value


# All options, by the group in which help and documents list them.
GROUPS: dict[str, tuple[Option, ...]] = {
    "Listeners and backend": (
        option(
            "--config",
            "A TOML file with values for these options. Its keys are the option names without the leading "
            "dashes, such as max-clients = 500.",
            type=_FILE,
            callback=_config,
            is_eager=True,
            expose_value=False,
        ),
        option(
            "--listen",
            "The address to listen on, and its protocol: resp://HOST:PORT, memcached://HOST:PORT or "
            "beanstalk://HOST:PORT, with an s for TLS (resps://), or resp+unix:///PATH for a Unix socket. "
            "Repeat the option for more listeners; in the variable, separate URLs by spaces. Port 0 chooses "
            "a free port. A name stands for all its addresses; 0.0.0.0 stands for all IPv4 addresses of the "
            "machine, and [::] for all of IPv4 and IPv6. Options of a listener are at its end: "
            "memcached://…?mode=kv, beanstalk://…?max_job_size=65535.",
            multiple=True,
            default=DEFAULT_LISTEN,
            metavar="URL",
            callback=_listens,
        ),
        option(
            "--http",
            "The address of the HTTP listener with health checks, metrics and the console: http://HOST:PORT, "
            "https://HOST:PORT, or http+unix:///PATH. Without it there is none. Options at its end: "
            "?host=NAME allows a name under which a server without passwords may be called.",
            metavar="URL",
            callback=_http,
        ),
        option(
            "--documentation-url",
            "Where the developers of your applications find this documentation. Errors that refuse a command "
            "name the page that helps, and this address.",
            metavar="URL",
            callback=_documentation_url,
        ),
        option(
            "--workers",
            "The number of processes that serve clients; 0 means one for each processor. They share the "
            "listeners, and the limits on clients, waiting operations and buffers. Several pay off when one "
            "processor is busy.",
            default=1,
            type=Integer(0, 128),
        ),
        option(
            "--metrics-queues",
            "The most queues with metrics of their own. Sums over all queues are always there.",
            default=100,
            type=Integer(0),
        ),
        option(
            "--metrics-match",
            "A pattern of the names of queues with metrics of their own, as for KEYS.",
            default="*",
            metavar="PATTERN",
        ),
        option(
            "--backend",
            "The Redis or Valkey that stores the queues: redis://HOST:PORT/DATABASE, rediss:// for TLS, "
            "unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DATABASE, "
            "redis+cluster://HOST:PORT,HOST:PORT, or embedded: to run a "
            "Valkey inside this server. If neither this option nor its variable is set, REDIS_SERVER, "
            "REDIS_PORT and REDIS_DB select a Redis.",
            default=EMBEDDED,
            metavar="URL",
            callback=_backend,
        ),
        option(
            "--backend-password-file",
            "A file with the backend's password on one line, instead of a password in the --backend URL.",
            type=_FILE,
        ),
        option(
            "--data-dir",
            "The directory in which the embedded backend stores its data.",
            default=Path("pressure-data"),
            type=_FILE,
        ),
        option(
            "--prefix",
            "The prefix of all keys in the backend. Servers and native clients that share queues must use "
            "the same prefix.",
            default="__pressure__",
        ),
        option(
            "--shards",
            "On a cluster: into how many shards the queues are divided. It cannot be changed later. A node "
            "serves its part of them, so have several for each.",
            default=16,
            type=Integer(1, MOST_SHARDS),
        ),
    ),
    "Queues": (
        option(
            "--default-bound",
            "The bound of queues that a put creates: the most messages such a queue holds. 0: unbounded.",
            default=0,
            type=Integer(0, 2**53),
        ),
        option(
            "--default-max-bytes",
            "The most bytes of messages of a queue that is created without MAX-BYTES. A queue that has "
            "reached it is full. 0: any number.",
            default=0,
            type=Bytes(0, 2**53),
        ),
        option(
            "--auto-create/--no-auto-create",
            "Whether a put creates its queue if the queue does not exist. If off, such a put fails with "
            "-NOQUEUE.",
            default=True,
        ),
        option(
            "--overflow",
            "What a put on a full queue does: wait for room (block), or fail with -FULL (error). A queue can "
            "override this when it is created.",
            default=BLOCK,
            type=click.Choice([BLOCK, ERROR]),
        ),
        time_option(
            "--put-timeout",
            "How long a put waits for room in a full queue before it fails with -FULL. 0: no limit. Set a "
            "time shorter than the read timeout of the clients, so that they receive the error.",
            0.0,
        ),
        time_option(
            "--role-timeout",
            "How long an operation waits if a native client, which uses the backend directly, holds the "
            "producer or consumer role of the queue. After that it fails with -INUSE. 0: fail at once. A get "
            "on an empty queue waits for its own timeout instead.",
            Policy.role_timeout,
        ),
        time_option(
            "--implicit-queue-ttl",
            "How long a queue that a put created may be empty and unused before the server deletes it. "
            "0: never delete.",
            3600.0,
        ),
        time_option(
            "--outcome-ttl",
            "How long a queue remembers the outcome of a put with a transaction id. Within this time, the "
            "same id puts nothing again.",
            Policy.outcome_ttl,
            least=1,
        ),
        option(
            "--max-outcomes",
            "The maximum number of outcomes that a queue remembers, about 200 bytes each. With more puts in "
            "--outcome-ttl, the oldest outcomes are forgotten earlier.",
            default=Policy.max_outcomes,
            type=Integer(1, 100_000_000),
        ),
        time_option(
            "--auto-repair-after",
            "How long a queue must be stuck before the server repairs it. A native client that dies while "
            "it holds a role leaves its queue stuck. Use a time longer than any pause of a live client. "
            "0: never repair; with --allow-eviction, repair after 30 seconds.",
            0.0,
        ),
    ),
    "Reliability": (
        time_option(
            "--backend-timeout",
            "How long the server waits for a reply from the backend before it closes the connection and "
            "reconnects.",
            5.0,
            least=0.001,
        ),
        time_option(
            "--backend-grace",
            "How long commands wait for a lost connection to the backend to be restored, before they fail "
            "with -BACKEND. 0: fail at once. By default 5 seconds, or 20 with Sentinel or a cluster.",
            None,
        ),
        time_option(
            "--proxy-timeout",
            "The time within which undelivered messages of a dead server on the same backend are put back. A "
            "server is considered dead after 0.7 of it without a heartbeat. If the times of two servers "
            "differ, the longer one applies.",
            15.0,
            least=0.1,
        ),
        option(
            "--durability",
            "What must have happened to a change before the client receives its reply: none (the backend "
            "has the change in memory), replica[:N] (N replicas have it too, 1 by default), or fsync (it is "
            "on the backend's disk).",
            default="none",
            type=DurabilityType(),
        ),
        option(
            "--allow-eviction/--no-allow-eviction",
            "Whether to accept a backend whose maxmemory-policy evicts arbitrary keys when its memory is "
            "full. Such a backend loses messages. Queues that lose some of their keys are repaired after 30 "
            "seconds, or after --auto-repair-after.",
            default=False,
        ),
    ),
    "Limits": (
        option(
            "--max-clients",
            "The maximum number of connected clients. A further client takes the place of one that has not "
            "logged in, although it must, or is refused. A low limit on open files lowers it.",
            default=10000,
            type=Integer(1, 1_000_000),
        ),
        time_option(
            "--idle-timeout",
            "How long a client may stay idle, without sending a command, before it is disconnected. Clients "
            "that wait for a message, for room or for a role are not idle, and neither are clients that have "
            "reserved jobs or opened reads. 0: no limit.",
            0.0,
        ),
        time_option(
            "--tcp-keepalive",
            "How long a TCP connection, of a client or to the backend, may be silent before the kernel asks "
            "whether the other side is still there. The connection ends after twice this time without an "
            "answer. 0: never ask.",
            DEFAULT_SECONDS,
            most=MAX_SECONDS,
        ),
        option(
            "--max-message-bytes",
            "The largest message, or other argument of a command, in bytes. A client that sends a larger one "
            "receives a protocol error and is disconnected.",
            default=32 << 20,
            show_default="32mb",
            type=Bytes(1, 512 << 20),
        ),
        option(
            "--max-buffered-bytes",
            "The maximum size of buffered requests and replies, for all clients together. Above three "
            "quarters of it, clients with more than 4kb are throttled. Above it, the client with the largest "
            "buffers receives -OOM and is disconnected. 0: a quarter of the memory of the machine or "
            "container, but at least 64mb.",
            default=0,
            show_default="0",
            type=Bytes(0, 2**53),
        ),
        option(
            "--max-waiting",
            "The maximum number of operations that wait at the same time, for messages, room or roles. "
            "Further ones fail with -OVERLOAD. Each waiting operation takes about 4 KiB of memory.",
            default=Policy.max_waiting,
            type=Integer(0, 100_000_000),
        ),
        option(
            "--max-queues",
            "The most queues that servers create in a database of the backend. Further ones fail with "
            "-MAXQUEUES. Queues of native clients do not count. 0: any number.",
            default=0,
            type=Integer(0, 2**53),
        ),
        option(
            "--max-stored-bytes",
            "The most memory that the backend may use. Above it, puts fail with -BACKEND … OOM. 0: any "
            "amount; the backend's own maxmemory applies in any case.",
            default=0,
            type=Bytes(0, 2**53),
        ),
    ),
    "Security": (
        option(
            "--password",
            "Require clients to log in with this password, as the user 'default'. Prefer --password-file: "
            "command lines and variables can be visible to other users.",
        ),
        option(
            "--password-file",
            "A file with the password of the user 'default' on one line, instead of --password.",
            type=_FILE,
        ),
        option(
            "--users",
            "A TOML file with users: their password hashes, rights, and the queues they may use.",
            type=_FILE,
        ),
        option(
            "--protected-mode/--no-protected-mode",
            "Refuse clients on other machines unless a password or users are set.",
            default=True,
        ),
        option(
            "--tls-certificate",
            "A PEM file with the certificate for TLS listeners, followed by its chain.",
            type=_FILE,
        ),
        option(
            "--tls-key",
            "A PEM file with the private key of the certificate, if --tls-certificate does not contain it.",
            type=_FILE,
        ),
        option(
            "--tls-client-ca",
            "A PEM file with CA certificates. If set, TLS clients must present a certificate signed by one "
            "of them.",
            type=_FILE,
        ),
    ),
    "Stopping": (
        time_option(
            "--drain-delay",
            "How long the server continues to serve old and new clients after SIGTERM or SIGINT, while its "
            "readiness check already fails. Gives load balancers time to notice. 0: drain at once.",
            0.0,
        ),
        time_option(
            "--drain-timeout",
            "How long the server may take, after --drain-delay, to finish the commands that have begun, "
            "disconnect its clients, and put undelivered messages back. The connections of clients that wait "
            "end at once, without a reply.",
            10.0,
        ),
    ),
    "Slow log": (
        time_option(
            "--slowlog-slower-than",
            "The slow log (SLOWLOG) keeps commands that took this time or longer, apart from commands that "
            "waited for a message, for room or for a role. 0: all measured commands. Negative: none.",
            0.01,
            least=-(2.0**31),
        ),
        option(
            "--slowlog-max-len",
            "How many commands the slow log keeps.",
            default=128,
            type=Integer(0, 1_000_000),
        ),
    ),
    "Logs": (
        option(
            "--log-level",
            "Log messages of this severity and above.",
            default="info",
            type=click.Choice(log_output.LEVELS),
        ),
        option(
            "--log-format",
            "The format of the log: lines of text, or one JSON object per line.",
            default="text",
            type=click.Choice(log_output.FORMATS),
        ),
    ),
}
for _group, _options in GROUPS.items():
    for _one in _options:
        _one.group = _group
_OPTIONS = [one for options in GROUPS.values() for one in options]


def shared_options(*names: str) -> list[click.Parameter]:
    """Return the options of these names, in Python's spelling (`data_dir`); all options if none is named.

    The --config file may nevertheless contain every option, so that commands can share one file.
    """
    return [one for one in _OPTIONS if not names or one.name in names]
