"""`pressure-server doctor`: examine queues, report their problems, and repair them on request."""

import os
from typing import Any

import click
import uvloop

from pressure_server.app.option_types import Seconds
from pressure_server.app.options import STORE_OPTIONS, shared_options
from pressure_server.app.store import Store, open_store
from pressure_server.errors import BackendError
from pressure_server.net.listener import SettingsError
from pressure_server.queues.names import is_queue_name
from pressure_server.queues.peers import have_equal_templates
from pressure_server.queues.repair import Case, Doctor, Finding
from pressure_server.text import counted, printable


@click.command("doctor", short_help="Find and repair stuck queues.", params=shared_options(*STORE_OPTIONS))
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

    Exit status: 0 if there are no problems or all were repaired, 1 if problems remain, 2 if queues
    could not be checked, for example because a shard is away.
    """
    try:
        return uvloop.run(_examine(Store(**values), queue, repair, wait))
    except BackendError as error:
        # A UsageError exits with status 2; status 1 means that problems were found.
        raise click.UsageError(str(error)) from error


async def _examine(store: Store, queue: str | None, repair: bool, wait: float) -> int:
    """Examine all queues of the store, or one, and print each part of the report. Return the exit status."""
    async with open_store(store) as broker:
        doctor = Doctor(broker.default_database, wait, None if queue is None else os.fsencode(queue))
        queues = 0
        if doctor.named is None:
            async for names in doctor.queues():
                queues += await doctor.look_for(names)
        else:
            if not is_queue_name(doctor.named):
                raise SettingsError(f"'{printable(doctor.named)}' cannot be a queue's name")
            queues = await doctor.look_for([doctor.named])
            if not queues and not doctor.cases and not doctor.unreadable:
                raise SettingsError(f"there is no queue '{printable(doctor.named)}'")
        if doctor.cases:
            click.echo(
                f"queues with possible problems: {len(doctor.cases)}; observing them for "
                f"{counted(doctor.wait, 'second')}\n"
            )
        await doctor.confirm()
        in_trouble = len(doctor.cases)
        if repair:
            await doctor.repair(lambda case, findings, done: click.echo(_report(case, findings, done)))
        for case in doctor.cases.values():
            click.echo(_report(case, case.lasting(doctor.wait), None))
        for name, reason in doctor.unreadable.items():
            click.echo(
                f"'{printable(name)}' is named like a queue's key, but does not belong to a queue: {reason}\n"
            )
        if not all([await have_equal_templates(one) for one in broker.default_database.reachable_shards]):
            click.echo(
                "servers on this backend have different settings of new queues (--default-bound, or [queues] "
                "in --config): a queue gets the settings of the server that creates it\n"
            )
        click.echo(_summary(queues, in_trouble, len(doctor.cases), len(doctor.unreadable), repair))
        if doctor.missing:
            raise BackendError("queues are missing: " + "; ".join(map(str, doctor.missing)))
        return 1 if doctor.cases or doctor.unreadable else 0


def _report(case: Case, findings: list[Finding], done: list[str] | None) -> str:
    """Return the report on one queue: its problems, and the repairs `done`, or possible if that is None."""
    queue = case.snapshot
    bound = "does not exist" if queue.bound is None else f"bound {queue.bound or 'none'}"
    lines = [f"queue '{printable(case.name)}' ({bound}, messages: {queue.length})"]
    for finding in findings:
        lines += [f"  {finding.name}: {finding.evidence}", f"    it means: {finding.means}"]
        if done is None:
            lines.append(f"    --repair would: {finding.remedy}")
    if done is not None:
        lines.append("  done: " + (", ".join(done) or "nothing, because the queue changed in the meantime"))
    return "\n".join(lines) + "\n"


def _summary(queues: int, in_trouble: int, left: int, unreadable: int, repair: bool) -> str:
    found = []
    if unreadable:
        found.append(f"{counted(unreadable, 'key')} unreadable")
    if in_trouble and repair:
        found.append(f"{in_trouble} with problems, {in_trouble - left} repaired, {left} not repaired")
    elif in_trouble:
        found.append(f"{in_trouble} with problems; nothing was changed, use --repair")
    return f"{counted(queues, 'queue')} checked: {', '.join(found) or 'no problems'}"
