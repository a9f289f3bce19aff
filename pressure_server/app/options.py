"""The options that commands share: each also as a variable PRESSURE_… and as a key in a TOML file."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pressure_server.app import logs
from pressure_server.app.settings import DEFAULT_LISTEN, EMBEDDED, backend_from_specification
from pressure_server.backend.levels import Level
from pressure_server.net.handler import find_handler
from pressure_server.net.listen import Listen, SettingsError
from pressure_server.queues.policy import BLOCK, ERROR, Policy

_MESSAGE_BYTES = 32 << 20
_LARGEST_MESSAGE = 512 << 20


class _Integer(click.IntRange):
    name = "integer"  # not "integer range", which an error would call it


class _Seconds(click.FloatRange):
    name = "seconds"

    def __init__(self, least: float = 0) -> None:
        super().__init__(least, 2**31)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As FloatRange does; but nan, which no bound stops, is refused."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail("nan is no number of seconds.", param, ctx)
        return seconds


class _Durability(click.ParamType[Level]):
    name = "durability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Level:
        """A level, from its text."""
        if isinstance(value, Level):
            return value
        try:
            return Level.parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class _Bytes(_Integer):
    name = "number of bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number, or one with a unit as Redis has them: 1k is 1000, and 1kb is 1024."""
        found = re.fullmatch(r"(\d+)([kmg])(b?)", value.strip().lower()) if isinstance(value, str) else None
        if found:
            number, unit, is_binary = found.groups()
            value = int(number) * (1024 if is_binary else 1000) ** (1 + "kmg".index(unit))
        bytes_: int = super().convert(value, param, ctx)
        return bytes_


SECONDS = _Seconds()
_DURABILITY = _Durability()
_FILE = click.Path(path_type=Path)
# What an option of such a default takes from a file, beside text, which is read as a variable's.
_KINDS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Let the file's values stand where neither a flag nor a variable gives one."""
    if path is None:
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    options = {str(option.name): option for option in _OPTIONS if option.expose_value}
    values: dict[str, Any] = {name.replace("-", "_"): value for name, value in found.items()}
    if unknown := sorted(values.keys() - options.keys()):
        raise click.UsageError(f"{path} sets what is not known: {', '.join(unknown)}")
    ctx.default_map = {}
    for name, value in values.items():
        option = options[name]
        kinds = (str, *_KINDS.get(type(option.default), ()))
        several = value if option.multiple and isinstance(value, list) else [value]
        if not several or any(type(one) not in kinds for one in several):
            # The value is not said: a backend's may have a password.
            raise click.UsageError(f"{path} sets {name} to what it cannot be")
        ctx.default_map[name] = several if option.multiple else value


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


def _option(flag: str, help_text: str, **attributes: Any) -> click.Option:
    variable = _OURS + flag.split("/")[0].lstrip("-").upper().replace("-", "_")
    return click.Option(
        [flag], help=help_text, envvar=variable, show_envvar=True, show_default=True, **attributes
    )


_OPTIONS = (
    _option(
        "--config",
        "A TOML file with these options, without the dashes.",
        type=click.Path(path_type=Path),
        callback=_read_config,
        is_eager=True,
        expose_value=False,
    ),
    _option(
        "--listen",
        "HANDLER://HOST:PORT or HANDLER+unix:///PATH, HANDLERs://HOST:PORT for TLS; may be repeated. "
        "Port 0 picks a free one.",
        multiple=True,
        default=DEFAULT_LISTEN,
        metavar="URL",
        callback=_listens,
    ),
    _option(
        "--backend",
        "embedded:, redis://, rediss:// or unix://; REDIS_SERVER, REDIS_PORT, REDIS_DB select Redis, too.",
        default=EMBEDDED,
        callback=_backend,
    ),
    _option(
        "--backend-password-file",
        "A file that holds the backend's password, so that it need not stand in --backend.",
        type=_FILE,
    ),
    _option(
        "--data-dir",
        "Where the embedded backend keeps its data.",
        default=Path("pressure-data"),
        type=click.Path(path_type=Path),
    ),
    _option("--prefix", "What keys of queues begin with.", default="__pressure__"),
    _option(
        "--default-bound",
        "The bound of queues that a put creates; 0 is none.",
        default=0,
        type=_Integer(0, 2**53),
    ),
    _option(
        "--auto-create/--no-auto-create", "Whether a put creates a queue that does not exist.", default=True
    ),
    _option(
        "--overflow",
        "What a put on a full queue does, for queues created without saying: wait for room, or fail.",
        default=BLOCK,
        type=click.Choice([BLOCK, ERROR]),
    ),
    _option(
        "--put-timeout",
        "Seconds for which a put waits for room; 0 is for ever.",
        default=0.0,
        type=SECONDS,
    ),
    _option(
        "--backend-timeout",
        "Seconds after which a backend that does not answer is taken for lost.",
        default=5.0,
        type=SECONDS,
    ),
    _option(
        "--backend-grace",
        "Seconds for which clients wait for a lost backend to be back, before they get an error.",
        default=5.0,
        type=SECONDS,
    ),
    _option(
        "--proxy-timeout",
        "Seconds without a sign after which another server on the same backend is taken for dead.",
        default=15.0,
        type=_Seconds(0.1),
    ),
    _option(
        "--role-timeout",
        "Seconds for which an operation waits for a role that a native client holds; 0 is not at all.",
        default=Policy.role_timeout,
        type=SECONDS,
    ),
    _option(
        "--implicit-queue-ttl",
        "Seconds after which a queue that a put created is deleted, if it is empty and unused; 0 is never.",
        default=3600.0,
        type=SECONDS,
    ),
    _option(
        "--auto-repair-after",
        "Seconds after which a queue that a dead native client has left stuck is mended; 0 is never.",
        default=0.0,
        type=SECONDS,
    ),
    _option(
        "--allow-eviction/--no-allow-eviction",
        "Whether the backend may have a maxmemory-policy by which it drops messages when its memory is full. "
        "Queues of which a part was dropped are then repaired after 30 seconds, or --auto-repair-after.",
        default=False,
    ),
    _option(
        "--max-clients",
        "How many clients may be connected.",
        default=10000,
        type=_Integer(1, 1_000_000),
    ),
    _option(
        "--idle-timeout",
        "Seconds after which an idle client is disconnected; 0 is never.",
        default=0.0,
        type=SECONDS,
    ),
    _option(
        "--max-message-bytes",
        "The largest message, and any other argument of a command; a client that sends a larger one is "
        "told of a protocol error, and disconnected.",
        default=_MESSAGE_BYTES,
        type=_Integer(1, _LARGEST_MESSAGE),
    ),
    _option(
        "--drain-delay",
        "Seconds for which a server that is told to stop goes on, but says that it is not ready.",
        default=0.0,
        type=SECONDS,
    ),
    _option(
        "--max-buffered-bytes",
        "How much may be buffered for all clients, of requests and replies, as a number or like 256mb; who "
        "has most beyond that is disconnected. 0 is a quarter of the memory there is, at least 64 MiB.",
        default=0,
        type=_Bytes(0, 2**53),
    ),
    _option(
        "--max-waiting",
        "How many operations may wait at the same time: for messages, for room, or for roles.",
        default=Policy.max_waiting,
        type=_Integer(0, 100_000_000),
    ),
    _option(
        "--drain-timeout",
        "Seconds within which a server that is told to stop answers what it has begun; then it cuts off.",
        default=10.0,
        type=SECONDS,
    ),
    _option(
        "--durability",
        "What the backend must have done with a change before its client is answered: none, replica[:N] (it "
        "is on N replicas), or fsync (it is on disk).",
        default="none",
        type=_DURABILITY,
    ),
    _option(
        "--password",
        "Clients must log in with this password, as user 'default'. Better is --password-file.",
    ),
    _option("--password-file", "A file that holds this password, on one line.", type=_FILE),
    _option("--users", "A TOML file with users: passwords, queues, and what they may do.", type=_FILE),
    _option(
        "--protected-mode/--no-protected-mode",
        "Whether only clients of this machine are served while nobody needs to log in.",
        default=True,
    ),
    _option("--tls-certificate", "The certificate of listeners for TLS, with its chain: PEM.", type=_FILE),
    _option("--tls-key", "Its private key, if that is not in the same file: PEM.", type=_FILE),
    _option("--tls-client-ca", "Clients need a certificate by one of these: PEM.", type=_FILE),
    _option("--log-level", "How much is logged.", default="info", type=click.Choice(logs.LEVELS)),
    _option("--log-format", "How it is written.", default="text", type=click.Choice(logs.FORMATS)),
)


# What Kubernetes sets in each container for a service whose name begins with `pressure`.
_OF_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?)")


def check_variables(names: Iterable[str]) -> None:
    """Raise click.UsageError if a variable is named like one of an option, and there is no such option."""
    known = [str(option.envvar).removeprefix(_OURS) for option in _OPTIONS]
    for name in sorted(names):
        of_ours = name.removeprefix(_OURS)
        if of_ours != name and of_ours not in known and not _OF_KUBERNETES.fullmatch(of_ours):
            likely = difflib.get_close_matches(of_ours, known, 1)
            hint = f"did you mean {_OURS}{likely[0]}?" if likely else "see pressure-server serve --help"
            raise click.UsageError(f"unknown variable {name} in the environment: {hint}")


def shared_options(*names: str) -> list[click.Parameter]:
    """The options of these names, as Python writes them (`data_dir`); all without any.

    Whichever they are, a file may set the others, too.
    """
    return [option for option in _OPTIONS if not names or option.name in names]
