"""Jobs: commands that reserve messages, and those that end or change a reservation."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import priority_of, token_of
from handlers.resp.commands import encoders
from handlers.resp.options import OptionTable
from handlers.resp.parser import Words
from handlers.resp.replies import OK, NullArray
from handlers.resp.session import Caller
from pressure_server.errors import CommandError
from pressure_server.queues.database import UP_TO_COUNT
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import (
    Pending,
    ReservedJob,
    claim,
    detached,
    id_of,
    owned,
    owned_between,
    released,
    reserved_as,
    word_of,
)
from pressure_server.queues.operations.operation import Encode, Verb
from pressure_server.queues.operations.options import DEFAULT, WAITS
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.queue_operations import BURIED, DELAYED, READY, RESERVED, purge, redrive
from pressure_server.queues.queue_operations import kick as kick_jobs
from pressure_server.queues.transaction import Transaction
from pressure_server.words import count_from_zero, positive_count, seconds_of, timeout_of

command = partial(table.command, group="jobs")

# Each queue needs an operation, which may wait.
_MAX_QUEUES = 10_000
_MAX_JOBS = 1000
_ALL = 2**53
# Ids between FROM and TO. One word of an operation names some of them.
_MAX_SPAN, _IDS_OF_WORD = 64_000, 500
# What PRESSURE.PENDING shows.
_SHOWN, _MAX_SHOWN = 100, 1000
_PURGED = {b"READY": READY, b"DELAYED": DELAYED, b"RESERVED": RESERVED, b"BURIED": BURIED}
_STATES = {b"READY": b"ready", b"DELAYED": b"delayed", b"BURIED": b"buried"}

# The fields of PRESSURE.JOB, in the order of the library's reply.
_JOB_FIELDS = (
    b"state", b"priority", b"age_ms", b"delay_ms", b"ttr_ms", b"time_left_ms", b"origin",
    b"reserves", b"timeouts", b"releases", b"buries", b"kicks",
)  # fmt: skip
_PARSERS: Mapping[bytes, Callable[[bytes], Any]] = {
    b"TIMEOUT": timeout_of,
    b"IDLE": seconds_of,
    b"TTR": seconds_of,
    b"COUNT": positive_count,
    b"CONSUMER": token_of,
    b"DETACHED": token_of,
    b"TOKEN": token_of,
    b"TO": bytes,
    b"PRIORITY": priority_of,
    b"DELAY": seconds_of,
}


def _table(*names: bytes) -> OptionTable:
    return OptionTable({name: _PARSERS[name] for name in names})


_RESERVE = _table(b"TIMEOUT", b"TTR", b"COUNT", b"DETACHED")
_EVENT = _table(b"TOKEN")
_PENDING = _table(b"CONSUMER", b"COUNT")
_CLAIM = _table(b"IDLE", b"COUNT", b"TTR")
_RELEASE = _table(b"PRIORITY", b"DELAY", b"TOKEN")
_BURY = _table(b"PRIORITY", b"TOKEN")
_REDRIVE = _table(b"TO", b"COUNT")
_PURGE = OptionTable(dict.fromkeys(_PURGED))


def _check_reserve(client: Caller, count: int) -> None:
    if count > _MAX_JOBS:
        raise CommandError(f"ERR too many jobs: at most {_MAX_JOBS}")
    if isinstance(client.database, Transaction):
        raise CommandError("ERR jobs cannot be reserved in a transaction")


def _owner(client: Caller, options: dict[bytes, Any]) -> bytes:
    token = options.get(b"DETACHED") or options.get(b"TOKEN")
    return client.session.job_owner if token is None else detached(token)


@command(
    "PRESSURE.RESERVE key [key ...] [TIMEOUT seconds] [TTR seconds] [COUNT count] [DETACHED token]",
    needs="get",
    flags="write blocking",
)
def reserve(client: Caller, words: Words) -> Coroutine[Any, Any, object] | None:
    """Reserves the best job of the queues: the lowest priority, then the oldest. Waits up to TIMEOUT seconds
    (0: forever). Replies queue, id, message and the number of reservations so far; with COUNT a list of
    these. The job returns to its queue after TTR seconds, or when the connection ends, unless the reservation
    is DETACHED: then it belongs to the token.
    """
    # In a queue that is not of the type jobs, reserve the oldest messages.
    names, options = _RESERVE.after_names(words[1:])
    count = options.get(b"COUNT", 1)
    if len(names) > _MAX_QUEUES:
        raise CommandError(f"ERR too many queues: at most {_MAX_QUEUES}")
    _check_reserve(client, count)
    wanted = claim(_owner(client, options), options.get(b"TTR"))
    names = list(dict.fromkeys(names))
    if len(names) > 1:
        return _reserve_from_many(client, names, wanted, options)
    encode = encoders.reserved_jobs if b"COUNT" in options else encoders.reserved_job
    wait = Wait(options[b"TIMEOUT"]) if b"TIMEOUT" in options else None
    how = DEFAULT if wait is None else WAITS if count == 1 else UP_TO_COUNT
    client.submit(verbs.RESERVE, names[0], [wanted] * count, count, encode, wait=wait, options=how)
    return None


async def _reserve_from_many(
    client: Caller, names: list[bytes], wanted: bytes, options: dict[bytes, Any]
) -> object:
    count, timeout = options.get(b"COUNT", 1), options.get(b"TIMEOUT", 0)
    database = client.session.database
    found = await database.reserve(names, wanted, timeout, count, client.session)
    if found is None:
        return NullArray()
    jobs = [[found[0], job.id, job.message, job.reserves] for job in map(ReservedJob.of, found[1])]
    return jobs if b"COUNT" in options else jobs[0]


def _submit_event(client: Caller, words: Words, verb: Verb, encode: Encode) -> None:
    """Let an event happen to jobs of one queue; the reply is for how many it did."""
    if len(words) > 5 and words[2].upper() == b"FROM" and words[4].upper() == b"TO":
        spans = [(positive_count(words[3]), positive_count(words[5]))]
        options = _EVENT.values(words[6:])
        if not 0 <= spans[0][1] - spans[0][0] < _MAX_SPAN:
            raise CommandError(f"ERR TO must be 0 to {_MAX_SPAN - 1} above FROM")
    else:
        ids, options = _EVENT.after_names(words[2:])
        spans = _spans(map(positive_count, ids))
    owner = _owner(client, options)
    jobs = [
        owned(start, owner) if start == end else owned_between(start, end, owner)
        for first, last in spans
        for start in range(first, last + 1, _IDS_OF_WORD)
        for end in [min(last, start + _IDS_OF_WORD - 1)]
    ]
    client.submit(verb, words[1], jobs, len(jobs), encode)


def _spans(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each series of ids, each of which is one more than the one before."""
    spans: list[tuple[int, int]] = []
    for job in ids:
        if spans and spans[-1][1] == job - 1:
            spans[-1] = (spans[-1][0], job)
        else:
            spans.append((job, job))
    return spans


@command("PRESSURE.ACK key [id ...] [TOKEN token]", needs="get", flags="write fast")
def ack(client: Caller, words: Words) -> None:
    """Deletes jobs that are done: those that the caller has reserved, and any that nobody has. Replies how
    many. `FROM first TO last` names all jobs between two ids. Without ids, acknowledges what this connection
    has popped from a queue with ACK NEXT.
    """
    if len(words) > 2:
        _submit_event(client, words, verbs.DELETE_JOB, encoders.ended_reservations)
        return
    session = client.session
    popped = session.reserved_jobs.popped_from(session.database, words[1])
    jobs = [reserved_as(*job, session.job_owner) for job in popped]
    if jobs:
        client.submit(verbs.DELETE_JOB, words[1], jobs, len(jobs), encoders.acknowledged_pops)
    else:
        client.reply(b":0\r\n")


@command("PRESSURE.PENDING key [CONSUMER token] [COUNT count]", needs="read", flags="readonly")
async def pending(client: Caller, words: Words) -> list[object]:
    """Describes reservations, in the order in which they end: the first and the last id of jobs that are
    reserved together, the offset of the first one in the log of a group or nil, the token that has reserved
    them or nil for a connection, in how many milliseconds that ends (-1: never), and the number of
    reservations. Up to COUNT entries, 100 by default. A transaction looks at the first thousand only.
    """
    options = _PENDING.values(words[2:])
    count, token = options.get(b"COUNT", _SHOWN), options.get(b"CONSUMER")
    if count > _MAX_SHOWN:
        raise CommandError(f"ERR too many entries: at most {_MAX_SHOWN}")
    found: list[object] = []
    position, is_more = 0, True
    while is_more and len(found) < count:
        arguments = [b"%d" % position, b"%d" % _MAX_SHOWN]
        (some,) = await client.database.run(verbs.PENDING, words[1], arguments, client=client.session)
        found += [one for one in map(Pending.of, some) if token is None or one.token == token]
        # A transaction does one look: a second one would wait for an end that does not come.
        position, is_more = position + len(some), len(some) == _MAX_SHOWN and client.database.can_wait
    return found[:count]


@command("PRESSURE.CLAIM key token [IDLE seconds] [COUNT count] [TTR seconds]", needs="get", flags="write")
def claim_(client: Caller, words: Words) -> None:
    """Takes over jobs that others have reserved and not touched for IDLE seconds (0 by default). The server
    looks at the thousand reservations that end first. It replies a list with id, message, number of
    reservations and, in the queue of a group, offset for each; nil if there are none. Up to COUNT jobs, 1 by
    default.
    """
    options = _CLAIM.values(words[3:])
    count = options.get(b"COUNT", 1)
    _check_reserve(client, count)
    wanted = claim(detached(token_of(words[2])), options.get(b"TTR"))
    arguments = [wanted, b"%d" % round(options.get(b"IDLE", 0) * 1000), b"%d" % count]
    client.submit(verbs.CLAIM, words[1], arguments, count, encoders.delivered_jobs)


@command("PRESSURE.TOUCH key id|FROM [id ...] [TOKEN token]", needs="get", flags="write fast")
def touch(client: Caller, words: Words) -> None:
    """Extends reservations: the time to run begins again. Replies how many. `FROM first TO last` names all
    jobs between two ids.
    """
    _submit_event(client, words, verbs.TOUCH, encoders.sums)


@command(
    "PRESSURE.RELEASE key id [PRIORITY priority] [DELAY seconds] [TOKEN token]",
    needs="get",
    flags="write fast",
)
def release(client: Caller, words: Words) -> None:
    """Gives a reserved job back: it is ready again at once, or after the DELAY. Replies 1; 0 if the
    caller has not reserved it.
    """
    # A priority or a delay makes the queue one of the type jobs.
    options = _RELEASE.values(words[3:])
    job = positive_count(words[2])
    delay = options.get(b"DELAY")
    is_now = delay == 0
    argument = released(job, _owner(client, options), options.get(b"PRIORITY"), delay or 0, is_now=is_now)
    client.submit(verbs.RELEASE, words[1], [argument], 1, encoders.ended_reservations)


@command("PRESSURE.BURY key id [PRIORITY priority] [TOKEN token]", needs="get", flags="write fast")
def bury(client: Caller, words: Words) -> None:
    """Sets a reserved job aside until it is kicked. Replies 1; 0 if the caller has not reserved it."""
    options = _BURY.values(words[3:])
    job, priority = positive_count(words[2]), options.get(b"PRIORITY")
    argument = owned(job, _owner(client, options)) + (b"" if priority is None else b" %d" % priority)
    client.submit(verbs.BURY, words[1], [argument], 1, encoders.ended_reservations)


@command("PRESSURE.KICK key [count]", needs="administer", flags="write")
async def kick(client: Caller, words: Words) -> int:
    """Makes up to count buried jobs ready; if none are buried, delayed jobs. Replies how many."""
    count = count_from_zero(words[2]) if len(words) > 2 else 1
    return await kick_jobs(client.database, words[1], count, client.session)


@command("PRESSURE.REDRIVE key [TO queue] [COUNT count]", needs="administer", flags="write")
async def redrive_(client: Caller, words: Words) -> int:
    """Puts dead letters back into the queues from which they came, or into the queue TO, as if they had never
    been delivered. Replies how many. Those that do not fit stay. Replies an error if none can go.
    """
    options = _REDRIVE.values(words[2:])
    to = options.get(b"TO")
    if to == words[1]:
        raise CommandError("ERR TO must be another queue")
    if to is not None and not client.session.user.may_access(to):
        raise CommandError("NOPERM this user has no permissions to access the queue TO")
    base = b"" if to is None else base_key(client.database.prefix_of(words[1], to), to)
    most = options.get(b"COUNT", _ALL)
    return await redrive(client.database, words[1], base, most, client.session)


@command("PRESSURE.PURGE key [READY] [DELAYED] [RESERVED] [BURIED]", needs="get administer", flags="write")
async def purge_(client: Caller, words: Words) -> int:
    """Deletes the messages in these states, by default all that are not reserved, and returns how many. They
    count as consumed. All messages of a queue without jobs are ready.
    """
    states = _PURGE.values(words[2:])
    wanted = [_PURGED[state] for state in states] or [READY, DELAYED, BURIED]
    return await purge(client.database, words[1], wanted, client.session)


@command("PRESSURE.PAUSE key seconds", needs="administer", flags="write")
async def pause(client: Caller, words: Words) -> str:
    """Pauses a queue: for these seconds, nobody takes or reserves its jobs. 0 ends the pause.
    A fifo becomes a queue of the type jobs, for good.
    """
    pause_for = round(seconds_of(words[2]) * 1000)
    await client.database.run(verbs.PAUSE, words[1], [b"%d" % pause_for])
    return OK


@command("PRESSURE.PEEK key id|READY|DELAYED|BURIED", needs="read", flags="readonly")
async def peek(client: Caller, words: Words) -> object:
    """Replies id and message of that job, or of the next job in that state; nil if there is none."""
    which = _STATES.get(words[2].upper()) or word_of(positive_count(words[2]))
    (found,) = await client.database.run(verbs.PEEK_JOB, words[1], [which])
    return [id_of(found[0]), found[1]] if found else NullArray()


@command("PRESSURE.JOB key id", needs="read", flags="readonly")
async def job(client: Caller, words: Words) -> object:
    """Describes a job: state, priority, times in milliseconds, the queue from which a dead letter came, and
    how often each event happened to it.
    """
    (found,) = await client.database.run(verbs.JOB_INFO, words[1], [word_of(positive_count(words[2]))])
    return dict(zip(_JOB_FIELDS, found, strict=True)) if found else NullArray()
