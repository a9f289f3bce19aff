"""The options that commands share: each also as a variable PRESSURE_… and as a key in a TOML file.

Parsing, `--help` and docs/reference/options.md come from this table.
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

from pressure_server.app import logs
from pressure_server.app.option_types import Bytes, Durability, Integer, Seconds
from pressure_server.app.settings import DEFAULT_LISTEN, EMBEDDED, backend_from_specification
from pressure_server.net.handler import find_handler
from pressure_server.net.listen import Listen, SettingsError
from pressure_server.queues.policy import BLOCK, ERROR, Policy

_FILE = click.Path(path_type=Path)
# What an option of such a default takes from a file, beside text, which is read as a variable's.
_KINDS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Let the file's values stand where neither a flag nor a variable gives one."""
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
        kinds = (str, *_KINDS.get(type(option.default), ()))
        several = value if option.multiple and isinstance(value, list) else [value]
        if not several or any(type(one) not in kinds for one in several):
            # The value is not shown: a backend's may have a password.
            raise click.UsageError(f"{where}: invalid value for {key}")
        try:
            option.type_cast_value(ctx, several if option.multiple else value)
        except click.BadParameter as error:
            raise click.UsageError(f"{where}: invalid value for {key}: {error.message}") from error
        ctx.default_map[str(option.name)] = several if option.multiple else value


def _line_of(key: str, text: str) -> int:
    """Return in which line the key is set."""
    found = re.search(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def _listens(ctx: click.Context, parameter: click.Parameter, urls: tuple[str, ...]) -> tuple[Listen, ...]:
    """Where to listen, by handlers that there are."""
    try:
        listens = tuple(Listen.parse(url) for url in urls)
        for listen in listens:
            find_handler(listen.handler).check(listen)
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
    return listens


def _backend(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Let the specification's variables stand where neither --backend nor its own variable is given."""
    if ctx.get_parameter_source("backend") not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        return value
    try:
        return backend_from_specification(os.environ) or value
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


_OURS = "PRESSURE_"


class Option(click.Option):
    """An option in a `group` of the help."""

    group = ""


class Command(click.Command):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        for group, options in groupby(self.get_params(ctx), lambda option: getattr(option, "group", "")):
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(group or "Options"):
                    formatter.write_dl(records)


def _option(flag: str, help_text: str, **attributes: Any) -> Option:
    variable = _OURS + flag.split("/")[0].lstrip("-").upper().replace("-", "_")
    attributes = {"show_default": True, **attributes}
    return Option([flag], help=help_text, envvar=variable, show_envvar=True, **attributes)


def _time(flag: str, help_text: str, default: float, shown: str, least: float = 0) -> Option:
    return _option(flag, help_text, default=default, show_default=shown, type=Seconds(least))


_GROUPS: dict[str, tuple[Option, ...]] = {
    "Listeners and backend": (
        _option(
            "--config",
            "A TOML file with these options, without the dashes.",
            type=_FILE,
            callback=_read_config,
            is_eager=True,
            expose_value=False,
        ),
        _option(
            "--listen",
            "Where to listen: resp://HOST:PORT, memcached://HOST:PORT, with an s (resps://) for TLS, or "
            "resp+unix:///PATH. May be repeated; in the variable, spaces separate URLs. Port 0 picks a "
            "free one.",
            multiple=True,
            default=DEFAULT_LISTEN,
            metavar="URL",
            callback=_listens,
        ),
        _option(
            "--backend",
            "Where queues are kept: embedded:, redis://, rediss:// or unix://. REDIS_SERVER, REDIS_PORT and "
            "REDIS_DB select a Redis, too.",
            default=EMBEDDED,
            metavar="URL",
            callback=_backend,
        ),
        _option("--backend-password-file", "A file with the backend's password, on one line.", type=_FILE),
        _option(
            "--data-dir",
            "Where the embedded backend keeps its data.",
            default=Path("pressure-data"),
            type=_FILE,
        ),
        _option("--prefix", "The prefix of all keys.", default="__pressure__"),
    ),
    "Queues": (
        _option(
            "--default-bound",
            "The bound of queues that a put creates. 0 is none.",
            default=0,
            type=Integer(0, 2**53),
        ),
        _option(
            "--auto-create/--no-auto-create",
            "Whether a put creates a queue that does not exist.",
            default=True,
        ),
        _option(
            "--overflow",
            "What a put on a full queue does, unless the queue was created with another choice: wait for "
            "room (block), or fail with -FULL (error).",
            default=BLOCK,
            type=click.Choice([BLOCK, ERROR]),
        ),
        _time(
            "--put-timeout",
            "How long a put waits for room before it fails with -FULL. 0 is for ever: choose less than the "
            "read timeout of your clients.",
            0.0,
            "0",
        ),
        _time(
            "--role-timeout",
            "How long an operation waits for a role that a native client holds, before it fails with "
            "-INUSE. 0 is not at all.",
            Policy.role_timeout,
            "5s",
        ),
        _time(
            "--implicit-queue-ttl",
            "When a queue that a put created is deleted, after it was last used, if it is empty. 0 is never.",
            3600.0,
            "1h",
        ),
        _time(
            "--auto-repair-after",
            "When a queue is repaired that a dead native client has left stuck. 0 is never.",
            0.0,
            "0",
        ),
    ),
    "Reliability": (
        _time(
            "--backend-timeout",
            "When a backend that does not answer is taken for lost.",
            5.0,
            "5s",
        ),
        _time(
            "--backend-grace",
            "How long commands wait for a lost backend to return, before they fail with -BACKEND.",
            5.0,
            "5s",
        ),
        _time(
            "--proxy-timeout",
            "When another server on the same backend is taken for dead, and its undelivered messages go "
            "back.",
            15.0,
            "15s",
            least=0.1,
        ),
        _option(
            "--durability",
            "What the backend must have done with a change before its client is answered: none, "
            "replica[:N] (N replicas have it), or fsync (it is on disk).",
            default="none",
            type=Durability(),
        ),
        _option(
            "--allow-eviction/--no-allow-eviction",
            "Whether the backend's maxmemory-policy may drop messages when its memory is full. Queues that "
            "lost a part are then repaired after 30 seconds, or --auto-repair-after.",
            default=False,
        ),
    ),
    "Limits": (
        _option(
            "--max-clients", "How many clients may be connected.", default=10000, type=Integer(1, 1_000_000)
        ),
        _time("--idle-timeout", "When an idle client is disconnected. 0 is never.", 0.0, "0"),
        _option(
            "--max-message-bytes",
            "The largest message, or other argument of a command. A client that sends a larger one gets a "
            "protocol error, and is disconnected.",
            default=32 << 20,
            show_default="32mb",
            type=Bytes(1, 512 << 20),
        ),
        _option(
            "--max-buffered-bytes",
            "How much may be buffered for all clients, of requests and replies. Above it, the client with "
            "most is disconnected. 0 is a quarter of the memory, at least 64mb.",
            default=0,
            show_default="0",
            type=Bytes(0, 2**53),
        ),
        _option(
            "--max-waiting",
            "How many operations may wait at the same time: for messages, for room, or for roles. One more "
            "fails with -OVERLOAD.",
            default=Policy.max_waiting,
            type=Integer(0, 100_000_000),
        ),
    ),
    "Security": (
        _option(
            "--password",
            "Clients must log in with this password, as user 'default'. Prefer --password-file.",
        ),
        _option("--password-file", "A file with this password, on one line.", type=_FILE),
        _option("--users", "A TOML file with users: passwords, queues, and rights.", type=_FILE),
        _option(
            "--protected-mode/--no-protected-mode",
            "Whether only clients on this machine are served, as long as clients need not log in.",
            default=True,
        ),
        _option("--tls-certificate", "The certificate of TLS listeners, with its chain (PEM).", type=_FILE),
        _option("--tls-key", "Its private key, if that is in another file (PEM).", type=_FILE),
        _option("--tls-client-ca", "Clients need a certificate signed by one of these (PEM).", type=_FILE),
    ),
    "Stopping": (
        _time(
            "--drain-delay",
            "How long a server that is told to stop still serves all clients, while it says that it is not "
            "ready.",
            0.0,
            "0",
        ),
        _time(
            "--drain-timeout",
            "How long a server that is told to stop answers what it has begun, before it disconnects "
            "clients.",
            10.0,
            "10s",
        ),
    ),
    "Logs": (
        _option("--log-level", "How much is logged.", default="info", type=click.Choice(logs.LEVELS)),
        _option("--log-format", "The format of the log.", default="text", type=click.Choice(logs.FORMATS)),
    ),
}
for _group, _options in _GROUPS.items():
    for _one in _options:
        _one.group = _group
_OPTIONS = [option for options in _GROUPS.values() for option in options]

# What Kubernetes, and Docker's links, set in a container for a service whose name begins with `pressure`.
_OF_LINKS = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?|NAME|ENV_\w+)")


def check_variables(names: Iterable[str]) -> None:
    """Raise click.UsageError if a variable is named like one of an option, and there is no such option."""
    known = [str(option.envvar).removeprefix(_OURS) for option in _OPTIONS]
    for name in sorted(names):
        of_ours = name.removeprefix(_OURS)
        if of_ours != name and of_ours not in known and not _OF_LINKS.fullmatch(of_ours):
            likely = difflib.get_close_matches(of_ours, known, 1)
            hint = f"did you mean {_OURS}{likely[0]}?" if likely else "see pressure-server serve --help"
            raise click.UsageError(f"unknown variable {name} in the environment: {hint}")


def shared_options(*names: str) -> list[click.Parameter]:
    """The options of these names, as Python writes them (`data_dir`); all without any.

    Whichever they are, a file may set the others, too.
    """
    return [option for option in _OPTIONS if not names or option.name in names]


def options_markdown() -> str:
    """Return the tables of docs/reference/options.md."""
    lines: list[str] = []
    for group, options in _GROUPS.items():
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
