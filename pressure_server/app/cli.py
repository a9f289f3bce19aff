"""The command line: serve, ping, doctor, hash-password, and the exit status of each."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click
import uvloop

from pressure_server import __version__
from pressure_server.app import logs
from pressure_server.app.doctor_command import examine
from pressure_server.app.option_types import Seconds
from pressure_server.app.options import Command, check_variables, shared_options
from pressure_server.app.process_title import hide_secrets
from pressure_server.app.server import StartError, serve
from pressure_server.app.settings import Settings, Store
from pressure_server.auth.users import MOST_PASSWORD_BYTES, digest_of
from pressure_server.errors import BackendError
from pressure_server.net.handler import find_handler
from pressure_server.net.listen import Listen, SettingsError


class _ServeByDefault(click.Group):
    """`pressure-server --listen …` is `pressure-server serve --listen …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "--version"}
        if not args or (args[0] not in self.commands and args[0].startswith("-") and args[0] not in own):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_ServeByDefault, context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="pressure-server")
def cli() -> None:
    """Bounded, reliable FIFO queues in Redis, for the clients you already have.

    Without a COMMAND it is serve, and serve's options can be given directly.
    """


@cli.command("serve", cls=Command, params=shared_options())
def serve_command(log_level: str, log_format: str, **values: Any) -> None:
    """Serve queues until SIGTERM or SIGINT."""
    check_variables(os.environ)
    try:
        settings = Settings(**values)
        logs.configure(log_level, log_format)
        uvloop.run(serve(settings))
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    except (StartError, BackendError) as error:
        raise click.ClickException(str(error)) from error


@cli.command("ping", params=shared_options("config", "listen"))
@click.option("--ready", is_flag=True, help="Ask whether new clients are welcome: it is not, while it stops.")
def ping_command(listen: tuple[Listen, ...], ready: bool) -> None:
    """Ask the server that listens there whether it is well.

    Exit status: 0, it is; 1, it is not.
    """
    check_variables(os.environ)
    wanted = "ready" if ready else "well"
    for where in listen:
        try:
            find_handler(where.handler).ping(where, timeout=5.0, ready=ready)
        except OSError as error:
            raise click.ClickException(f"{where} is not {wanted}: {error}") from error
        click.echo(f"{where} is {wanted}")


@cli.command(
    "doctor", params=shared_options("config", "backend", "backend_password_file", "data_dir", "prefix")
)
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Mend what is wrong.")
@click.option(
    "--wait",
    help="A native client that could go on, and has not for so many seconds, is taken for dead.",
    default=5.0,
    show_default=True,
    type=Seconds(),
)
def doctor_command(queue: str | None, repair: bool, wait: float, **values: Any) -> int:
    """Find what native clients that died have left, in one QUEUE or in all; only --repair changes anything.

    Exit status: 0, all is well, or mended; 1, something is wrong; 2, it could not look.
    """
    check_variables(os.environ)
    try:
        return uvloop.run(examine(Store(**values), queue, repair=repair, wait=wait, say=click.echo))
    except (SettingsError, BackendError) as error:
        # Of 2: 1 is what has been found.
        raise click.UsageError(str(error)) from error


@cli.command("hash-password")
def hash_password_command() -> None:
    """Say what stands for a password in a users file.

    The password is asked for, or read from standard input: one line.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True).encode()
    else:
        password = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    if not 0 < len(password) <= MOST_PASSWORD_BYTES or b"\n" in password:
        raise click.UsageError(f"the password must be one line of 1 to {MOST_PASSWORD_BYTES} bytes")
    click.echo(digest_of(password).hex())


def run() -> None:
    """The console script. A wrong option: one line, exit status 2. What cannot start: one line, 1."""
    hide_secrets()
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
