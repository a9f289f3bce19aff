"""PRESSURE commands on whole queues, and PRESSURE.GET and PUT. A put with a transaction id is done once."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

from handlers.resp import table
from handlers.resp.arguments import expiry_of, priority_of, token_of
from handlers.resp.commands.encoders import integers, job_ids, message_or_null, ones
from handlers.resp.commands.reading import admitted_queues
from handlers.resp.options import OptionTable
from handlers.resp.parser import Repeated, Words
from handlers.resp.replies import OK
from handlers.resp.session import Caller, RespSession
from pressure_server.errors import CommandError, QueueAlreadyExistsError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import job_to_put
from pressure_server.queues.operations.operation import Encode, Line
from pressure_server.queues.operations.options import OnFull, Options
from pressure_server.queues.operations.outcomes import Outcome, first_word
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.operations.queue_options import (
    ALTER_OPTIONS,
    CREATE_OPTIONS,
    IF_NOT_EXISTS,
    Alteration,
    alteration_of,
    creation_of,
)
from pressure_server.queues.operations.wait import Wait
from pressure_server.text import Glob
from pressure_server.words import seconds_of, syntax_error, timeout_of

command = partial(table.command, group="pressure")

_CREATE, _ALTER = OptionTable(CREATE_OPTIONS), OptionTable(ALTER_OPTIONS)
_PUT = OptionTable(
    {
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
)
_ON_FULL = {b"OVERFILL": OnFull.EXCEED_BOUND, b"OVERWRITE": OnFull.OVERWRITE, b"TIMEOUT": OnFull.WAIT}
# Options without a value, or with one that each command has of its own, and that need no wait and no job.
_FLAGS = {b"NX", b"OVERFILL", b"OVERWRITE", b"OFFSET", b"TXN"}
_OF_JOBS = {b"PRIORITY": "priority", b"DELAY": "delay", b"TTR": "ttr", b"UNIQUE-BY": "key"}
_GET = Options(must_exist=True, waits=True, final=True)


@command("PRESSURE.READY", needs="nothing", flags="fast no_auth")
async def ready(client: Caller, _words: Words) -> str:
    """Returns OK if the server is ready for new clients: it is not stopping and can use its backend."""
    # Load balancers and health checks may ask without a login.
    client.session.context.check_readiness()
    return OK


@command(
    "PRESSURE.CREATE key [IF NOT EXISTS] [BOUND bound] [OVERFLOW BLOCK|ERROR|OVERWRITE] [MAX-BYTES "
    "bytes] [TTL seconds] [TYPE FIFO|JOBS|LOG|LIFO|RANDOM] [UNIQUE QUEUED|UNFINISHED] [MAX-DELIVERIES "
    "count] [DEAD-LETTER queue] [ACK NEXT|FINAL] [ACK-TTR seconds] [RETRY-DELAY seconds] "
    "[RETRY-DELAY-MAX seconds] [IN-FLIGHT count] [RATE count/seconds]",
    needs="administer",
    flags="write",
)
async def create(client: Caller, words: Words) -> str | int:
    """Creates a queue. BOUND limits its length (0: no bound); OVERFLOW sets what a put does if it is full:
    wait, fail, or drop the oldest messages. A queue whose messages have reached MAX-BYTES is full, too. After
    TTL seconds without messages and use, the queue is deleted. TYPE is the order in which messages are taken,
    and what can be done with them: jobs have priorities and delays, and the messages of a log offsets; lifo
    takes the newest, random any. Queues of the types jobs, lifo and random may have UNIQUE jobs, and a limit:
    after MAX-DELIVERIES reservations a job goes to the DEAD-LETTER queue, or is buried. With ACK NEXT, SPOP,
    LPOP, BLPOP and other pops keep the message reserved until the same connection pops again or sends QUIT,
    for at most ACK-TTR seconds; if the connection ends before, the message goes back to the head of the
    queue. Jobs whose reservation fails are tried again after RETRY-DELAY seconds, and each time after twice
    as many, up to RETRY-DELAY-MAX; at most IN-FLIGHT jobs are reserved at the same time, and taken at the
    RATE. Replies -EXISTS if the queue exists; with IF NOT EXISTS 0, instead of 1 for a new queue.
    """
    options = _CREATE.values(words[2:])
    may_exist = IF_NOT_EXISTS in options
    creation = creation_of(options)
    arguments = _arguments(client, words[1], creation, creation.dead_letter)
    try:
        await client.database.run(verbs.CREATE, words[1], arguments, client=client.session)
    except QueueAlreadyExistsError:
        if may_exist:
            return 0
        raise
    return 1 if may_exist else OK


def _arguments(client: Caller, queue: bytes, settings: Alteration, dead_letter: bytes | None) -> list[bytes]:
    """Return the settings as the library takes them. Raise CrossShardError.

    Raise CommandError unless the queue's dead letters may go to the queue `dead_letter`; None for none.
    """
    if dead_letter == queue:
        raise CommandError("ERR a queue cannot be its own DEAD-LETTER queue")
    if dead_letter is not None and not client.session.user.may_access(dead_letter):
        raise CommandError("NOPERM this user has no permissions to access the DEAD-LETTER queue")
    return settings.arguments(client.database.prefix_of(queue, *([dead_letter] if dead_letter else [])))


@command(
    "PRESSURE.ALTER key [BOUND bound] [OVERFLOW BLOCK|ERROR|OVERWRITE] [MAX-BYTES bytes] [TTL seconds] "
    "[MAX-DELIVERIES count] [DEAD-LETTER queue] [ACK NEXT|FINAL] [ACK-TTR seconds] [RETRY-DELAY "
    "seconds] [RETRY-DELAY-MAX seconds] [IN-FLIGHT count] [RATE count/seconds]",
    needs="administer",
    flags="write",
)
async def alter(client: Caller, words: Words) -> str:
    """Changes settings of a queue; ACK FINAL, an empty DEAD-LETTER, and 0 for the others take these away.
    Puts that wait for room go on if the new BOUND lets them. Messages above a smaller bound stay. A limit of
    deliveries, or a policy, makes a queue that has no type one of the type jobs. A queue that a put has
    created no longer expires. Replies -NOQUEUE if there is no such queue.
    """
    options = _ALTER.values(words[2:])
    if not options:
        raise syntax_error("name a setting and its value, such as BOUND 1000")
    alteration = alteration_of(options)
    arguments = _arguments(client, words[1], alteration, alteration.dead_letter or None)
    await client.database.run(verbs.ALTER, words[1], arguments, client=client.session)
    return OK


@command("PRESSURE.EXISTS key", needs="read", flags="readonly fast")
async def exists(client: Caller, words: Words) -> int:
    """Returns 1 if the queue exists, otherwise 0."""
    return int(await client.database.exists(words[1]))


@command("PRESSURE.LENGTH key", needs="read", flags="readonly fast")
async def length(client: Caller, words: Words) -> object:
    """Returns the number of messages. Replies -NOQUEUE if there is no such queue."""
    return (await client.database.run(verbs.LENGTH, words[1]))[0]


@command("PRESSURE.CLOSED key", needs="read", flags="readonly fast")
async def closed(client: Caller, words: Words) -> object:
    """Returns 1 if the queue is closed, otherwise 0. Replies -NOQUEUE if there is no such queue."""
    about: QueueInfo = (await client.database.run(verbs.INFO, words[1]))[0]
    return about.is_closed


@command("PRESSURE.GET key [NOWAIT] [TIMEOUT seconds]", needs="get", flags="write blocking")
def get(client: Caller, words: Words) -> None:
    """Takes the oldest message. Waits for one, up to TIMEOUT seconds (0: forever); nil if none has come.
    NOWAIT does not wait. Replies -CLOSED if the queue is closed and empty.
    """
    # The queue must exist.
    match [word.upper() for word in words[2:]]:
        case []:
            wait = Wait(None)
        case [b"NOWAIT"]:
            wait = Wait(0, for_role=False)
        case [b"TIMEOUT", seconds]:
            wait = Wait(timeout_of(seconds))
        case _:
            raise syntax_error("after the queue, only NOWAIT or TIMEOUT seconds may follow")
    client.submit(verbs.GET, words[1], [], 1, message_or_null, wait=wait, options=_GET)


@command("PRESSURE.CLOSE key", needs="administer", flags="write")
async def close(client: Caller, words: Words) -> str:
    """Closes the queue. Later puts fail; clients that wait for messages get -CLOSED when it is empty. Replies
    -CLOSED if the queue is closed already.
    """
    await client.database.run(verbs.CLOSE, words[1], client=client.session)
    return OK


@command("PRESSURE.DELETE key", needs="administer", flags="write")
async def delete(client: Caller, words: Words) -> str:
    """Deletes the queue and its messages; clients that wait on it get -NOQUEUE. Replies -NOQUEUE if there is
    no such queue.
    """
    await client.database.run(verbs.DELETE, words[1], client=client.session)
    return OK


@command("PRESSURE.INFO key", needs="read", flags="readonly")
async def info(client: Caller, words: Words) -> dict[bytes, object]:
    """Describes the queue: bound, length, roles, statistics, and how many operations wait."""
    # The producer and the consumer are the present or last holders of the roles. The operations that wait are
    # those of this server's clients.
    about: QueueInfo = (await client.database.run(verbs.INFO, words[1]))[0]
    session = client.session
    number = session.database.database_number
    waiting = (await session.context.workers.waiting(number, words[1:2]))[words[1]]
    prefix = client.database.prefix_of(words[1])
    template = None if about.log else session.database.policy.template_of(words[1])
    return {
        b"bound": about.bound,
        b"length": about.length,
        b"closed": about.is_closed,
        b"overflow": about.overflow,
        b"dropped_messages": about.dropped,
        b"producer": about.producer,
        b"producer_role": b"free" if about.producer_is_free else b"held",
        b"consumer": about.consumer,
        b"consumer_role": b"free" if about.consumer_is_free else b"held",
        b"produced_messages": about.produced,
        b"produced_bytes": about.produced_bytes,
        b"consumed_messages": about.consumed,
        b"consumed_bytes": about.consumed_bytes,
        b"waiting_producers": waiting[Line.PRODUCERS],
        b"waiting_consumers": waiting[Line.CONSUMERS],
        b"type": about.type,
        b"ready": about.ready,
        b"delayed": about.delayed,
        b"reserved": about.reserved,
        b"buried": about.buried,
        b"paused_ms": about.paused,
        b"unique": about.unique,
        b"max_deliveries": about.max_deliveries,
        b"dead_letter": about.dead_letter.removeprefix(prefix + b":"),
        b"head_offset": int(about.head) if about.head else None,
        b"tail_offset": int(about.tail) if about.tail else None,
        b"groups": about.groups,
        b"group_of": about.log.removeprefix(prefix + b":"),
        b"missed_messages": about.missed,
        b"max_bytes": about.max_bytes,
        b"ack": about.ack or b"final",
        b"ack_ttr_ms": about.ack_ttr,
        b"retry_delay_ms": about.retry_delay,
        b"retry_delay_max_ms": about.retry_delay_max,
        b"in_flight": about.in_flight,
        b"rate": about.rate.replace(b" ", b"/", 1) + (b"ms" if about.rate else b""),
        b"ttl_ms": about.ttl,
        b"template": template.pattern.encode() if template else b"",
        b"prefix": prefix,
    }


@command("PRESSURE.LIST [MATCH pattern]", needs="read", flags="readonly")
async def list_(client: Caller, words: Words) -> list[bytes]:
    """Lists the names of the queues."""
    pattern = None
    if len(words) > 1:
        if len(words) != 3 or words[1].upper() != b"MATCH":
            raise syntax_error("only MATCH pattern may follow")
        pattern = Glob(words[2])
    return sorted([name async for name in admitted_queues(client, pattern)])


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
    given = _PUT.values(words[3:])
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


@command("PRESSURE.TXN id", needs="nothing", flags="fast")
def txn(client: Caller, words: Words) -> None:
    """Gives the next SADD, LPUSH or RPUSH of this connection an id. If it is sent again with the same id, on
    any connection, it puts nothing, and returns the same. All its messages are put together, or none.
    """
    client.session.transaction_id = token_of(words[1])
    client.reply(b"+OK\r\n")


@command("PRESSURE.OUTCOME key id", needs="put", flags="fast")
async def outcome(client: Caller, words: Words) -> list[object]:
    """Tells what became of a put with that TXN id: done, with its offset in a log; unknown: it has not been
    done; or forgotten, with a number of seconds: it has not been done if it was sent less than that ago.
    """
    (found,) = await client.database.run(verbs.OUTCOME, words[1], [token_of(words[2])])
    about = Outcome.of(found)
    return [about.state, about.offset if about.seconds is None else int(about.seconds)]
