"""The command line: its commands, and their exit statuses."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop
from click.shell_completion import CompletionItem

from pressure_server import __version__
from pressure_server.app import backup_commands, logs
from pressure_server.app.doctor_command import examine
from pressure_server.app.option_types import Seconds
from pressure_server.app.options import Command, check_environment, shared_options
from pressure_server.app.process_title import hide_secrets
from pressure_server.app.queue_table import TOTALS
from pressure_server.app.queues_command import list_queues, show_live
from pressure_server.app.server import StartError, serve
from pressure_server.app.settings import Settings, Store
from pressure_server.auth.users import MAX_PASSWORD_BYTES, password_digest
from pressure_server.errors import BackendError, PatternError
from pressure_server.net.handler import find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError

# The options of commands that look at a store of queues.
_STORE_OPTIONS = ("config", "backend", "backend_password_file", "data_dir", "prefix")


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
@click.version_option(__version__, prog_name="pressure-server")
def cli() -> None:
    """Bounded, reliable FIFO queues in Redis, for Redis, memcached and beanstalk clients.

    Without a COMMAND, serve is run, and the options of serve can be given directly.
    """


@cli.command("serve", short_help="Run the server.", cls=Command, params=shared_options())
def serve_command(log_level: str, log_format: str, **values: Any) -> None:
    """Run the server until it receives SIGTERM or SIGINT.

    SIGHUP reloads the users, the passwords and the TLS files. Times are in seconds or have a unit (250ms,
    5s, 10m, 1h, 1d). Sizes are in bytes or have a unit (64mb, 1kb). If an option is set more than once,
    the command line takes precedence over the environment, and the environment over the --config file.
    """
    check_environment(os.environ)
    try:
        settings = Settings(**values)
        logs.configure(log_level, log_format)
        uvloop.run(serve(settings))
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    except (StartError, BackendError) as error:
        raise click.ClickException(str(error)) from error


@cli.command(
    "ping", short_help="Check that a running server answers.", params=shared_options("config", "listen")
)
@click.option(
    "--ready",
    is_flag=True,
    help="Check readiness for new clients instead. A server is not ready while it is stopping or its "
    "backend is unavailable.",
)
def ping_command(listen: tuple[ListenerUrl, ...], ready: bool) -> None:
    """Check that a running server answers.

    Sends a request to each --listen address.

    Exit status: 0 if every server is healthy (with --ready: ready), 1 if one is not.
    """
    check_environment(os.environ)
    wanted = "ready" if ready else "healthy"
    for where in listen:
        try:
            find_handler(where.handler).ping(where, timeout=5.0, ready=ready)
        except OSError as error:
            raise click.ClickException(f"{where} is not {wanted}: {error}") from error
        click.echo(f"{where} is {wanted}")


@cli.command("doctor", short_help="Find and repair stuck queues.", params=shared_options(*_STORE_OPTIONS))
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Repair the problems found. Without it, no queue is changed.")
@click.option(
    "--wait",
    help="How long a queue is observed. A native client that could proceed but does nothing for this long "
    "is considered dead; use a value longer than any pause of a live client.",
    default=5.0,
    show_default=True,
    type=Seconds(),
)
def doctor_command(queue: str | None, repair: bool, wait: float, **values: Any) -> int:
    """Find and repair queues left stuck by dead clients.

    A native client uses the pressure protocol on the backend directly. If it dies in the middle of an
    operation, its queue can get stuck. This command checks one QUEUE, or all queues if none is named. It does
    not need a running server, and does not disturb one.

    Exit status: 0 if there are no problems or all were repaired, 1 if problems remain, 2 if the queues
    could not be checked.
    """
    check_environment(os.environ)
    try:
        return uvloop.run(examine(Store(**values), queue, repair=repair, wait=wait, say=click.echo))
    except (SettingsError, BackendError) as error:
        # A UsageError exits with status 2; status 1 means that problems were found.
        raise click.UsageError(str(error)) from error


@cli.command("queues", short_help="List the queues.", params=shared_options(*_STORE_OPTIONS))
@click.argument("pattern", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each queue, one on each line.")
@click.option(
    "--sort",
    type=click.Choice([column.title for column in TOTALS]),
    default="queue",
    show_default=True,
    help="The column to sort by: names from A to Z, numbers from the highest.",
)
def queues_command(pattern: str, as_json: bool, sort: str, **values: Any) -> None:
    """List the queues whose names match PATTERN, with their figures.

    PATTERN is a pattern as for KEYS; without it all queues of the backend's database are listed. The command
    does not need a running server, and changes nothing.

    Exit status: 0, or 1 if the backend cannot be reached.
    """
    check_environment(os.environ)
    try:
        uvloop.run(list_queues(Store(**values), pattern, sort, as_json=as_json, say=click.echo))
    except (SettingsError, PatternError) as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error


@cli.command("top", short_help="Show the queues as a live table.", params=shared_options(*_STORE_OPTIONS))
@click.argument("pattern", default="*")
@click.option(
    "--interval",
    help="How long each table is shown.",
    default="1s",
    show_default=True,
    type=Seconds(0.1),
)
def top_command(pattern: str, interval: float, **values: Any) -> None:
    """Show the queues whose names match PATTERN as a live table, until you type q.

    Type m, o, p, t, b or n to sort by messages, age of the oldest message since top
    started, messages put or taken per second, bytes or name. The command does not need a running server, and
    changes nothing.
    """
    check_environment(os.environ)
    if not sys.stdout.isatty():
        raise click.UsageError("top needs a terminal: use pressure-server queues")
    try:
        uvloop.run(show_live(Store(**values), pattern, interval))
    except (SettingsError, PatternError) as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error


_BACKUP_FILE = click.Path(path_type=Path)


@cli.command(
    "backup", short_help="Back up embedded data.", params=shared_options("config", "backend", "data_dir")
)
@click.argument("file", type=_BACKUP_FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup_command(backend: str, data_dir: Path, file: Path, force: bool) -> None:
    """Back up the data of the embedded backend to FILE.

    The server may run or not. The backup has everything that was acknowledged before the command began. It is
    verified when it has been written. If FILE is -, it is written to the standard output, and not verified.

    Exit status: 0 if the backup is complete, 1 if it failed, 2 if an option is wrong.
    """
    check_environment(os.environ)
    try:
        backup_commands.require_embedded(backend)
        # The standard output may be the backup.
        say = partial(click.echo, err=file == backup_commands.STANDARD)
        backup_commands.back_up(data_dir, file, replace=force, say=say)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error


@cli.command(
    "restore", short_help="Restore a backup.", params=shared_options("config", "backend", "data_dir")
)
@click.argument("file", type=_BACKUP_FILE)
@click.option(
    "--force",
    is_flag=True,
    help="Restore into a directory that has data. They are moved into a directory beside the restored data.",
)
def restore_command(backend: str, data_dir: Path, file: Path, force: bool) -> None:
    """Restore a backup of the embedded backend from FILE into a data directory.

    The server must be stopped. The data directory is changed only after the whole backup has been verified.
    If FILE is -, it is read from the standard input. Restore only backups that you trust, because Valkey
    executes the commands in them.

    Exit status: 0 if the data were restored, 1 if not, 2 if an option is wrong.
    """
    check_environment(os.environ)
    try:
        backup_commands.require_embedded(backend)
        backup_commands.restore_backup(data_dir, file, replace=force, say=click.echo)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error


@cli.command(
    "check-data",
    short_help="Check embedded data, or a backup.",
    params=shared_options("config", "backend", "data_dir"),
)
@click.argument("file", type=_BACKUP_FILE, required=False)
@click.option(
    "--repair",
    is_flag=True,
    help="Cut off everything after the first damage. The former files are kept beside the data.",
)
def check_data_command(backend: str, data_dir: Path, file: Path | None, repair: bool) -> int:
    """Check the data of the embedded backend, or the backup in FILE.

    The data are checked with the tools of the included Valkey. Their server must be stopped.

    Exit status: 0 if there is no damage or it was repaired, 1 if there is damage, 2 if the data could not be
    checked.
    """
    check_environment(os.environ)
    try:
        if file is not None:
            if repair:
                raise SettingsError("a backup cannot be repaired: remove --repair")
            return backup_commands.check_backup(file, say=click.echo)
        backup_commands.require_embedded(backend)
        return backup_commands.check_data(data_dir, repair=repair, say=click.echo)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
    except (SettingsError, BackendError) as error:
        # A UsageError exits with status 2; status 1 means that there is damage.
        raise click.UsageError(str(error)) from error


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


def run() -> None:
    """Run the command line and exit: the console script.

    Errors are printed as one line. The exit status is 2 for a wrong option, and 1 if the command fails.
    """
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
