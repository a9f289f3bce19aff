"""`pressure-server doctor`: examine queues, report their problems, and repair them on request."""

from __future__ import annotations

import os
from collections.abc import Callable

from pressure_server.app.settings import Store
from pressure_server.app.store_access import open_store
from pressure_server.net.listen import SettingsError
from pressure_server.queues.names import is_queue_name
from pressure_server.queues.repair.diagnosis import Finding
from pressure_server.queues.repair.doctor import Case, Doctor
from pressure_server.text import printable


async def examine(
    store: Store, queue: str | None, *, repair: bool, wait: float, say: Callable[[str], None]
) -> int:
    """Examine all queues of the store, or one queue, and repair their problems if `repair` is set.

    A client that is inactive for `wait` seconds is considered dead. `say` receives each part of the report.
    Return the exit status: 0 if there are no problems or all were repaired, 1 if problems remain. Raise
    SettingsError if the queue does not exist, and BackendError if the backend fails.
    """
    async with open_store(store) as broker:
        doctor = Doctor(broker.default_database, wait, None if queue is None else os.fsencode(queue))
        return await _examine(doctor, repair, say)


async def _examine(doctor: Doctor, repair: bool, say: Callable[[str], None]) -> int:
    cases: dict[bytes, Case] = {}
    queues = 0
    if doctor.named is None:
        async for names in doctor.queues():
            queues += await doctor.look_for(names, cases)
    else:
        if not is_queue_name(doctor.named):
            raise SettingsError(f"'{printable(doctor.named)}' cannot be a queue's name")
        queues = await doctor.look_for([doctor.named], cases)
        if not queues and not cases and not doctor.unreadable:
            raise SettingsError(f"there is no queue '{printable(doctor.named)}'")
    if cases:
        say(f"queues with possible problems: {len(cases)}; observing them for {doctor.wait:g} seconds\n")
    await doctor.confirm(cases)
    in_trouble = len(cases)
    if repair:
        await doctor.repair(cases, lambda case, findings, done: say(_report(case, findings, done)))
    for case in cases.values():
        say(_report(case, case.lasting(doctor.wait), None))
    for name, reason in doctor.unreadable.items():
        say(f"'{printable(name)}' is named like a queue's key, but does not belong to a queue: {reason}\n")
    say(_summary(queues, in_trouble, len(cases), len(doctor.unreadable), repair))
    return 1 if cases or doctor.unreadable else 0


def _report(case: Case, findings: list[Finding], done: list[str] | None) -> str:
    """Return the report on one queue: its problems, and the repairs `done`, or possible if that is None."""
    queue = case.snapshot
    bound = "does not exist" if queue.bound is None else f"bound {queue.bound or 'none'}"
    lines = [f"queue '{printable(case.name)}' ({bound}, messages: {queue.length})"]
    for finding in findings:
        lines += [f"  {finding.problem.name}: {finding.evidence}", f"    it means: {finding.problem.means}"]
        if done is None:
            lines.append(f"    --repair would: {finding.problem.remedy}")
    if done is not None:
        lines.append("  done: " + (", ".join(done) or "nothing, because the queue changed in the meantime"))
    return "\n".join(lines) + "\n"


def _summary(queues: int, in_trouble: int, left: int, unreadable: int, repair: bool) -> str:
    found = []
    if unreadable:
        found.append(f"{_counted(unreadable, 'key')} unreadable")
    if in_trouble and repair:
        found.append(f"{in_trouble} with problems, {in_trouble - left} repaired, {left} not repaired")
    elif in_trouble:
        found.append(f"{in_trouble} with problems; nothing was changed, use --repair")
    return f"{_counted(queues, 'queue')} checked: {', '.join(found) or 'no problems'}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
