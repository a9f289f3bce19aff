"""The command line: every option also as an environment variable PRESSURE_… and as a key in a TOML file."""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import uvloop

from pressure_server import __version__, logs
from pressure_server.broker.policy import BLOCK, ERROR
from pressure_server.doctor_command import examine
from pressure_server.errors import BackendError
from pressure_server.handler import find_handler
from pressure_server.server import StartError, serve
from pressure_server.settings import (
    DEFAULT_LISTEN,
    EMBEDDED,
    Listen,
    Settings,
    SettingsError,
    backend_from_specification,
)

_MESSAGE_BYTES = 32 << 20
_LARGEST_MESSAGE = 512 << 20


class _ServeByDefault(click.Group):
    """`pressure-server --listen …` is `pressure-server serve --listen …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "--version"}
        if not args or (args[0] not in self.commands and args[0].startswith("-") and args[0] not in own):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Let the file's values stand where neither a flag nor a variable gives one."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = {parameter.name for parameter in ctx.command.params} - {"config"}
    if unknown := sorted(set(values) - known):
        raise click.UsageError(f"{path} sets what is not known: {', '.join(unknown)}")
    if isinstance(values.get("listen"), str):
        values["listen"] = [values["listen"]]
    ctx.default_map = values


def _option(flag: str, help_text: str, **attributes: Any) -> Callable[[Any], Any]:
    variable = "PRESSURE_" + flag.split("/")[0].lstrip("-").upper().replace("-", "_")
    return click.option(flag, help=help_text, envvar=variable, show_envvar=True, **attributes)


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
        "HANDLER://HOST:PORT or HANDLER+unix:///PATH; may be repeated. Port 0 picks a free one.",
        multiple=True,
        default=DEFAULT_LISTEN,
        show_default=True,
    ),
    _option(
        "--backend",
        "embedded:, redis://, rediss:// or unix://; REDIS_SERVER, REDIS_PORT, REDIS_DB select Redis, too.",
        default=EMBEDDED,
        show_default=True,
    ),
    _option(
        "--data-dir",
        "Where the embedded backend keeps its data.",
        default=Path("pressure-data"),
        show_default=True,
        type=click.Path(path_type=Path),
    ),
    _option("--prefix", "What keys of queues begin with.", default="__pressure__", show_default=True),
    _option(
        "--default-bound",
        "The bound of queues that a put creates; 0 is none.",
        default=0,
        show_default=True,
        type=click.IntRange(0, 2**53),
    ),
    _option(
        "--auto-create/--no-auto-create",
        "Whether a put creates a queue that does not exist.",
        default=True,
        show_default=True,
    ),
    _option(
        "--overflow",
        "What a put on a full queue does, for queues created without saying: wait for room, or fail.",
        default=BLOCK,
        show_default=True,
        type=click.Choice([BLOCK, ERROR]),
    ),
    _option(
        "--put-timeout",
        "Seconds for which a put waits for room; 0 is for ever.",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 2**31),
    ),
    _option(
        "--role-timeout",
        "Seconds for which an operation waits for a role that a native client holds; 0 is not at all.",
        default=5.0,
        show_default=True,
        type=click.FloatRange(0, 2**31),
    ),
    _option(
        "--implicit-queue-ttl",
        "Seconds after which a queue that a put created is deleted, if it is empty and unused; 0 is never.",
        default=3600.0,
        show_default=True,
        type=click.FloatRange(0, 2**31),
    ),
    _option(
        "--auto-repair-after",
        "Seconds after which a queue that a dead native client has left stuck is mended; 0 is never.",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 2**31),
    ),
    _option(
        "--max-clients",
        "How many clients may be connected.",
        default=10000,
        show_default=True,
        type=click.IntRange(1, 1_000_000),
    ),
    _option(
        "--idle-timeout",
        "Seconds after which an idle client is disconnected; 0 is never.",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 2**31),
    ),
    _option(
        "--max-message-bytes",
        "The largest message.",
        default=_MESSAGE_BYTES,
        show_default=True,
        type=click.IntRange(1, _LARGEST_MESSAGE),
    ),
    _option(
        "--log-level",
        "How much is logged.",
        default="info",
        show_default=True,
        type=click.Choice(logs.LEVELS),
    ),
    _option(
        "--log-format",
        "How it is written.",
        default="text",
        show_default=True,
        type=click.Choice(logs.FORMATS),
    ),
)


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.group(cls=_ServeByDefault, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="pressure-server")
def cli() -> None:
    """Bounded, reliable FIFO queues in Redis, for the clients you already have."""


@cli.command("serve")
@_with_options
@click.pass_context
def serve_command(ctx: click.Context, /, log_level: str, log_format: str, **values: Any) -> None:
    """Serve queues until SIGTERM or SIGINT."""
    settings = _settings(ctx, values)
    logs.configure(log_level, log_format)
    try:
        uvloop.run(serve(settings))
    except (StartError, BackendError) as error:
        raise click.ClickException(str(error)) from error


@cli.command("ping")
@_with_options
@click.pass_context
def ping_command(ctx: click.Context, /, log_level: str, log_format: str, **values: Any) -> None:
    """Ask the server that runs with these options whether it is well; exit status 1 if it is not."""
    for listen in _settings(ctx, values).listen:
        try:
            find_handler(listen.handler).ping(listen, timeout=5.0)
        except OSError as error:
            raise click.ClickException(f"{listen} is not well: {error}") from error
        click.echo(f"{listen} is well")


@cli.command("doctor")
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Mend what is wrong.")
@click.option(
    "--wait",
    help="A native client that could go on, and has not for so many seconds, is taken for dead.",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0, 2**31),
)
@_with_options
@click.pass_context
def doctor_command(
    ctx: click.Context,
    /,
    queue: str | None,
    repair: bool,
    wait: float,
    log_level: str,
    log_format: str,
    **values: Any,
) -> int:
    """Find what native clients that died have left, in one QUEUE or in all; only --repair changes anything.

    Exit status: 0, all is well, or mended; 1, something is wrong; 2, it could not look.
    """
    settings = _settings(ctx, values)
    try:
        return uvloop.run(examine(settings, queue, repair=repair, wait=wait, say=click.echo))
    except (SettingsError, BackendError) as error:
        # Of 2: 1 is what has been found.
        raise click.UsageError(str(error)) from error


def _settings(ctx: click.Context, values: dict[str, Any]) -> Settings:
    """The settings, from flags over environment over file. Raises click.UsageError."""
    source = ctx.get_parameter_source("backend")
    try:
        if source in (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP):
            values["backend"] = backend_from_specification(os.environ) or values["backend"]
        values["listen"] = tuple(Listen.parse(url) for url in values["listen"])
        for listen in values["listen"]:
            find_handler(listen.handler)
        return Settings(**values)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


def run() -> None:
    """The console script. A wrong option: one line, exit status 2. What cannot start: one line, 1."""
    try:
        status = cli.main(standalone_mode=False)
    except click.UsageError as error:
        _fail(error, 2)
    except click.ClickException as error:
        _fail(error, 1)
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _fail(error: click.ClickException, status: int) -> None:
    click.echo("pressure-server: " + " ".join(error.format_message().split()), err=True)
    sys.exit(status)
