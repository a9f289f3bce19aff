"""Verbs: a table of what the library can do on a queue, and how Python packs and reads each verb.

The library's half of the table is in lua/core/verbs.lua.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from pressure_server.queues.operations import runs
from pressure_server.queues.operations.operation import Line, Operation, Verb
from pressure_server.queues.operations.queue_info import QueueInfo


def _share_deleted(operations: Sequence[Operation], reply: Any) -> bool:
    if reply == b"begun":
        operations[0].verb = FINISH_DELETE
        return True
    return runs.repeat_value(operations, reply)


def _share_info(operations: Sequence[Operation], reply: list[Any]) -> bool:
    return runs.repeat_value(operations, QueueInfo(*reply))


def _asking(
    name: bytes,
    pack: Callable[[Sequence[Operation]], list[bytes]] = runs.pack_nothing,
    *,
    folds: bool = True,
    must_last: bool = False,
) -> Verb:
    return Verb(name, pack, runs.repeat_value, can_fold=folds, changes=False, must_last=must_last)


def _living(
    name: bytes,
    line: Line | None = None,
    *,
    pack: Callable[[Sequence[Operation]], list[bytes]] = runs.pack_nothing,
    share: Callable[[Sequence[Operation], Any], bool] = runs.repeat_value,
) -> Verb:
    return Verb(
        name, pack, share, can_fold=False, line=line, wakes=(Line.PRODUCERS, Line.CONSUMERS), wakes_all=True
    )


PUT: Final = Verb(
    b"put", runs.pack_commands, runs.distribute_counts, Operation.commands_left,
    puts=True, line=Line.PRODUCERS, wakes=(Line.CONSUMERS,),
)  # fmt: skip

# Verbs that make room, and wait for a message or for the consumer role.
REMOVE: Final = Verb(
    b"remove", runs.pack_messages, runs.distribute_values, Operation.messages_left,
    can_split=True, line=Line.CONSUMERS, wakes=(Line.PRODUCERS,),
)  # fmt: skip
GET: Final = replace(
    REMOVE, name=b"get", pack=runs.pack_count, distribute=runs.distribute_messages, takes=True
)
RESERVE: Final = replace(
    REMOVE, name=b"reserve", distribute=runs.distribute_reserved, takes=True, reserves=True, can_split=False
)
# What a get becomes in a queue with ACK NEXT.
POP: Final = replace(
    RESERVE, name=b"pop", pack=runs.pack_claims, distribute=runs.distribute_popped, can_split=True
)
_ALONE: Final = replace(REMOVE, pack=runs.pack_arguments, can_fold=False, can_split=False)
MOVE: Final = replace(_ALONE, name=b"move", distribute=runs.distribute_moved, takes=True, moves=True)
REMOVE_COPIES: Final = replace(
    _ALONE,
    name=b"remove_copies",
    distribute=runs.distribute_removed,
    units_left=runs.copies_left,
    wakes_all=True,
)
# Verbs that do not wait.
RESERVE_JOB: Final = Verb(
    b"reserve_job", runs.pack_arguments, runs.distribute_messages,
    takes=True, reserves=True, can_fold=False, wakes=(Line.PRODUCERS,),
)  # fmt: skip
CLAIM: Final = replace(RESERVE_JOB, name=b"claim", distribute=runs.distribute_reserved)
PUT_BACK: Final = Verb(
    b"put_back", runs.pack_arguments, runs.repeat_value,
    is_put_back=True, can_fold=False, wakes=(Line.CONSUMERS,),
)  # fmt: skip


def _job_event(name: bytes, *wakes: Line) -> Verb:
    return Verb(
        name, runs.pack_messages, runs.distribute_values, Operation.messages_left, can_split=True, wakes=wakes
    )


# Events of jobs (jobs.lua): each message names a job and its owner (jobs.py), and has the result 1, or 0 if
# the event is refused, or an error that is about this message alone.
DELETE_JOB: Final = replace(_job_event(b"delete_job", Line.PRODUCERS), overtakes=True)
RELEASE: Final = _job_event(b"release", Line.CONSUMERS)
GIVE_UP: Final = replace(_job_event(b"give_up", Line.CONSUMERS), gives_up=True)
BURY: Final = _job_event(b"bury")
TOUCH: Final = _job_event(b"touch")
KICK_JOB: Final = _job_event(b"kick_job", Line.CONSUMERS)
KICK: Final = Verb(
    b"kick", runs.pack_arguments, runs.repeat_value,
    can_fold=False, wakes=(Line.CONSUMERS,), wakes_all=True,
)  # fmt: skip

# Verbs that change nothing. AT and FROM read messages of a log: one for each offset; those from an offset on.
# Readers remember how far they are. If a failover gave their offsets to other messages, they would skip them.
CONTAINS: Final = Verb(
    b"contains", runs.pack_messages, runs.distribute_values, Operation.messages_left,
    can_split=True, changes=False,
)  # fmt: skip
AT: Final = replace(CONTAINS, name=b"at", can_split=False, must_last=True)
FROM: Final = _asking(b"from", runs.pack_arguments, folds=False, must_last=True)
LENGTH: Final = _asking(b"length")
EXISTS: Final = _asking(b"exists")
INFO: Final = replace(_asking(b"info"), distribute=_share_info)
VERSION: Final = _asking(b"version")
EXAMINE: Final = _asking(b"examine")
RANGE: Final = _asking(b"range", runs.pack_arguments, folds=False)
SCAN: Final = _asking(b"scan", runs.pack_arguments, folds=False)
POSITIONS: Final = _asking(b"positions", runs.pack_arguments, folds=False)
SAMPLE: Final = _asking(b"sample", runs.pack_arguments, folds=False)
# A client that hears "done" never puts again.
OUTCOME: Final = _asking(b"outcome", runs.pack_arguments, folds=False, must_last=True)
# Peek drops expired messages, which makes room. It may be done twice without harm.
PEEK: Final = Verb(
    b"peek", runs.pack_nothing, runs.distribute_peeked,
    changes=False, line=Line.CONSUMERS, wakes=(Line.PRODUCERS,),
)  # fmt: skip
PENDING: Final = _asking(b"pending", runs.pack_arguments, folds=False)
RESERVED: Final = _asking(b"reserved", runs.pack_arguments, folds=False)
PEEK_JOB: Final = _asking(b"peek_job", runs.pack_arguments, folds=False)
JOB_INFO: Final = _asking(b"job_info", runs.pack_arguments, folds=False)

# Verbs that create, empty, repair or delete a queue.
CREATE: Final = _living(b"create", Line.PRODUCERS, pack=runs.pack_arguments)
ALTER: Final = _living(b"alter", pack=runs.pack_arguments)
CLOSE: Final = _living(b"close", Line.PRODUCERS)
DELETE: Final = _living(b"delete", Line.CONSUMERS, share=_share_deleted)
FINISH_DELETE: Final = _living(b"finish_delete", Line.CONSUMERS)
TRIM: Final = _living(b"trim", Line.CONSUMERS, pack=runs.pack_arguments)
REDRIVE: Final = _living(b"redrive", pack=runs.pack_arguments)
PURGE: Final = _living(b"purge", Line.CONSUMERS, pack=runs.pack_arguments)
GROUP: Final = _living(b"group", pack=runs.pack_arguments)
PAUSE: Final = _living(b"pause", pack=runs.pack_arguments)
REPAIR: Final = _living(b"repair", pack=runs.pack_arguments)
TURN: Final = _living(b"turn")
