"""The sections Keyspace and Queues of INFO: the queues of all databases in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from handlers.resp.session import RespSession
from pressure_server.errors import PressureError
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Line

# Monitoring calls INFO every few seconds. So a scan of limited length finds the queues of each database, and
# at most this many are listed.
_QUEUE_LINES = 128


def _databases(client: RespSession) -> list[Database]:
    """Return the databases that clients of this server have used, by number."""
    return sorted(client.context.broker.databases, key=lambda database: database.database_number)


async def _some_queues(client: RespSession, database: Database) -> tuple[list[bytes], bool]:
    """Return queues that the user may use, and whether the scan has seen all queues."""
    names, complete = await database.sample_queues()
    return list(filter(client.user.may_access, names)), complete


async def keyspace_fields(client: RespSession) -> dict[str, object]:
    """Return the number of queues in each database."""
    fields: dict[str, object] = {}
    for database in _databases(client):
        names, _complete = await _some_queues(client, database)
        if names:
            fields[f"db{database.database_number}"] = f"keys={len(names)},expires=0,avg_ttl=0"
    return fields


async def queue_fields(client: RespSession) -> dict[str, object]:
    """Return a line for each queue, those of the selected database first."""
    lines: dict[str, object] = {}
    is_complete, room = True, _QUEUE_LINES
    for database in sorted(_databases(client), key=lambda database: database is not client.database):
        names, complete = await _some_queues(client, database)
        is_complete = is_complete and complete and len(names) <= room
        listed = sorted(names)[:room]
        room -= len(listed)
        prefix = "" if database is client.database else f"db{database.database_number}_"
        for name, about in zip(listed, await database.run_each(verbs.INFO, listed), strict=True):
            if not isinstance(about, PressureError):
                line = ",".join(_fields_of(client, database, name, about))
                lines[f"{prefix}queue_{quote(name, safe='')}"] = line
    return {"queues_listed": _QUEUE_LINES - room, "queues_complete": int(is_complete), **lines}


def _fields_of(client: RespSession, database: Database, name: bytes, about: list[Any]) -> Iterator[str]:
    """Yield the fields of a queue's line. `about` is the reply to verbs.INFO."""
    yield f"length={about[1]},bound={about[0]},closed={about[2]}"
    yield f"produced={about[7]},produced_bytes={about[8]},consumed={about[9]},consumed_bytes={about[10]}"
    waiting = database.waiting_on(name)
    yield f"waiting_producers={waiting[Line.PRODUCERS]},waiting_consumers={waiting[Line.CONSUMERS]}"
    survey = client.context.survey
    surveyed = survey and survey.queues.get((database.database_number, name))
    if surveyed:
        yield f"oldest_seconds={surveyed.age if about[1] else 0:.0f}"
    kind = about[12].decode()
    yield f"type={kind}"
    if kind not in ("fifo", "log"):
        ready, delayed, reserved, buried, paused = about[13:18]
        yield f"ready={ready},delayed={delayed},reserved={reserved},buried={buried},paused_ms={paused}"
