"""Puts with options, and puts with a transaction id, which are done once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from handlers.resp.arguments import expiry_of, options_in, priority_of, token_of
from handlers.resp.commands.encoders import integers, job_ids, ones
from handlers.resp.parser import Repeated, Words
from handlers.resp.session import Caller, RespSession
from handlers.resp.table import command
from pressure_server.errors import CommandError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import job_to_put
from pressure_server.queues.operations.operation import Encode
from pressure_server.queues.operations.options import OnFull, Options
from pressure_server.queues.operations.outcomes import Outcome, first_word
from pressure_server.queues.operations.wait import Wait
from pressure_server.words import seconds_of, syntax_error, timeout_of

_PUT = {
    b"NX": None,
    b"NOWAIT": None,
    b"TIMEOUT": timeout_of,
    b"OVERFILL": None,
    b"OVERWRITE": None,
    b"PRIORITY": priority_of,
    b"DELAY": seconds_of,
    b"TTR": seconds_of,
    b"UNIQUE": None,
    b"UNIQUE-BY": bytes,
    b"OFFSET": None,
    b"TXN": token_of,
    b"EXPIRE": expiry_of,
}
_ON_FULL = {b"OVERFILL": OnFull.EXCEED_BOUND, b"OVERWRITE": OnFull.OVERWRITE, b"TIMEOUT": OnFull.WAIT}
# Options without a value, or with one that each command has of its own, and that need no wait and no job.
_FLAGS = {b"NX", b"OVERFILL", b"OVERWRITE", b"OFFSET", b"TXN"}
_OF_JOBS = {b"PRIORITY": "priority", b"DELAY": "delay", b"TTR": "ttr", b"UNIQUE-BY": "key"}


class _How(NamedTuple):
    """How the options of a put are done: what they need of the library, and the encoder of the replies.

    `job` has what its message needs to become a job. `expire` is after how many seconds a message that is no
    job expires; 0 for never.
    """

    options: Options
    encode: Encode
    job: dict[str, Any] | None
    expire: float = 0


def _how(given: dict[bytes, Any]) -> _How:
    """Return what options mean. Raise CommandError if they cannot be combined."""
    if given.keys() >= {b"NOWAIT", b"TIMEOUT"}:
        raise syntax_error("NOWAIT and TIMEOUT exclude each other")
    job = {name: given[option] for option, name in _OF_JOBS.items() if option in given}
    is_job = bool(job) or b"UNIQUE" in given
    if b"OVERWRITE" in given and given.keys() - {b"OVERWRITE", b"OFFSET", b"TXN"}:
        raise CommandError("ERR OVERWRITE can be combined with OFFSET and TXN only")
    if b"OFFSET" in given and (is_job or b"NX" in given):
        raise CommandError("ERR OFFSET cannot be combined with NX or the options of jobs")
    expire = given.get(b"EXPIRE", 0)
    if expire and given.keys() & {b"NX", b"OFFSET", b"TXN"}:
        raise CommandError("ERR EXPIRE cannot be combined with NX, OFFSET or TXN")
    if is_job and expire:
        job["expire"] = expire
    if is_job and b"NX" in given:
        raise CommandError("ERR NX cannot be combined with the options of jobs: use UNIQUE")
    on_full = next((when for option, when in _ON_FULL.items() if option in given), OnFull.CONFIGURED)
    options = Options(
        must_exist=True,
        unique=b"NX" in given or b"UNIQUE" in given,
        on_full=on_full,
        has_flags=bool(expire) and not is_job,
        is_job=is_job,
        has_key=b"UNIQUE-BY" in given,
        has_offset=b"OFFSET" in given,
        once=b"TXN" in given,
    )
    is_count = options.unique or options.has_offset or on_full is OnFull.OVERWRITE
    return _How(
        options, job_ids if is_job else integers if is_count else ones, job if is_job else None, expire
    )


@lru_cache(maxsize=256)
def _how_without_values(words: tuple[bytes, ...]) -> _How | None:
    """Return what options mean if all are flags, apart from TXN, which is without its id here; else None."""
    names = [word.upper() for word in words]
    if not _FLAGS.issuperset(names) or len(set(names)) < len(names):
        return None
    return _how(dict.fromkeys(names, True))


def _put_repeated(client: RespSession, commands: Repeated) -> None:
    name, messages, columns = commands.words[1], commands.thirds, list(commands.rest)
    at = next((at for at, column in enumerate(columns) if column[0].upper() == b"TXN"), len(columns))
    ids = columns.pop(at + 1) if at + 1 < len(columns) else None
    are_equal = all(column.count(column[0]) == commands.count for column in columns)
    how = _how_without_values(tuple(column[0] for column in columns)) if are_equal else None
    size = 1
    try:
        if how is None or how.options.once != (ids is not None):
            raise syntax_error()
        if ids is not None:
            firsts = [first_word(client.database.policy, token_of(one)) for one in ids]
            messages = [word for pair in zip(firsts, messages, strict=True) for word in pair]
            size = 2
    except CommandError:
        client.execute_instead(commands.requests())
        return
    client.submit(verbs.PUT, name, messages, size, how.encode, commands=commands.count, options=how.options)


@command(
    "PRESSURE.PUT key message [NX] [NOWAIT] [TIMEOUT seconds] [OVERFILL] [OVERWRITE] [PRIORITY "
    "priority] [DELAY seconds] [TTR seconds] [UNIQUE] [UNIQUE-BY name] [OFFSET] [TXN id] [EXPIRE "
    "seconds]",
    group="pressure",
    needs="put",
    flags="write denyoom",
    repeated=_put_repeated,
    repeats_options=True,
)
def put(client: Caller, words: Words) -> None:
    """Puts a message and returns 1; with NX, returns 0 if it is queued already. If the queue is full, the
    overflow setting applies; TIMEOUT waits for room, NOWAIT fails at once, OVERFILL exceeds the bound.
    OVERWRITE drops the oldest message, and returns how many it has dropped: 0 or 1. With PRIORITY, DELAY, TTR
    (time to run) or UNIQUE, the message is a job, and its id is returned; UNIQUE returns the id of an equal
    job instead if one is queued. UNIQUE-BY compares names instead of messages, in a queue that was created
    with UNIQUE. OFFSET returns the message's offset in a log. TXN gives the put an id: sent again with the
    same id, it is not done again, and returns the same. A message that is not taken within EXPIRE seconds is
    dropped.
    """
    # The queue must exist. A timeout of 0 seconds waits forever.
    given = options_in(words[3:], _PUT)
    how = _how(given)
    wait = None
    if b"NOWAIT" in given:
        wait = Wait(0, for_role=False)
    elif b"TIMEOUT" in given:
        wait = Wait(given[b"TIMEOUT"])
    message = words[2]
    if how.job is not None:
        message = job_to_put(message, **how.job)
    elif how.expire:
        message = b"0 +%.3f %b" % (how.expire, message)  # flags, expiry (lua/kinds/marks.lua)
    messages = [message]
    if how.options.once:
        messages.insert(0, first_word(client.session.database.policy, given[b"TXN"]))
    client.submit(verbs.PUT, words[1], messages, len(messages), how.encode, wait=wait, options=how.options)


@command("PRESSURE.TXN id", group="pressure", needs="nothing", flags="fast")
def txn(client: Caller, words: Words) -> None:
    """Gives the next SADD, LPUSH or RPUSH of this connection an id. If it is sent again with the same id, on
    any connection, it puts nothing, and returns the same. All its messages are put together, or none.
    """
    client.session.transaction_id = token_of(words[1])
    client.reply(b"+OK\r\n")


@command("PRESSURE.OUTCOME key id", group="pressure", needs="put", flags="fast")
async def outcome(client: Caller, words: Words) -> list[object]:
    """Tells what became of a put with that TXN id: done, with its offset in a log; unknown: it has not been
    done; or forgotten, with a number of seconds: it has not been done if it was sent less than that ago.
    """
    (found,) = await client.database.run(verbs.OUTCOME, words[1], [token_of(words[2])])
    about = Outcome.of(found)
    return [about.state, about.offset if about.seconds is None else int(about.seconds)]
