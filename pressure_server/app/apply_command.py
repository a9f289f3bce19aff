"""`pressure-server queues apply`: give existing queues the settings that the --config file has for them."""

from typing import Any

import click
import uvloop

from pressure_server.app.options import STORE_OPTIONS, config_path, shared_options
from pressure_server.app.queue_sections import read_templates
from pressure_server.app.store import Store, open_store
from pressure_server.errors import BACKEND_LOST, PressureError, QueueDoesNotExistError
from pressure_server.net.listener import SettingsError
from pressure_server.queues.calls.direct import call_directly
from pressure_server.queues.database import Database
from pressure_server.queues.names import base_key, records_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.block_reply import Done, read_reply
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.operations.queue_options import ALTER_OPTIONS, Alteration, Rate, alteration_of
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from pressure_server.queues.templates import QueueTemplate
from pressure_server.text import printable


@click.command(
    "apply", short_help="Alter the queues as --config says.", params=shared_options(*STORE_OPTIONS)
)
@click.option("--dry-run", is_flag=True, help="Print the changes, and alter no queue.")
def apply_command(dry_run: bool, **values: Any) -> int:
    """Alter the existing queues to what the --config file says.

    A queue whose name matches a section [queues."PATTERN"] gets the options of the first such section, as by
    PRESSURE.ALTER. Options that the section does not have stay as they are. Each change is printed. No server
    need run.

    Exit status: 0, or 1 if a setting cannot be altered, or the backend cannot be reached.
    """
    path = config_path()
    if path is None:
        raise SettingsError("name the file with the sections by --config")
    return uvloop.run(_apply(Store(**values), Policy(templates=read_templates(path)), dry_run=dry_run))


async def _apply(store: Store, policy: Policy, *, dry_run: bool) -> int:
    is_complete = True
    async with open_store(store) as broker:
        database = broker.default_database
        names = [name async for name in database.queues()]
        for name, template in ((name, policy.template_of(name)) for name in sorted(names)):
            if template is not None:
                is_complete = await _alter(database, name, template, dry_run=dry_run) and is_complete
    return 0 if is_complete else 1


async def _run_alter(shard: Shard, name: bytes, alteration: Alteration) -> None:
    """Alter a queue. Raise a PressureError.

    A queue that a put has created still expires. The call names the key of this process's records, from which
    the library derives others, but keeps no record: no server would recover it.
    """
    keys = [base_key(shard.prefix, name), records_key(shard.prefix, shard.identity)]
    arguments = [*alteration.arguments(shard.prefix), b"implicit", b"1"]
    block = [b"alter", b"%d" % len(arguments), *arguments]
    done: object = None
    while not isinstance(done, Done):  # the library may have jobs to do first, which are due
        reply = await call_directly(shard, keys, block, changes=True)
        done = read_reply(reply, runs=1)
    if isinstance(done.results[0], Exception):
        raise exception_for(name, str(done.results[0]))


async def _alter(database: Database, name: bytes, template: QueueTemplate, *, dry_run: bool) -> bool:
    """Alter one queue, and print what changes. Return whether it has all settings of the template."""
    try:
        about: QueueInfo = (await database.run(verbs.INFO, name))[0]
    except QueueDoesNotExistError:
        return True
    shown: list[str] = []
    changes: dict[bytes, Any] = {}
    is_complete = True
    # The queue of a group has the settings of its log.
    for option, wanted in () if about.log else template.options.items():
        present = _present(about, option, type(wanted), database.prefix_of(name))
        if present == wanted:
            continue
        shown.append(f"{option.decode().lower()} {_shown(present)} -> {_shown(wanted)}")
        if option in ALTER_OPTIONS:
            changes[option] = wanted
        else:
            is_complete = False
            shown[-1] += " (cannot be altered: delete the queue when it is empty)"
    try:
        if changes and not dry_run:
            database.prefix_of(name, changes.get(b"DEAD-LETTER", name))
            await _run_alter(database.shard_of(name), name, alteration_of(changes))
    except BACKEND_LOST:
        raise
    except PressureError as error:
        is_complete = False
        shown.append(f"refused: {error}")
    if shown:
        click.echo(f"{printable(name)}: {', '.join(shown)}")
    return is_complete


def _present(about: QueueInfo, option: bytes, kind: type, prefix: bytes) -> Any:
    """Return the present value of an option of PRESSURE.CREATE: each has a field in QueueInfo."""
    value = getattr(about, option.decode().lower().replace("-", "_"))
    if option == b"DEAD-LETTER":
        return value.removeprefix(prefix + b":")
    if kind is Rate:
        jobs, milliseconds = map(int, (value or b"0 1000").split())
        return Rate(jobs, milliseconds / 1000)
    return value / 1000 if kind is float else value


def _shown(value: object) -> str:
    if isinstance(value, Rate):
        return f"{value.jobs}/{value.seconds:g}"
    if isinstance(value, bytes):
        return printable(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
