"""`pressure-server backup`, `restore` and `check-data`: the files of the embedded backend."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pressure_server.app.option_types import FILE
from pressure_server.app.options import shared_options
from pressure_server.app.store import EMBEDDED
from pressure_server.backend.backups.archive import Description, read_archive, restore, write_archive
from pressure_server.backend.backups.data_check import check_data, repair_data
from pressure_server.backend.backups.data_snapshot import open_snapshot
from pressure_server.backend.backups.files import DamageError, new_file
from pressure_server.backend.data_directory import DataDirectory, DataError
from pressure_server.errors import BackendError
from pressure_server.net.listener import SettingsError
from pressure_server.text import counted

# Standard input or output, as a FILE.
_STANDARD = Path("-")
_STOPPING = (signal.SIGTERM, signal.SIGHUP)
_STORE_OPTIONS = ("config", "backend", "data_dir")


@click.command("backup", short_help="Back up embedded data.", params=shared_options(*_STORE_OPTIONS))
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup_command(backend: str, data_dir: Path, file: Path, force: bool) -> None:
    """Back up the data of the embedded backend to FILE.

    The server may run or not. The backup has everything that was acknowledged before the command began. It is
    verified when it has been written. If FILE is -, it is written to the standard output, and not verified.

    Exit status: 0 if the backup is complete, 1 if it failed, 2 if an option is wrong.
    """
    data = _embedded_data(backend, data_dir)
    with _work_on(file), open_snapshot(data) as (parts, version):
        if file == _STANDARD:
            if sys.stdout.isatty():
                raise SettingsError("a backup is not text: redirect the output to a file")
            description = write_archive(sys.stdout.buffer, parts, version)
            sys.stdout.buffer.flush()
            click.echo(f"backup written: {_described(description)}", err=True)
            return
        with new_file(file, replace=force) as target:
            description = write_archive(target, parts, version)
            target.seek(0)
            read_archive(target)
    click.echo(f"{file} is a backup: {_described(description)}")


@click.command("restore", short_help="Restore a backup.", params=shared_options(*_STORE_OPTIONS))
@click.argument("file", type=FILE)
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
    data = _embedded_data(backend, data_dir)
    with _work_on(file), click.open_file(file, "rb") as source:
        description, former = restore(source, data, replace=force)
    click.echo(f"{data_dir} has the data of the backup: {_described(description)}")
    if former is not None:
        click.echo(f"the former data are in {former}")


@click.command(
    "check-data",
    short_help="Check embedded data, or a backup.",
    params=shared_options(*_STORE_OPTIONS),
)
@click.argument("file", type=FILE, required=False)
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
    try:
        if file is None:
            return _check_directory(_embedded_data(backend, data_dir), repair=repair)
        if repair:
            raise SettingsError("a backup cannot be repaired: remove --repair")
        with _work_on(file), click.open_file(file, "rb") as source:
            description = read_archive(source)
        click.echo(f"{file} is sound: {_described(description)}")
    except DamageError as error:
        click.echo(str(error))
        return 1
    except BackendError as error:
        # A UsageError exits with status 2; status 1 means that there is damage.
        raise click.UsageError(str(error)) from error
    return 0


def _check_directory(data: DataDirectory, *, repair: bool) -> int:
    if not data.path.is_dir():
        raise SettingsError(f"there is no data directory {data.path}")
    with _work_on(data.path), data.lock():
        parts = check_data(data)
        for part in parts:
            click.echo(f"{part.name}: {part.size:,} bytes, {part.problem or 'sound'}")
        if not any(part.problem for part in parts):
            click.echo(f"the data in {data.path} are sound")
            return 0
        if not parts[0].is_usable:
            raise DamageError(
                "this cannot be repaired, because no part of the damaged file can be used: restore a backup"
            )
        lost = sum(part.size - part.usable for part in parts)
        if not repair:
            raise DamageError(f"--repair would cut off the last {lost:,} bytes, and keep the former files")
        aside = repair_data(data, parts)
        click.echo(f"the last {lost:,} bytes were cut off; the former files are in {aside}")
        if any(part.problem for part in check_data(data)):
            raise DamageError("the data are still damaged: run the command again")
    return 0


def _embedded_data(backend: str, data_dir: Path) -> DataDirectory:
    """Return the data directory. Raise SettingsError if the backend is one that has backups of its own."""
    if backend != EMBEDDED:
        raise SettingsError(
            "this command is for the embedded backend; your own Redis or Valkey (--backend) has its own"
        )
    return DataDirectory(data_dir)


def _described(description: Description) -> str:
    return (
        f"{counted(description.files, 'file')}, {description.size:,} bytes, made {description.created} "
        f"by pressure-server {description.server_version} with Valkey {description.valkey_version}"
    )


@contextlib.contextmanager
def _work_on(path: Path) -> Iterator[None]:
    """Turn OSError into DataError, whose text names the file.

    Let SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that it removes unfinished files.
    """
    former = [signal.signal(number, signal.default_int_handler) for number in _STOPPING]
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from error
    finally:
        for number, handler in zip(_STOPPING, former, strict=True):
            signal.signal(number, handler)
