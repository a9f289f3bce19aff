"""What the reference does for each command, and the reply: a table of rows, by the command's first word.

Words that no protocol has (`PUT NX`, `native put`) and words that a client does not send (the used tube) are
for wires.py. Syntax errors are left out.
"""

from collections.abc import Callable
from typing import Any

from tests.simulate.world import (
    CLOSED,
    NO_ROOM,
    NOQUEUE,
    OK,
    WAITS,
    AnyOf,
    Command,
    Either,
    Error,
    Fields,
    Item,
    NewJobs,
    Operation,
    Put,
    Reply,
    Unordered,
    Words,
    World,
    is_takeable,
    take_items,
)
from tests.support.reference.jobs import Job
from tests.support.reference.log import Log
from tests.support.reference.queue import BLOCK, FULL, Marked, RefusedError, flags_of, require

_Names = Callable[[Words], list[str]]
# The errors of beanstalk, by the code that RESP has.
_BEANSTALK_ERRORS = {FULL: b"OUT_OF_MEMORY", "CLOSED": b"DRAINING"}


def _first_two(words: Words) -> list[str]:
    return list(words[1:3])


def _all(words: Words) -> list[str]:
    return list(words[1:])


def _none(_words: Words) -> list[str]:
    return []


def _last_word(words: Words) -> float:
    return float(words[-1])


def option(words: Words, name: str, default: Any = None) -> Any:
    """Return the word after an option, which is not one of the first two."""
    return words[words.index(name, 2) + 1] if name in words[2:] else default


def _seconds(words: Words) -> float:
    return float(option(words, "TIMEOUT", 0))


# Commands that put


def _putting(put: Put, timeout: Callable[[Words], float] = lambda words: 0) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        return _put(world, operation, put, names[0])

    return Command(action, nothing=NO_ROOM, put=put, timeout=timeout)


def _put(world: World, operation: Operation, put: Put, name: str) -> Reply:
    queue = world.queue(name)
    if queue is None:
        if not put.creates or operation.has_waited:
            return NOQUEUE
        queue = world.home.create(name)
    queue.require_open()
    waits = put.overflow == "wait" or (put.overflow == "queue" and queue.overflow == BLOCK)
    waits = waits and operation.order is not None
    if waits and not operation.has_waited and _earlier_put_waits(world, operation, name):
        return WAITS
    messages = put.messages(operation.words)
    rest = messages[operation.done :]
    if not waits:
        result = queue.put(rest, unique=put.unique, overfill=put.overflow == "overfill")
        return put.reply(queue, operation.new + result if put.unique else len(messages))
    done, new = queue.put_some(rest, unique=put.unique)
    operation.done += done
    operation.new += new
    if operation.done < len(messages):
        return WAITS
    # After a put in parts the length is open: other clients may have taken messages meanwhile.
    if operation.has_waited and len(messages) > 1 and not put.unique:
        return AnyOf(int)
    return put.reply(queue, operation.new)


def _length_of(queue: Any) -> Reply:
    """Return the reply to a push. Equal pushes into a queue of unique jobs all return the last length."""
    return AnyOf(int) if getattr(queue, "unique", "") else queue.length


def _earlier_put_waits(world: World, operation: Operation, name: str) -> bool:
    """Return whether a put of the same server waits for room in the queue. Then later ones wait, too."""
    return any(
        world.command(other.words).put is not None and other.words[1] == name
        for other in world.waiting(operation.server)
    )


def _put_job(world: World, operation: Operation, names: list[str]) -> Reply:
    """PRESSURE.PUT with options of jobs, and beanstalk's put, which creates the queue."""
    words, name = operation.words, names[0]
    is_beanstalk = words[0] == "put"
    queue = world.queue(name)
    if queue is None:
        if not is_beanstalk or operation.has_waited:
            return NOQUEUE
        queue = world.home.create(name)
    queue.require_open()
    message, key = words[2], option(words, "UNIQUE-BY")
    times = {word.lower(): option(words, word) for word in ("PRIORITY", "DELAY", "TTR") if word in words[3:]}
    waits = operation.order is not None and queue.overflow == BLOCK
    if waits and not operation.has_waited and _earlier_put_waits(world, operation, name):
        return WAITS
    try:
        ids = queue.put_job(message, is_unique="UNIQUE" in words[3:], by=key, **times)
        operation.new += 1
    except RefusedError as refusal:
        if str(refusal) != FULL or not waits:
            raise
        queue.convert()
        operation.has_converted = True
        return WAITS
    return Either(tuple(b"INSERTED %d" % one if is_beanstalk else one for one in ids))


# Commands that take


def _taking(
    reply: Callable[[str, list[Item]], Reply],
    *,
    names: _Names = lambda words: [words[1]],
    count: Callable[[Words], int] = lambda words: 1,
    timeout: Callable[[Words], float] = lambda words: 0,
    nothing: Reply = None,
    waits: bool = False,
    must_exist: bool = False,
    pops: bool = False,
    **more: Any,
) -> Command:
    """Return a command that takes from the first queue that has a message.

    What it `pops` from a queue with ACK NEXT is kept until its client's next pop.
    """

    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        queues = [world.queue(name) for name in names]
        for name, queue in zip(names, queues, strict=True):
            keeps = pops and getattr(queue, "keeps", False)
            if keeps and not operation.has_waited:
                world.home.acknowledge_popped(operation.owner)
            if is_takeable(queue):
                wanted = count(operation.words)
                items = _pop_items(world, name, operation, wanted) if keeps else take_items(queue, wanted)
                return reply(name, items)
        for queue in queues:
            if queue is None and must_exist:
                return NOQUEUE
            if queue is not None and queue.is_finished and (waits or must_exist):
                return CLOSED
        return WAITS if waits else nothing

    return Command(action, names, nothing, is_choice=True, timeout=timeout, **more)


def _pop_items(world: World, name: str, operation: Operation, count: int = 1) -> list[Item]:
    return [Item(bytes(one), None) for one in world.home.pop(name, operation.owner, count)]


def _message(_name: str, items: list[Item]) -> Reply:
    return items[0].message


def _name_and_message(name: str, items: list[Item]) -> Reply:
    return [name.encode(), items[0].message]


def _name_and_messages(name: str, items: list[Item]) -> Reply:
    return [name.encode(), [item.message for item in items]]


def _pop(world: World, operation: Operation, names: list[str]) -> Reply:
    """SPOP, LPOP and RPOP, with or without a count."""
    name, _, *count = operation.words
    queue = world.queue(names[0])
    # In a transaction, what is popped is taken for good.
    if queue is not None and getattr(queue, "keeps", False) and operation.order is not None:
        taken = world.home.pop(names[0], operation.owner, *count)
    else:
        taken = queue.take(*count) if queue is not None else []
    if not count:
        return taken[0] if taken else None
    return taken if taken or name == "SPOP" else None


def _lmpop_count(words: Words) -> int:
    return int(words[-1]) if "COUNT" in words else 1


def _fewer(world: World, words: Words) -> list[Words]:
    """A server may leave some messages to clients that wait, or have waited, at other servers."""
    names = list(words[3 : 3 + words[2]])
    some = range(1, _lmpop_count(words)) if world.put_waits(names) else ()
    return [words, *((*words[:-1], fewer) for fewer in some)]


def _get(world: World, operation: Operation, names: list[str]) -> Reply:
    """memcached's get of one queue."""
    queue = world.queue(names[0])
    if queue is not None and queue.held_by(operation.owner) and not queue.keeps:
        return _IS_OPEN
    if queue is not None and getattr(queue, "keeps", False):
        return _pop_items(world, names[0], operation)
    return take_items(queue, 1) if queue is not None else []


def _native_get(world: World, operation: Operation, names: list[str]) -> Reply:
    queue = world.queue(names[0])
    if queue is None:
        return NOQUEUE
    if not queue.messages:
        return CLOSED if queue.is_finished else None
    return queue.take_natively()


# Open reads: a client has at most one open message of a queue.


# The reply to other gets while one is open.
_IS_OPEN = Error("CLIENT_ERROR")


def _open(world: World, operation: Operation, names: list[str]) -> Reply:
    queue = world.home[names[0]]
    if queue.held_by(operation.owner):
        return _IS_OPEN
    return [Item(job.message, flags_of(job.message)) for job in queue.reserve(operation.owner)]


def _close_read(world: World, operation: Operation, names: list[str]) -> Reply:
    queue = world.home[names[0]]
    queue.acknowledge([job.id for job in queue.held_by(operation.owner)], operation.owner)
    return []


def _abort_read(world: World, operation: Operation, names: list[str]) -> Reply:
    world.home[names[0]].give_up(operation.owner)
    return []


# Commands that move


def _move(world: World, operation: Operation, names: list[str]) -> Reply:
    """LMOVE, RPOPLPUSH and their blocking forms."""
    source, sink = names
    origin = world.queue(source)
    if origin is None or origin.to_move() is None:
        if world.command(operation.words).waits_for_messages:
            return CLOSED if origin is not None and origin.is_finished else WAITS
        return None
    return _move_to(world, operation, origin, sink)


def _smove(world: World, operation: Operation, names: list[str]) -> Reply:
    _, source, sink, message = operation.words
    origin = world.queue(source)
    if origin is None or origin.to_move(message) is None:
        return 0
    reply = _move_to(world, operation, origin, sink, message)
    return 1 if reply == message else reply


def _move_to(
    world: World, operation: Operation, origin: Any, name: str, message: bytes | None = None
) -> Reply:
    """Move a message that is there. Return it, or WAITS if there is no room yet."""
    require(origin.may_consume, "INUSE")
    queue = world.queue(name) or world.home.create(name)
    try:
        return origin.move(queue, message)
    except RefusedError as refusal:
        if str(refusal) != FULL or queue.overflow != BLOCK or operation.order is None:
            raise
        # A server that is notified of the message may detect a little later that the queue is full.
        operation.seen.setdefault(name, (world.birth(name), world.birth(name) - operation.has_waited))
        return WAITS


# Queries, and commands for whole queues


def _query(missing: Reply, answer: Callable[[Any, Words], Reply]) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        queue = world.queue(names[0])
        return missing if queue is None else answer(queue, operation.words)

    return Command(action)


def _length(missing: Reply, form: Callable[[int], Reply] = int) -> Command:
    return _query(missing, lambda queue, words: form(queue.length))


def _algebra(combine: Callable[[list[bytes], list[list[bytes]]], list[bytes]]) -> Command:
    def action(world: World, _operation: Operation, names: list[str]) -> Reply:
        queues = [world.queue(name) for name in names]
        contents = [queue.visible if queue is not None else [] for queue in queues]
        return list(dict.fromkeys(combine(contents[0], contents[1:])))

    return Command(action, _all)


# For each setting of PRESSURE.CREATE, its name in the reference.
_SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BOUND": ("bound", int),
    "OVERFLOW": ("overflow", str.lower),
    "MAX-BYTES": ("max_bytes", int),
    "UNIQUE": ("unique", str.lower),
    "MAX-DELIVERIES": ("max_deliveries", int),
    "DEAD-LETTER": ("dead_letter", str),
    "ACK": ("keeps", "NEXT".__eq__),
    "IN-FLIGHT": ("in_flight", int),
    "RETRY-DELAY": ("retry_delay", int),
    "RATE": ("rate", lambda word: int(word.partition("/")[0])),
}


def _create(world: World, operation: Operation, names: list[str]) -> Reply:
    """PRESSURE.CREATE q and settings, or a native Create q n."""
    name, words = names[0], operation.words
    if words[0] == "native create":
        words = ("", name, "BOUND", words[2], "OVERFLOW", "BLOCK")
    given = dict(zip(words[2::2], words[3::2], strict=True))
    require(world.queue(name) is None, "EXISTS")
    settings = {_SETTINGS[key][0]: _SETTINGS[key][1](value) for key, value in given.items() if key != "TYPE"}
    if given.get("TYPE") == "LOG":
        world.logs[name] = Log(**settings)
        world.home.note_birth(name)
        return OK
    world.home.create(name, given.get("TYPE", "").lower(), **settings)
    return OK


def _trim(queue: Any, words: Words) -> Reply:
    """LTRIM from 0 to a negative position."""
    queue.drop_newest(-1 - words[3])
    return OK


def _close(queue: Any, _words: Words) -> Reply:
    queue.close()
    return OK


def _deleting(done: Reply, missing: Reply) -> Command:
    return Command(lambda world, _, names: done if world.delete(names[0]) else missing)


def _flush(queue: Any, _words: Words) -> Reply:
    queue.flush()
    return []


# Jobs. A queue that does not exist has none.


def _of_jobs(done: Callable[[Any, Operation], Reply], **more: Any) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        return done(world.queue(names[0]) or world.home[names[0]], operation)

    return Command(action, **more)


def _token(operation: Operation) -> str:
    words = operation.words
    return str(option(words, "DETACHED") or option(words, "TOKEN") or operation.owner)


def reserved(name: str, job: Job) -> list[Any]:
    """Return what PRESSURE.RESERVE tells of a job."""
    return [name.encode(), job.id, job.message, job.counts["reserves"]]


def _reserve(world: World, operation: Operation, names: list[str]) -> Reply:
    words, queue = operation.words, world.home[names[0]]
    ttr, count = option(words, "TTR"), option(words, "COUNT")
    found = queue.reserve(_token(operation), count or 1, ttr)
    jobs = [reserved(names[0], job) for job in found]
    if jobs:
        return jobs if count else jobs[0]
    if "TIMEOUT" not in words[2:]:
        return None
    return CLOSED if queue.exists and queue.is_finished else WAITS


def _best(world: World, words: Words) -> list[Words]:
    """Return the command for each queue that may have the best job. Its age only the backend knows."""
    names = words[2 : 2 + words[1]]
    heads = world.home.heads(names)
    best = min(((priority, number > 0) for priority, number in heads.values()), default=None)
    some = [name for name, (priority, number) in heads.items() if (priority, number > 0) == best]
    return [(*words, name) for name in some] or [(*words, "")]


def _reserve_best(world: World, operation: Operation, names: list[str]) -> Reply:
    words, name = operation.words, operation.words[-1]
    is_beanstalk = words[0] in ("reserve from", "reserve any")
    if not name:
        return b"TIMED_OUT" if is_beanstalk else None
    (job,) = world.home[name].reserve(_token(operation))
    return (b"RESERVED", job.id, job.message) if is_beanstalk else reserved(name, job)


def _acknowledge(world: World, operation: Operation, names: list[str]) -> Reply:
    ids, queue = _ids(operation.words), world.queue(names[0])
    if not ids:
        return world.home.acknowledge_popped(operation.owner, names[0])
    return queue.acknowledge(ids, _token(operation)) if queue is not None else 0


def _ids(words: Words) -> list[int]:
    """Return the ids that are named, or those FROM one TO another."""
    ids = [word for word in words[2:] if isinstance(word, int)]
    return [*range(ids[0], ids[1] + 1)] if words[2:3] == ("FROM",) else ids


def _redrive(world: World, operation: Operation, names: list[str]) -> Reply:
    words = operation.words
    return world.home.redrive(names[0], option(words, "TO", ""), option(words, "COUNT", 1_000_000))


def _release(queue: Any, operation: Operation) -> Reply:
    words = operation.words
    return queue.release(words[2], _token(operation), option(words, "PRIORITY"), option(words, "DELAY", 0))


def _ok(result: object) -> Reply:
    return OK if result is None else result


def _job_of(world: World, operation: Operation, names: list[str]) -> Reply:
    queue, number = world.home[names[0]], operation.words[2]
    about = queue.describe(number)
    return Fields(about) if about else None


def _alter(queue: Any, operation: Operation) -> Reply:
    if operation.words[2] == "BOUND":
        queue.alter(operation.words[3])
        return OK
    queue.keep(keeps=operation.words[3] == "NEXT")
    return OK


# beanstalk: the first word after the command is the used tube.


def _beanstalk(done: Callable[[World, Operation], Reply], **more: Any) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        try:
            return done(world, operation)
        except RefusedError as refusal:
            return _BEANSTALK_ERRORS.get(str(refusal), b"INTERNAL_ERROR")

    return Command(action, **more)


def _event(done: bytes, happen: Callable[[Any, Operation], Any]) -> Command:
    """Return a command on a job that is found by its id, wherever it is."""

    def change(world: World, operation: Operation) -> Reply:
        found = world.find_job(operation.words[2])
        return done if found and happen(found[0], operation) else b"NOT_FOUND"

    return _beanstalk(change)


def _reserve_tube(world: World, operation: Operation) -> Reply:
    queue = world.home[operation.words[1]]
    found = queue.reserve(operation.owner)
    if found:
        return (b"RESERVED", found[0].id, found[0].message)
    if operation.words[0] == "reserve now":
        return b"TIMED_OUT"
    return b"TIMED_OUT" if queue.exists and queue.is_finished else WAITS


def _reserve_any(world: World, operation: Operation, names: list[str]) -> Reply:
    """Reserve from the best of several tubes; while it waits, from the first that has a job."""
    if not operation.has_waited:
        if operation.words[-1]:
            return _reserve_best(world, operation, names)
        queues = [world.queue(name) for name in operation.words[2:-1]]
        is_vain = any(queue is not None and queue.is_finished for queue in queues)
        return b"TIMED_OUT" if is_vain else WAITS
    queue = world.home[names[0]]
    found = queue.reserve(operation.owner)
    if not found:
        return b"TIMED_OUT" if queue.exists and queue.is_finished else WAITS
    return (b"RESERVED", found[0].id, found[0].message)


def _reserve_job(world: World, operation: Operation) -> Reply:
    found = world.find_job(operation.words[2])
    job = found and found[0].reserve_job(operation.words[2], operation.owner)
    return (b"RESERVED", job.id, job.message) if job else b"NOT_FOUND"


def _peek_tube(world: World, operation: Operation) -> Reply:
    _, tube, target = operation.words
    if isinstance(target, int):
        found = world.find_job(target)
        return (b"FOUND", target, found[1].message) if found else b"NOT_FOUND"
    job = world.home[tube].peek_job(target)
    return (b"FOUND", *job) if job else b"NOT_FOUND"


def _kick_tube(world: World, operation: Operation) -> Reply:
    queue = world.queue(operation.words[1])
    return b"KICKED %d" % (queue.kick(operation.words[2]) if queue is not None else 0)


def _pause_tube(world: World, operation: Operation) -> Reply:
    _, name, seconds = operation.words
    world.home.opened(name).pause(is_paused=seconds > 0)
    return b"PAUSED"


def _stats_job(world: World, operation: Operation) -> Reply:
    found = world.find_job(operation.words[2])
    if not found:
        return b"NOT_FOUND"
    job = found[1]
    facts = {"state": job.state.encode(), "pri": job.priority, **job.counts}
    return [word for name, value in facts.items() for word in (name.encode(), value)]


def _on_job(method: str, *places: int) -> Callable[[Any, Operation], Any]:
    """Return a function that calls a method of the queue for the job, its owner, and these words."""

    def happen(queue: Any, operation: Operation) -> Any:
        number: Any = [operation.words[2]] if method in ("acknowledge", "touch") else operation.words[2]
        owner = (operation.owner,) if method != "kick_job" else ()
        return getattr(queue, method)(number, *owner, *(operation.words[place] for place in places))

    return happen


# Logs


def _log(done: Callable[[Log, Words], Any]) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        return _ok(done(_log_of(world, names[0]), operation.words))

    return Command(action)


def _create_group(world: World, operation: Operation, names: list[str]) -> Reply:
    _, name, group, start = operation.words
    log = _log_of(world, name)
    log.create_group(group, start)
    world.home.note_birth(f"{name}+{group}")
    return OK


def _log_of(world: World, name: str) -> Log:
    """Return a log. Raise RefusedError if there is none."""
    found = world.queue(name)
    require(found is not None, "NOQUEUE")
    require(isinstance(found, Log), "TYPE")
    log: Log = found
    return log


def _read(world: World, operation: Operation, names: list[str]) -> Reply:
    _, name, group_name, consumer, count, *timeout = operation.words
    group = world.queue(f"{name}+{group_name}")
    require(group is not None, "NOGROUP")
    if timeout and not group.is_takeable:
        return CLOSED if group.is_finished else WAITS
    jobs = []
    for job in group.next_jobs(count):
        world.clock += 1
        group.give(job, job.id or -world.clock, consumer)
        jobs.append([job.id, job.message, job.counts["reserves"], job.offset])
    return NewJobs(f"{name}+{group_name}", jobs)


def _claim(world: World, operation: Operation, names: list[str]) -> Reply:
    group = world.queue(names[0])
    claimed = group.claim(operation.words[2]) if group is not None else []
    return Unordered([[job.id, job.message, job.counts["reserves"], job.offset] for job in claimed])


def _outcome(log: Log, words: Words) -> Reply:
    known = log.outcomes.get(words[2])
    return [b"unknown", None] if known is None else [b"done", known[2]]


_POP = Command(_pop)
_PUSH = _putting(
    Put(lambda words: list(words[2:]), reply=lambda queue, new: _length_of(queue), combined="put")
)
_BLPOP = _taking(
    _name_and_message, names=lambda words: _all(words)[:-1], timeout=_last_word, waits=True, pops=True
)
_LMOVE = Command(_move, _first_two, moves=True)
_BLMOVE = Command(
    _move,
    _first_two,
    nothing=Either((None, NO_ROOM)),
    moves=True,
    waits_for_messages=True,
    timeout=_last_word,
)
_PUT = Put(lambda words: [words[2]], creates=False, reply=lambda queue, new: 1)
_SET = Put(
    lambda words: [Marked(words[3], int(words[2]))],
    overflow="now",
    reply=lambda queue, new: b"STORED" if new else b"NOT_STORED",
)
_JOB_PUT = Put(lambda words: [words[2]])

COMMANDS: dict[str, Command] = {
    "SADD": _putting(Put(lambda words: list(words[2:]), unique=True, combined="add")),
    "SPOP": _POP,
    "SCARD": _length(0),
    "SISMEMBER": _query(0, lambda queue, words: int(words[2] in queue.visible)),
    "SMISMEMBER": _of_jobs(lambda queue, operation: queue.contains(operation.words[2:])),
    "SREM": _query(0, lambda queue, words: sum(queue.remove(words[2:]))),
    "LREM": _query(0, lambda queue, words: queue.remove_copies(words[2], words[3])),
    "LTRIM": _query(OK, _trim),
    "SMEMBERS": _query([], lambda queue, words: queue.visible),
    "SMOVE": Command(_smove, _first_two, nothing=NO_ROOM, moves=True),
    "SINTER": _algebra(lambda first, others: [m for m in first if all(m in other for other in others)]),
    "SUNION": _algebra(lambda first, others: first + [m for other in others for m in other]),
    "SDIFF": _algebra(lambda first, others: [m for m in first if not any(m in other for other in others)]),
    "LPUSH": _PUSH,
    "RPUSH": _PUSH,
    "LPOP": _POP,
    "RPOP": _POP,
    "LLEN": _length(0),
    "LRANGE": _query([], lambda queue, words: queue.range(words[2], words[3])),
    "LINDEX": _query(None, lambda queue, words: queue.at(words[2])),
    "BLPOP": _BLPOP,
    "BRPOP": _BLPOP,
    # LMPOP n q… LEFT COUNT n, and BLMPOP with a timeout before that.
    "LMPOP": _taking(
        _name_and_messages, names=lambda words: list(words[2 : 2 + words[1]]), count=_lmpop_count, pops=True
    ),
    "BLMPOP": _taking(
        _name_and_messages,
        names=lambda words: list(words[3 : 3 + words[2]]),
        count=_lmpop_count,
        timeout=lambda words: float(words[1]),
        waits=True,
        pops=True,
        variants=_fewer,
    ),
    "LMOVE": _LMOVE,
    "RPOPLPUSH": _LMOVE,
    "BLMOVE": _BLMOVE,
    "BRPOPLPUSH": _BLMOVE,
    "DEL": Command(lambda world, _, names: sum(map(world.delete, names)), _all),
    "EXISTS": Command(lambda world, _, names: sum(world.queue(name) is not None for name in names), _all),
    "PRESSURE.CREATE": Command(_create),
    "PRESSURE.ALTER": _of_jobs(_alter),
    "PRESSURE.EXISTS": _query(0, lambda queue, words: 1),
    "PRESSURE.LENGTH": _length(NOQUEUE),
    "PRESSURE.CLOSED": _query(NOQUEUE, lambda queue, words: int(queue.is_closed)),
    "PRESSURE.CLOSE": _query(NOQUEUE, _close),
    "PRESSURE.DELETE": _deleting(OK, NOQUEUE),
    "PRESSURE.INFO": _query(NOQUEUE, lambda queue, words: Fields(queue.info())),
    # PRESSURE.PUT and PRESSURE.GET with an option: see `RespWire` in wires.py.
    "PUT": _putting(_PUT),
    "PUT NX": _putting(_PUT._replace(unique=True, reply=lambda queue, new: new)),
    "PUT NOWAIT": _putting(_PUT._replace(overflow="now")),
    "PUT OVERFILL": _putting(_PUT._replace(overflow="overfill")),
    "PUT TIMEOUT": _putting(_PUT._replace(overflow="wait"), timeout=_last_word),
    "GET": _taking(_message, waits=True, must_exist=True),
    "GET NOWAIT": _taking(_message, must_exist=True),
    "GET TIMEOUT": _taking(_message, waits=True, must_exist=True, timeout=_last_word),
    # Jobs.
    "PUT JOB": Command(_put_job, nothing=NO_ROOM, put=_JOB_PUT),
    "PRESSURE.RESERVE": Command(_reserve, is_choice=True, timeout=_seconds),
    "RESERVE BEST": Command(_reserve_best, lambda words: list(words[2 : 2 + words[1]]), variants=_best),
    "PRESSURE.ACK": Command(_acknowledge),
    "PRESSURE.RELEASE": _of_jobs(_release),
    "PRESSURE.BURY": _of_jobs(
        lambda queue, o: queue.bury(o.words[2], _token(o), option(o.words, "PRIORITY"))
    ),
    "PRESSURE.TOUCH": _of_jobs(lambda queue, o: queue.touch(_ids(o.words), _token(o))),
    "PRESSURE.KICK": _query(NOQUEUE, lambda queue, words: queue.kick(words[2])),
    "PRESSURE.PAUSE": _of_jobs(lambda queue, o: _ok(queue.pause(is_paused=o.words[2] > 0))),
    "PRESSURE.REDRIVE": Command(_redrive),
    "PRESSURE.PEEK": _of_jobs(
        lambda queue, o: (job := queue.peek_job(o.words[2].lower())) and [*job],
    ),
    "PRESSURE.JOB": Command(_job_of),
    # beanstalk.
    "use": Command(lambda world, operation, names: b"USING " + operation.words[1].encode(), _none),
    "watch": Command(lambda world, operation, names: b"WATCHING %d" % operation.words[2], _none),
    "ignore": Command(
        lambda world, operation, names: (
            b"WATCHING %d" % operation.words[2] if operation.words[2] else b"NOT_IGNORED"
        ),
        _none,
    ),
    "put": _beanstalk(
        lambda world, operation: _put_job(world, operation, [operation.words[1]]),
        nothing=b"OUT_OF_MEMORY",
        put=_JOB_PUT,
    ),
    "reserve": _beanstalk(_reserve_tube, is_choice=True, outlives_queue=True),
    "reserve now": _beanstalk(_reserve_tube),
    "reserve from": _beanstalk(
        lambda world, operation: _reserve_best(world, operation, []),
        names=lambda words: list(words[2 : 2 + words[1]]),
        variants=_best,
    ),
    "reserve any": Command(
        _reserve_any,
        names=lambda words: list(words[2 : 2 + words[1]]),
        is_choice=True,
        outlives_queue=True,
        variants=_best,
    ),
    "reserve-job": _beanstalk(_reserve_job),
    "delete job": _event(b"DELETED", _on_job("acknowledge")),
    "release": _event(b"RELEASED", _on_job("release", 3, 4)),
    "bury": _event(b"BURIED", _on_job("bury", 3)),
    "touch": _event(b"TOUCHED", _on_job("touch")),
    "kick-job": _event(b"KICKED", _on_job("kick_job")),
    "kick": _beanstalk(_kick_tube),
    "pause-tube": _beanstalk(_pause_tube),
    "peek": _beanstalk(_peek_tube),
    "stats-job": _beanstalk(_stats_job),
    # Logs.
    "PRESSURE.TXN": Command(lambda world, operation, names: OK, _none),
    "PUT OFFSET": _log(lambda log, words: log.put_at_offset(words[2])),
    "PUT ONCE": _log(lambda log, words: log.put_once([words[2]], words[3], unique=False)),
    "ADD ONCE": _log(lambda log, words: log.put_once(list(words[3:]), words[2], unique=True)),
    "PRESSURE.OUTCOME": _log(_outcome),
    "PRESSURE.AT": _log(lambda log, words: log.from_offset(words[2], words[4])),
    "GROUP CREATE": Command(_create_group),
    "GROUP SEEK": _log(lambda log, words: log.seek(words[2], words[3])),
    "GROUP DELETE": _log(lambda log, words: log.delete_group(words[2])),
    "READ": Command(_read),
    "READ TIMEOUT": Command(
        _read,
        lambda words: [f"{words[1]}+{words[2]}"],
        is_choice=True,
        timeout=_last_word,
        deleted=Error("NOGROUP"),
    ),
    "PRESSURE.CLAIM": Command(_claim),
    "PRESSURE.PURGE": _query(NOQUEUE, lambda queue, words: queue.purge()),
    # Commands of memcached clients.
    "set": _putting(_SET),
    "add": _putting(_SET._replace(unique=True)),
    "get": Command(_get, _all),
    "set expired": _putting(
        _SET._replace(messages=lambda words: [Marked(words[3], words[2], is_expired=True)])
    ),
    "get peek": _query([], lambda queue, words: [queue.item(one) for one in queue.peek()]),
    "get open": Command(_open),
    "get close": Command(_close_read),
    "get abort": Command(_abort_read),
    "get t": _taking(lambda _, items: items, waits=True, timeout=_last_word, nothing=[], pops=True),
    "scard": _length(b"0", lambda length: b"%d" % length),
    "sismember": _query(b"0", lambda queue, words: b"%d" % (words[2] in queue.visible)),
    "delete": _deleting(b"DELETED", b"NOT_FOUND"),
    "flush": _query([], _flush),
    # Operations of native clients.
    "native create": Command(_create),
    "native put": _putting(_PUT._replace(overflow="now", reply=lambda queue, new: OK))._replace(
        needs_role=True
    ),
    "native get": Command(_native_get, needs_role=True),
    "native length": _length(NOQUEUE),
    "native delete": _deleting(OK, NOQUEUE),
}
# What follows the first queue of a get of several; see `World._execute`.
COMMANDS["get more"] = COMMANDS["get"]
