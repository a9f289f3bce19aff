"""Puts with options, and puts with a transaction id, which are done once."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, NamedTuple

from handlers.resp.arguments import options_in, priority_of, seconds_of, timeout_of, token_of
from handlers.resp.commands.encoders import integers, job_ids, ones
from handlers.resp.parser import Repeated, Words
from handlers.resp.replies import CommandError, syntax_error
from handlers.resp.session import Caller, RespSession
from handlers.resp.table import command
from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import job_to_put
from pressure_server.queues.operations.operation import Encode
from pressure_server.queues.operations.options import DEFAULT, OnFull, Options
from pressure_server.queues.operations.outcomes import Outcome, first_word
from pressure_server.queues.operations.wait import Wait


def submit_put(
    client: Caller, name: bytes, messages: list[bytes], encode: Encode, options: Options = DEFAULT
) -> Coroutine[Any, Any, int] | None:
    """Put the messages of one command, with the transaction id that the client has given for it, if any."""
    transaction = client.transaction_id
    if transaction is None:
        if len(messages) > _MOST_AT_ONCE and isinstance(client, RespSession):
            return _put_in_portions(client, name, messages, options)
        client.submit(verbs.PUT, name, messages, len(messages), encode, options=options)
        return None
    session = client.session
    session.transaction_id = None
    messages = [first_word(session.database.policy, transaction), *messages]
    options = options._replace(once=True)
    client.submit(verbs.PUT, name, messages, len(messages), encode, options=options)
    if session.is_held:
        session.transaction_id = transaction  # the command will be executed again
    return None


async def _put_in_portions(client: RespSession, name: bytes, messages: list[bytes], options: Options) -> int:
    """Put very many messages; return the queue's length or, with `unique`, how many were new.

    If the queue has a limit, they are put in one step: whether there is room for all may matter.
    """
    database = client.database
    try:
        about = (await database.run(verbs.INFO, name))[0]
        has_limit = bool(about[0] or about[-1])  # its bound, and its limit of bytes
    except QueueDoesNotExistError:
        if options.must_exist:
            return 0
        has_limit = bool(database.policy.create_bound or database.policy.max_bytes)
    result, portion = 0, len(messages) if has_limit else _MOST_AT_ONCE
    for first in range(0, len(messages), portion):
        some = messages[first : first + portion]
        try:
            (found,) = await database.run(verbs.PUT, name, some, len(some), client=client, options=options)
            if isinstance(found, PressureError):
                raise found
        except PressureError as error:
            if first:
                raise error.after(first) from None
            raise
        result = result + found if options.unique else found
    return result


# Messages of a command that are put in one step; more would keep the backend busy for tens of milliseconds.
_MOST_AT_ONCE = 10_000
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
}
_ON_FULL = {
    b"OVERFILL": OnFull.EXCEED_BOUND,
    b"OVERWRITE": OnFull.OVERWRITE,
    b"TIMEOUT": OnFull.WAIT,
}
# Options without a value, or with one that each command has of its own, and that need no wait and no job.
_FLAGS = {b"NX", b"OVERFILL", b"OVERWRITE", b"OFFSET", b"TXN"}
_OF_JOBS = {b"PRIORITY": "priority", b"DELAY": "delay", b"TTR": "ttr", b"UNIQUE-BY": "key"}


class _How(NamedTuple):
    """How the options of a put are done: what they need of the library, and the encoder of the replies.

    `job` has what its message needs to become a job.
    """

    options: Options
    encode: Encode
    job: dict[str, Any] | None


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
    if is_job and b"NX" in given:
        raise CommandError("ERR NX cannot be combined with the options of jobs: use UNIQUE")
    on_full = next((when for option, when in _ON_FULL.items() if option in given), OnFull.CONFIGURED)
    options = Options(
        must_exist=True,
        unique=b"NX" in given or b"UNIQUE" in given,
        on_full=on_full,
        is_job=is_job,
        has_key=b"UNIQUE-BY" in given,
        has_offset=b"OFFSET" in given,
        once=b"TXN" in given,
    )
    is_count = options.unique or options.has_offset or on_full is OnFull.OVERWRITE
    return _How(options, job_ids if is_job else integers if is_count else ones, job if is_job else None)


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
        client.execute_instead(list(commands.commands()))
        return
    client.submit(verbs.PUT, name, messages, size, how.encode, commands=commands.count, options=how.options)


@command(
    "PRESSURE.PUT key message [NX] [NOWAIT] [TIMEOUT seconds] [OVERFILL] [OVERWRITE] [PRIORITY priority] "
    "[DELAY seconds] [TTR seconds] [UNIQUE] [UNIQUE-BY name] [OFFSET] [TXN id]",
    "Puts a message and returns 1; with NX, returns 0 if it is queued already. If the queue is full, the "
    "overflow setting applies; TIMEOUT waits for room, NOWAIT fails at once, OVERFILL exceeds the bound. "
    "OVERWRITE drops the oldest message, and returns how many it has dropped: 0 or 1. "
    "With PRIORITY, DELAY, TTR (time to run) or UNIQUE, the message is a job, and its id is returned; UNIQUE "
    "returns the id of an equal job instead if one is queued. UNIQUE-BY compares names instead of messages, "
    "in a queue that was created with UNIQUE. OFFSET returns the message's offset in a log. TXN gives the "
    "put an id: sent again with the same id, it is not done again, and returns the same.",
    group="pressure",
    needs="put",
    flags="write denyoom",
    repeated=_put_repeated,
    repeats_options=True,
)
def put(client: Caller, words: Words) -> None:
    """Put a message (pressure 0.15, Put; with NOWAIT, Put (Non-Blocking)). The queue must exist.

    A timeout of 0 seconds waits forever.
    """
    given = options_in(words[3:], _PUT)
    how = _how(given)
    wait = None
    if b"NOWAIT" in given:
        wait = Wait(0, for_role=False)
    elif b"TIMEOUT" in given:
        wait = Wait(given[b"TIMEOUT"])
    messages = [words[2] if how.job is None else job_to_put(words[2], **how.job)]
    if how.options.once:
        messages.insert(0, first_word(client.session.database.policy, given[b"TXN"]))
    client.submit(verbs.PUT, words[1], messages, len(messages), how.encode, wait=wait, options=how.options)


@command(
    "PRESSURE.TXN id",
    "Gives the next SADD, LPUSH or RPUSH of this connection an id. If it is sent again with the same id, on "
    "any connection, it puts nothing, and returns the same. All its messages are put together, or none.",
    group="pressure",
    needs="nothing",
    flags="fast",
)
def txn(client: Caller, words: Words) -> None:
    """Keep the id for the next put of this client."""
    client.session.transaction_id = token_of(words[1])
    client.reply(b"+OK\r\n")


@command(
    "PRESSURE.OUTCOME key id",
    "Tells what became of a put with that TXN id: done, with its offset in a log; unknown: it has not been "
    "done; or forgotten, with a number of seconds: it has not been done if it was sent less than that ago.",
    group="pressure",
    needs="put",
    flags="fast",
)
async def outcome(client: Caller, words: Words) -> list[object]:
    """Return the state, and an offset or a number of seconds; nil if there is none."""
    (found,) = await client.database.run(verbs.OUTCOME, words[1], [token_of(words[2])])
    about = Outcome.of(found)
    return [about.state, about.offset if about.seconds is None else int(about.seconds)]
