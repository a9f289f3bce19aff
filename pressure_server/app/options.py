"""The options of the commands; each is also a variable PRESSURE_… and a key of the TOML file.

Parsing, `--help` and docs/reference/options.md are generated from the table in this module.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.types import OptionHelpExtra

from pressure_server.app import logs
from pressure_server.app.option_types import Bytes, Durability, Integer, Seconds
from pressure_server.app.settings import DEFAULT_LISTEN, EMBEDDED, backend_from_redis_variables
from pressure_server.net.handler import find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.queues.policy import BLOCK, ERROR, Policy
from pressure_server.web.settings import check as check_http

_FILE = click.Path(path_type=Path)
# By the type of an option's default: the TOML types that it accepts besides strings.
_TOML_TYPES: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Use the values of the TOML file as defaults, so that flags and variables take precedence.

    Raise click.UsageError if the file cannot be read, or a key or value is invalid.
    """
    if path is None:
        return
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    options = {str(option.name).replace("_", "-"): option for option in _OPTIONS if option.expose_value}
    ctx.default_map = {}
    for key, value in found.items():
        where = f"{path}, line {_line_of(key, text)}"
        option = options.get(key.replace("_", "-"))
        if option is None:
            likely = difflib.get_close_matches(key, options, 1)
            hint = f": did you mean {likely[0]}?" if likely else ""
            raise click.UsageError(f"{where}: unknown option {key}{hint}")
        kinds = (str, *_TOML_TYPES.get(type(option.default), ()))
        several = value if option.multiple and isinstance(value, list) else [value]
        if not several or any(type(one) not in kinds for one in several):
            # Do not show the value: the URL of a backend may contain a password.
            raise click.UsageError(f"{where}: invalid value for {key}")
        try:
            option.type_cast_value(ctx, several if option.multiple else value)
        except click.BadParameter as error:
            raise click.UsageError(f"{where}: invalid value for {key}: {error.message}") from error
        ctx.default_map[str(option.name)] = several if option.multiple else value


def _line_of(key: str, text: str) -> int:
    """Return the number of the line that sets the key; 1 if it is not found."""
    found = re.search(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def _listens(
    ctx: click.Context, parameter: click.Parameter, urls: tuple[str, ...]
) -> tuple[ListenerUrl, ...]:
    """Parse listener URLs, and check each with its handler."""
    try:
        listens = tuple(ListenerUrl.parse(url) for url in urls)
        for listen in listens:
            find_handler(listen.handler).check(listen)
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return listens


def _http(ctx: click.Context, parameter: click.Parameter, url: str | None) -> ListenerUrl | None:
    """Parse the URL of the HTTP listener."""
    try:
        listen = ListenerUrl.parse(url) if url else None
        if listen is not None:
            check_http(listen)
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return listen


def _backend(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Use REDIS_SERVER, REDIS_PORT and REDIS_DB if neither --backend nor PRESSURE_BACKEND is given."""
    if ctx.get_parameter_source("backend") not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        return value
    try:
        return backend_from_redis_variables(os.environ) or value
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


_VARIABLE_PREFIX = "PRESSURE_"


class Option(click.Option):
    """An option that belongs to a `group` of the help."""

    group = ""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return the default without click's parentheses, and the least value of a time with its unit."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        if isinstance(self.type, Seconds):
            del extra["range"]
            if self.type.min and self.type.min > 0:
                extra["range"] = f"at least {self.type.min:g}s"
        return extra


class Command(click.Command):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        for group, options in groupby(self.get_params(ctx), lambda option: getattr(option, "group", "")):
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(group or "Options"):
                    formatter.write_dl(records)


def _option(flag: str, help_text: str, **attributes: Any) -> Option:
    variable = _VARIABLE_PREFIX + flag.split("/")[0].lstrip("-").upper().replace("-", "_")
    attributes = {"show_default": True, **attributes}
    return Option([flag], help=help_text, envvar=variable, show_envvar=True, **attributes)


def _time(flag: str, help_text: str, default: float, shown: str, least: float = 0) -> Option:
    return _option(flag, help_text, default=default, show_default=shown, type=Seconds(least))


# All options, by the group in which help and documents list them.
GROUPS: dict[str, tuple[Option, ...]] = {
    "Listeners and backend": (
        _option(
            "--config",
            "A TOML file with values for these options. Its keys are the option names without the leading "
            "dashes, such as max-clients = 500.",
            type=_FILE,
            callback=_read_config,
            is_eager=True,
            expose_value=False,
        ),
        _option(
            "--listen",
            "The address to listen on, and its protocol: resp://HOST:PORT, memcached://HOST:PORT or "
            "beanstalk://HOST:PORT, with an s for TLS (resps://), or resp+unix:///PATH for a Unix socket. "
            "Repeat the option for more listeners; in the variable, separate URLs by spaces. Port 0 chooses "
            "a free port. Options of a listener are at its end: memcached://…?mode=kv, "
            "beanstalk://…?max_job_size=65535.",
            multiple=True,
            default=DEFAULT_LISTEN,
            metavar="URL",
            callback=_listens,
        ),
        _option(
            "--http",
            "The address of the HTTP listener with health checks, metrics and the console: http://HOST:PORT, "
            "https://HOST:PORT, or http+unix:///PATH. Without it there is none. Options at its end: "
            "?host=NAME allows a name under which a server without passwords may be called.",
            metavar="URL",
            callback=_http,
        ),
        _option(
            "--metrics-queues",
            "The most queues with metrics of their own. Sums over all queues are always there.",
            default=100,
            type=Integer(0),
        ),
        _option(
            "--metrics-match",
            "A pattern of the names of queues with metrics of their own, as for KEYS.",
            default="*",
            metavar="PATTERN",
        ),
        _option(
            "--backend",
            "The Redis or Valkey that stores the queues: redis://HOST:PORT/DATABASE, rediss:// for TLS, "
            "unix:///PATH, or embedded: to run a Valkey inside this server. If neither this option nor its "
            "variable is set, REDIS_SERVER, REDIS_PORT and REDIS_DB select a Redis.",
            default=EMBEDDED,
            metavar="URL",
            callback=_backend,
        ),
        _option(
            "--backend-password-file",
            "A file with the backend's password on one line, instead of a password in the --backend URL.",
            type=_FILE,
        ),
        _option(
            "--data-dir",
            "The directory in which the embedded backend stores its data.",
            default=Path("pressure-data"),
            type=_FILE,
        ),
        _option(
            "--prefix",
            "The prefix of all keys in the backend. Servers and native clients that share queues must use "
            "the same prefix.",
            default="__pressure__",
        ),
    ),
    "Queues": (
        _option(
            "--default-bound",
            "The bound of queues that a put creates: the most messages such a queue holds. 0: unbounded.",
            default=0,
            type=Integer(0, 2**53),
        ),
        _option(
            "--default-max-bytes",
            "The most bytes of messages of a queue that is created without MAX-BYTES. A queue that has "
            "reached it is full. 0: any number.",
            default=0,
            type=Bytes(0, 2**53),
        ),
        _option(
            "--auto-create/--no-auto-create",
            "Whether a put creates its queue if the queue does not exist. If off, such a put fails with "
            "-NOQUEUE.",
            default=True,
        ),
        _option(
            "--overflow",
            "What a put on a full queue does: wait for room (block), or fail with -FULL (error). A queue can "
            "override this when it is created.",
            default=BLOCK,
            type=click.Choice([BLOCK, ERROR]),
        ),
        _time(
            "--put-timeout",
            "How long a put waits for room in a full queue before it fails with -FULL. 0: no limit. Set a "
            "time shorter than the read timeout of the clients, so that they receive the error.",
            0.0,
            "0",
        ),
        _time(
            "--role-timeout",
            "How long an operation waits if a native client, which uses the backend directly, holds the "
            "producer or consumer role of the queue. After that it fails with -INUSE. 0: fail at once. A get "
            "on an empty queue waits for its own timeout instead.",
            Policy.role_timeout,
            "5s",
        ),
        _time(
            "--implicit-queue-ttl",
            "How long a queue that a put created may be empty and unused before the server deletes it. "
            "0: never delete.",
            3600.0,
            "1h",
        ),
        _time(
            "--outcome-ttl",
            "How long a queue remembers the outcome of a put with a transaction id. Within this time, the "
            "same id puts nothing again.",
            Policy.outcome_ttl,
            "1h",
            least=1,
        ),
        _option(
            "--max-outcomes",
            "The maximum number of outcomes that a queue remembers, about 200 bytes each. With more puts in "
            "--outcome-ttl, the oldest outcomes are forgotten earlier.",
            default=Policy.max_outcomes,
            type=Integer(1, 100_000_000),
        ),
        _time(
            "--auto-repair-after",
            "How long a queue must be stuck before the server repairs it. A native client that dies while "
            "it holds a role leaves its queue stuck. Use a time longer than any pause of a live client. "
            "0: never repair; with --allow-eviction, repair after 30 seconds.",
            0.0,
            "0",
        ),
    ),
    "Reliability": (
        _time(
            "--backend-timeout",
            "How long the server waits for a reply from the backend before it closes the connection and "
            "reconnects.",
            5.0,
            "5s",
            least=0.001,
        ),
        _time(
            "--backend-grace",
            "How long commands wait for a lost connection to the backend to be restored, before they fail "
            "with -BACKEND. 0: fail at once.",
            5.0,
            "5s",
        ),
        _time(
            "--proxy-timeout",
            "The time within which undelivered messages of a dead server on the same backend are put back. A "
            "server is considered dead after 0.7 of it without a heartbeat. If the times of two servers "
            "differ, the longer one applies.",
            15.0,
            "15s",
            least=0.1,
        ),
        _option(
            "--durability",
            "What must have happened to a change before the client receives its reply: none (the backend "
            "has the change in memory), replica[:N] (N replicas have it too, 1 by default), or fsync (it is "
            "on the backend's disk).",
            default="none",
            type=Durability(),
        ),
        _option(
            "--allow-eviction/--no-allow-eviction",
            "Whether to accept a backend whose maxmemory-policy evicts arbitrary keys when its memory is "
            "full. Such a backend loses messages. Queues that lose some of their keys are repaired after 30 "
            "seconds, or after --auto-repair-after.",
            default=False,
        ),
    ),
    "Limits": (
        _option(
            "--max-clients",
            "The maximum number of connected clients. Further clients are refused. A low limit on open files "
            "lowers it.",
            default=10000,
            type=Integer(1, 1_000_000),
        ),
        _time(
            "--idle-timeout",
            "How long a client may stay idle, without sending a command, before it is disconnected. Clients "
            "that wait for a message, for room or for a role are not idle. 0: no limit.",
            0.0,
            "0",
        ),
        _option(
            "--max-message-bytes",
            "The largest message, or other argument of a command, in bytes. A client that sends a larger one "
            "receives a protocol error and is disconnected.",
            default=32 << 20,
            show_default="32mb",
            type=Bytes(1, 512 << 20),
        ),
        _option(
            "--max-buffered-bytes",
            "The maximum size of buffered requests and replies, for all clients together. Above three "
            "quarters of it, clients with more than 4kb are throttled. Above it, the client with the largest "
            "buffers receives -OOM and is disconnected. 0: a quarter of the memory of the machine or "
            "container, but at least 64mb.",
            default=0,
            show_default="0",
            type=Bytes(0, 2**53),
        ),
        _option(
            "--max-waiting",
            "The maximum number of operations that wait at the same time, for messages, room or roles. "
            "Further ones fail with -OVERLOAD. Each waiting operation takes about 4 KiB of memory.",
            default=Policy.max_waiting,
            type=Integer(0, 100_000_000),
        ),
        _option(
            "--max-queues",
            "The most queues that servers create in a database of the backend. Further ones fail with "
            "-MAXQUEUES. Queues of native clients do not count. 0: any number.",
            default=0,
            type=Integer(0, 2**53),
        ),
        _option(
            "--max-stored-bytes",
            "The most memory that the backend may use. Above it, puts fail with -OOM. 0: any amount; the "
            "backend's own maxmemory applies in any case.",
            default=0,
            type=Bytes(0, 2**53),
        ),
    ),
    "Security": (
        _option(
            "--password",
            "Require clients to log in with this password, as the user 'default'. Prefer --password-file: "
            "command lines and variables can be visible to other users.",
        ),
        _option(
            "--password-file",
            "A file with the password of the user 'default' on one line, instead of --password.",
            type=_FILE,
        ),
        _option(
            "--users",
            "A TOML file with users: their password hashes, rights, and the queues they may use.",
            type=_FILE,
        ),
        _option(
            "--protected-mode/--no-protected-mode",
            "Refuse clients on other machines unless a password or users are set.",
            default=True,
        ),
        _option(
            "--tls-certificate",
            "A PEM file with the certificate for TLS listeners, followed by its chain.",
            type=_FILE,
        ),
        _option(
            "--tls-key",
            "A PEM file with the private key of the certificate, if --tls-certificate does not contain it.",
            type=_FILE,
        ),
        _option(
            "--tls-client-ca",
            "A PEM file with CA certificates. If set, TLS clients must present a certificate signed by one "
            "of them.",
            type=_FILE,
        ),
    ),
    "Stopping": (
        _time(
            "--drain-delay",
            "How long the server continues to serve old and new clients after SIGTERM or SIGINT, while its "
            "readiness check already fails. Gives load balancers time to notice. 0: drain at once.",
            0.0,
            "0",
        ),
        _time(
            "--drain-timeout",
            "How long the server may take, after --drain-delay, to finish the commands it has received, "
            "disconnect its clients, and put undelivered messages back. Commands that wait end at once with "
            "-STOPPING.",
            10.0,
            "10s",
        ),
    ),
    "Slow log": (
        _time(
            "--slowlog-slower-than",
            "The slow log (SLOWLOG) keeps commands that took this time or longer, apart from commands that "
            "waited for a message, for room or for a role. 0: all measured commands. Negative: none.",
            0.01,
            "10ms",
            least=-(2.0**31),
        ),
        _option(
            "--slowlog-max-len",
            "How many commands the slow log keeps.",
            default=128,
            type=Integer(0, 1_000_000),
        ),
    ),
    "Logs": (
        _option(
            "--log-level",
            "Log messages of this severity and above.",
            default="info",
            type=click.Choice(logs.LEVELS),
        ),
        _option(
            "--log-format",
            "The format of the log: lines of text, or one JSON object per line.",
            default="text",
            type=click.Choice(logs.FORMATS),
        ),
    ),
}
for _group, _options in GROUPS.items():
    for _one in _options:
        _one.group = _group
_OPTIONS = [option for options in GROUPS.values() for option in options]

# Variables that Kubernetes and Docker links set for a service whose name begins with `pressure`.
_LINK_VARIABLE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?|NAME|ENV_\w+)")


def check_environment(names: Iterable[str]) -> None:
    """Raise click.UsageError if a variable PRESSURE_… belongs to no option."""
    known = [str(option.envvar).removeprefix(_VARIABLE_PREFIX) for option in _OPTIONS]
    for name in sorted(names):
        suffix = name.removeprefix(_VARIABLE_PREFIX)
        if suffix != name and suffix not in known and not _LINK_VARIABLE.fullmatch(suffix):
            likely = difflib.get_close_matches(suffix, known, 1)
            hint = (
                f"did you mean {_VARIABLE_PREFIX}{likely[0]}?"
                if likely
                else "see pressure-server serve --help"
            )
            raise click.UsageError(f"unknown variable {name} in the environment: {hint}")


def shared_options(*names: str) -> list[click.Parameter]:
    """Return the options of these names, in Python's spelling (`data_dir`); all options if none is named.

    The --config file may nevertheless contain every option, so that commands can share one file.
    """
    return [option for option in _OPTIONS if not names or option.name in names]


def options_markdown() -> str:
    """Return the tables of docs/reference/options.md."""
    lines: list[str] = []
    for group, options in GROUPS.items():
        lines += [f"## {group}", "", "| option | variable | default | |", "|---|---|---|---|"]
        for option in options:
            flags = "/".join([*option.opts, *option.secondary_opts])
            lines.append(f"| `{flags}` | `{option.envvar}` | {_default_of(option)} | {option.help} |")
        lines.append("")
    return "\n".join(lines)


def _default_of(option: Option) -> str:
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if isinstance(option.default, tuple):
        return f"`{' '.join(option.default)}`"
    has_none = option.default is None or not isinstance(option.default, str | int | Path)
    return "" if has_none else f"`{option.default}`"
