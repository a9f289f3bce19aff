"""Verbs: a table of what the library can do on a queue, and how Python packs and reads each verb.

The library's half of the table is in lua/core/verbs.lua.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
) -> Verb:
    return Verb(name, pack, runs.repeat_value, can_fold=folds, changes=False)


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


PUT = Verb(
    b"put",
    runs.pack_commands,
    runs.distribute_counts,
    Operation.commands_left,
    puts=True,
    line=Line.PRODUCERS,
    wakes=(Line.CONSUMERS,),
)
GET = Verb(
    b"get",
    runs.pack_count,
    runs.distribute_messages,
    Operation.messages_left,
    takes=True,
    can_split=True,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
)
RESERVE = Verb(
    b"reserve",
    runs.pack_messages,
    runs.distribute_reserved,
    Operation.messages_left,
    takes=True,
    reserves=True,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
)
# What a get becomes in a queue with ACK NEXT.
POP = replace(RESERVE, name=b"pop", pack=runs.pack_claims, distribute=runs.distribute_popped, can_split=True)
RESERVE_JOB = Verb(
    b"reserve_job",
    runs.pack_arguments,
    runs.distribute_messages,
    takes=True,
    reserves=True,
    can_fold=False,
    wakes=(Line.PRODUCERS,),
)
CLAIM = replace(RESERVE_JOB, name=b"claim", distribute=runs.distribute_reserved)
MOVE = Verb(
    b"move",
    runs.pack_arguments,
    runs.distribute_moved,
    Operation.messages_left,
    takes=True,
    moves=True,
    can_fold=False,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
)
REMOVE = Verb(
    b"remove",
    runs.pack_messages,
    runs.distribute_values,
    Operation.messages_left,
    can_split=True,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
)
REMOVE_COPIES = Verb(
    b"remove_copies",
    runs.pack_arguments,
    runs.distribute_removed,
    runs.copies_left,
    can_fold=False,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
    wakes_all=True,
)
PUT_BACK = Verb(
    b"put_back",
    runs.pack_arguments,
    runs.repeat_value,
    is_put_back=True,
    can_fold=False,
    wakes=(Line.CONSUMERS,),
)


def _job_event(name: bytes, *wakes: Line) -> Verb:
    return Verb(
        name, runs.pack_messages, runs.distribute_values, Operation.messages_left, can_split=True, wakes=wakes
    )


# Events of jobs (jobs.lua): each message names a job and its owner (jobs.py), and has the result 1, or 0 if
# the event is refused, or an error that is about this message alone.
DELETE_JOB = replace(_job_event(b"delete_job", Line.PRODUCERS), overtakes=True)
RELEASE = _job_event(b"release", Line.CONSUMERS)
GIVE_UP = replace(_job_event(b"give_up", Line.CONSUMERS), gives_up=True)
BURY = _job_event(b"bury")
TOUCH = _job_event(b"touch")
KICK_JOB = _job_event(b"kick_job", Line.CONSUMERS)
KICK = Verb(
    b"kick",
    runs.pack_arguments,
    runs.repeat_value,
    can_fold=False,
    wakes=(Line.CONSUMERS,),
    wakes_all=True,
)

# Verbs that change nothing.
CONTAINS = Verb(
    b"contains",
    runs.pack_messages,
    runs.distribute_values,
    Operation.messages_left,
    can_split=True,
    changes=False,
)
LENGTH = _asking(b"length")
EXISTS = _asking(b"exists")
INFO = replace(_asking(b"info"), distribute=_share_info)
VERSION = _asking(b"version")
EXAMINE = _asking(b"examine")
RANGE = _asking(b"range", runs.pack_arguments, folds=False)
SCAN = _asking(b"scan", runs.pack_arguments, folds=False)
POSITIONS = _asking(b"positions", runs.pack_arguments, folds=False)
SAMPLE = _asking(b"sample", runs.pack_arguments, folds=False)
# Messages of a log: one for each offset; and those from an offset on.
AT = Verb(b"at", runs.pack_messages, runs.distribute_values, Operation.messages_left, changes=False)
FROM = _asking(b"from", runs.pack_arguments, folds=False)
OUTCOME = _asking(b"outcome", runs.pack_arguments, folds=False)
# Peek drops expired messages, which makes room. It may be done twice without harm.
PEEK = Verb(
    b"peek",
    runs.pack_nothing,
    runs.distribute_peeked,
    changes=False,
    line=Line.CONSUMERS,
    wakes=(Line.PRODUCERS,),
)

PENDING = _asking(b"pending", runs.pack_arguments, folds=False)
PEEK_JOB = _asking(b"peek_job", runs.pack_arguments, folds=False)
JOB_INFO = _asking(b"job_info", runs.pack_arguments, folds=False)

# Verbs that create, empty, repair or delete a queue.
CREATE = _living(b"create", Line.PRODUCERS, pack=runs.pack_arguments)
ALTER = _living(b"alter", pack=runs.pack_arguments)
CLOSE = _living(b"close", Line.PRODUCERS)
DELETE = _living(b"delete", Line.CONSUMERS, share=_share_deleted)
FINISH_DELETE = _living(b"finish_delete", Line.CONSUMERS)
TRIM = _living(b"trim", Line.CONSUMERS, pack=runs.pack_arguments)
REDRIVE = _living(b"redrive", pack=runs.pack_arguments)
PURGE = _living(b"purge", Line.CONSUMERS, pack=runs.pack_arguments)
GROUP = _living(b"group", pack=runs.pack_arguments)
PAUSE = _living(b"pause", pack=runs.pack_arguments)
REPAIR = _living(b"repair", pack=runs.pack_arguments)
TURN = _living(b"turn")
