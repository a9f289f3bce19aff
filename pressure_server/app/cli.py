"""The command line: its commands, and their exit statuses."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
import uvloop
from click.shell_completion import CompletionItem

from pressure_server import __version__
from pressure_server.app import log_output
from pressure_server.app.backup_commands import backup_command, check_data_command, restore_command
from pressure_server.app.demo_command import demo_command
from pressure_server.app.doctor_command import doctor_command
from pressure_server.app.option_types import GroupedCommand
from pressure_server.app.options import config_path, shared_options
from pressure_server.app.process import hide_secrets
from pressure_server.app.queues_command import queues_command, top_command, where_command
from pressure_server.app.server import serve
from pressure_server.app.settings import Settings
from pressure_server.auth.users import MAX_PASSWORD_BYTES, password_digest
from pressure_server.compiled import variant
from pressure_server.errors import BackendError, PatternError, StartError
from pressure_server.net.handler import find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.text import reason_of


class _ServeByDefault(click.Group):
    """A command group that runs `serve` if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "--version"}
        if args:
            is_serve = args[0] not in self.commands and args[0].startswith("-") and args[0] not in own
        else:
            # Shell completion parses the words before the one to complete: a command may follow.
            is_serve = not ctx.resilient_parsing
        return super().parse_args(ctx, ["serve", *args] if is_serve else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or an option of this group or of `serve`."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            serve = self.commands["serve"]
            found += serve.shell_complete(click.Context(serve, ctx, "serve"), incomplete)
        return list({item.value: item for item in found}.values())


@click.group(
    cls=_ServeByDefault,
    short_help="Bounded, reliable FIFO queues in Redis.",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
@click.version_option(f"{__version__} ({variant()})", prog_name="pressure-server")
def cli() -> None:
    """Bounded, reliable FIFO queues in Redis, for Redis, memcached and beanstalk clients.

    Without a COMMAND, serve is run, and the options of serve can be given directly.
    """


@cli.command("serve", short_help="Run the server.", cls=GroupedCommand, params=shared_options())
def serve_command(**values: Any) -> None:
    """Run the server until it receives SIGTERM or SIGINT.

    SIGHUP reloads the users, the passwords, the TLS files and the settings of queues by name. Times are in
    seconds or have a unit (250ms, 5s, 10m, 1h, 1d). Sizes are in bytes or have a unit (64mb, 1kb). If an
    option is set more than once, the command line takes precedence over the environment, and the environment
    over the --config file.
    """
    settings = Settings(**values, config=config_path())
    log_output.configure(settings.log_level, settings.log_format)
    uvloop.run(serve(settings))


@cli.command("ping", params=shared_options("config", "listen"))
@click.option(
    "--ready",
    is_flag=True,
    help="Check readiness for new clients instead. A server is not ready while it is stopping or its "
    "backend is unavailable.",
)
@click.option(
    "--pid",
    type=click.IntRange(1),
    help="Check the addresses on which the server with this process ID was told to listen, by its own "
    "options, instead of --listen. In a container, the server has 1.",
)
def ping_command(listen: tuple[ListenerUrl, ...], ready: bool, pid: int | None) -> None:
    """Check that a running server answers.

    Sends a request to each --listen address.

    Exit status: 0 if every server is healthy (with --ready: ready), 1 if one is not.
    """
    wanted = "ready" if ready else "healthy"
    for where in (pid and _listeners_of(pid)) or listen:
        try:
            find_handler(where.handler).ping(where, timeout=5.0, ready=ready)
        except OSError as error:
            raise click.ClickException(f"{where} is not {wanted}: {reason_of(error)}") from error
        click.echo(f"{where} is {wanted}")


def _listeners_of(pid: int) -> tuple[ListenerUrl, ...]:
    """Return the listeners in the command line of a process; none if it is no server, or has ended."""
    try:
        line = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).rstrip("\0")
    except OSError:
        return ()
    # A server that has hidden a password has a title, in which spaces separate the words.
    words = line.split("\0" if "\0" in line else " ")
    names = [Path(word).name for word in words]
    for name in ("pressure-server", "pressure_server"):  # the second after python -m
        if name in names:
            options = words[names.index(name) + 1 :]
            options = options[1:] if options[:1] == ["serve"] else options
            found: tuple[ListenerUrl, ...] = serve_command.make_context("serve", options).params["listen"]
            return found
    return ()


@cli.command("hash-password", short_help="Print the hash of a password for a users file.")
def hash_password_command() -> None:
    """Print the hash of a password for a users file.

    Use it as the value of `password-sha256`. The command prompts for the password, or reads one line from
    standard input if that is not a terminal.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True).encode()
    else:
        password = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    if not 0 < len(password) <= MAX_PASSWORD_BYTES or b"\n" in password:
        raise click.UsageError(f"the password must be one line of 1 to {MAX_PASSWORD_BYTES} bytes")
    click.echo(password_digest(password).hex())


for _command in (
    doctor_command, queues_command, top_command, where_command, backup_command, restore_command,
    check_data_command, demo_command,
):  # fmt: skip
    cli.add_command(_command)


def run() -> None:
    """Run the command line and exit: the console script.

    Errors are printed as one line. The exit status is 2 for a wrong option, and 1 if the command fails.
    """
    hide_secrets()
    try:
        status = cli.main(standalone_mode=False)
    except (click.ClickException, SettingsError, PatternError, StartError, BackendError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo("pressure-server: " + " ".join(text.split()), err=True)
        sys.exit(2 if isinstance(error, click.UsageError | SettingsError | PatternError) else 1)
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
