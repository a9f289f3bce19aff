"""The page of one queue: its figures, messages, jobs and groups, and the clients that wait or have jobs."""

from codecs import getincrementaldecoder
from typing import Any

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.errors import BackendError, QueueDoesNotExistError
from pressure_server.lua.scripts import script_named
from pressure_server.net.client_facts import ClientFacts
from pressure_server.net.handler import Context
from pressure_server.queues.database import Database
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import id_of as job_id_of
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.text import printable
from pressure_server.web.clients_page import client_row
from pressure_server.web.http_requests import (
    CONTEXT,
    STATES,
    USER,
    id_of,
    is_administrator,
    page_number,
    queue_of,
)
from pressure_server.web.overview import Overview

# What has pages of its own: the messages of the list, and the jobs in each state.
_PARTS = ("list", *STATES)
# The states in which the score of a job is the time at which it leaves the state.
_WITH_TIME = ("delayed", "reserved")
# Messages on a page, and bytes of each that are shown.
_MOST = 20
_MOST_BYTES = 4096
_MOST_CLIENTS = 100
_Utf8Decoder = getincrementaldecoder("utf-8")
_COUNTS_OF_GROUP = ("next", "lag", "reserved", "buried", "missed")


async def queue_view(overview: Overview, request: web.Request) -> dict[str, Any]:
    """Return what the console shows of a queue. Raise an HTTPException or BackendError."""
    context = request.app[CONTEXT]
    database, name = queue_of(request, request.query.get("id"), request.query.get("db", "0"))
    key = (database.database_number, name)
    before = [page_number(request, part) * _MOST for part in _PARTS]
    await overview.look_at([key])
    shard = database.shard_of(name)
    if not shard.is_up:
        # A call would wait for --backend-grace.
        raise BackendError("the backend that has the queue is away")
    looked = await shard.keys.call_script(
        script_named("upkeep/look"),
        [base_key(shard.prefix, name)],
        [b"%d" % number for number in (_MOST, _MOST_BYTES, *before)],
        once=False,
    )
    about = {"db": key[0], "id": id_of(name), "name": printable(name)}
    if looked is None or key not in context.survey.queues:
        return {**about, "gone": True}
    now, *pages = looked
    (_, _, messages), *states = pages
    jobs = {
        state: [_job(job, state) for job in some] for state, (_, _, some) in zip(STATES, states, strict=True)
    }
    clients: list[ClientFacts] = []
    # Other users see how many clients wait, and of a client that has jobs only its number.
    if is_administrator(request):
        clients = await context.server.workers.waiting_clients(*key, _MOST_CLIENTS)
        await _add_clients(context.server, jobs["reserved"])
    return {
        **about,
        "row": overview.row(context.survey.queues[key], await context.waiting()),
        "info": await _info(database, name),
        "now": now // 1000 if jobs["delayed"] or jobs["reserved"] else None,
        "list": [{"size": size, **_as_text(data, size)} for size, data in messages],
        "jobs": jobs,
        "pages": {
            part: {"count": count, "before": skipped}
            for part, (count, skipped, _) in zip(_PARTS, pages, strict=True)
        },
        "groups": await _groups(database, name, request[USER]),
        "clients": list(map(client_row, clients)),
    }


async def _info(database: Database, name: bytes) -> dict[str, Any]:
    """Return the settings of a queue, its statistics and the holders of its roles."""
    try:
        about: QueueInfo = (await database.run(verbs.INFO, name))[0]
    except QueueDoesNotExistError:
        return {}
    dead_letter = about.dead_letter.removeprefix(database.prefix_of(name) + b":")
    template = None if about.log else database.policy.template_of(name)
    return {
        "put": about.produced, "put_bytes": about.produced_bytes,
        "taken": about.consumed, "taken_bytes": about.consumed_bytes,
        "overflow": printable(about.overflow), "paused_ms": about.paused,
        "unique": printable(about.unique), "max_deliveries": about.max_deliveries,
        "dead_letter": printable(dead_letter), "dead_letter_id": id_of(dead_letter),
        "timeouts": about.timeouts, "dropped": about.dropped, "max_bytes": about.max_bytes,
        "ack": printable(about.ack), "ack_ttr_ms": about.ack_ttr, "in_flight": about.in_flight,
        "retry_delay_ms": about.retry_delay, "retry_delay_max_ms": about.retry_delay_max,
        "rate": printable(about.rate.replace(b" ", b"/", 1)),
        "ttl_ms": about.ttl, "template": template.pattern if template else "",
        "producer": printable(about.producer),
        "producer_role": "free" if about.producer_is_free else "held",
        "consumer": printable(about.consumer),
        "consumer_role": "free" if about.consumer_is_free else "held",
    }  # fmt: skip


def _as_text(data: bytes, size: int) -> dict[str, str]:
    """Return the beginning of a message: text if it is UTF-8 without control characters, else digits in hex.

    `size` is how many bytes the whole message has. A part of it may end in the middle of a
    character.
    """
    try:
        text = _Utf8Decoder().decode(data, final=len(data) == size)
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    if any(not (char.isprintable() or char in "\r\n\t") for char in text):
        return {"hex": data.hex()}
    return {"text": text}


def _job(job: list[Any], state: str) -> dict[str, Any]:
    """Return a job of lua/upkeep/look.lua; times are in seconds. A reservation by a token has no server."""
    word, score, priority, reserves, age, size, data, count, owner, since = job
    server, _, token = printable(owner).partition(" ")
    return {
        "id": job_id_of(word),
        "priority": priority,
        "reserves": reserves,
        "age": age // 1000,
        "size": size,
        **_as_text(data, size),
        "count": count,
        "server": server,
        "token": token,
        "since": int(since) // 1000 if since else None,
        "until": int(float(score)) // 1000 if state in _WITH_TIME and score != b"inf" else None,
    }


async def _add_clients(context: Context, reserved: list[dict[str, Any]]) -> None:
    """Add to reserved jobs the clients of this server that have them, and the names of other servers."""
    clients = await context.workers.holders({(job["server"], job["token"]) for job in reserved})
    names = {peer.name.rpartition(":")[2]: peer.name for peer in context.broker.peers}
    for job in reserved:
        found = clients.get((job["server"], job["token"]))
        job["client"] = found and client_row(found)
        job["server"] = names.get(job["server"], job["server"])


async def _groups(database: Database, name: bytes, user: User) -> list[dict[str, Any]]:
    """Return the groups of a log, with how many messages each has not taken yet."""
    try:
        found = (await database.run(verbs.GROUP, name, [b"list"]))[0]
    except Exception:  # it is no log, or there is no such queue
        return []
    prefix = database.prefix_of(name)
    base = base_key(prefix, name)
    return [
        {
            "name": printable(key[len(base) + 1 :]),
            "id": id_of(key[len(prefix) + 1 :]),
            **dict(zip(_COUNTS_OF_GROUP, counts, strict=True)),
        }
        for key, *counts in found
        if user.may_access(key[len(prefix) + 1 :])
    ]
