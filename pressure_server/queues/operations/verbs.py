"""Verbs: a table of what the batch script can do on a queue, and how Python packs and reads each verb.

The script's half of the table is in lua/batch.lua.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pressure_server.queues.operations import packing, sharing
from pressure_server.queues.operations.operation import Line, Operation, Verb


def _share_deleted(operations: Sequence[Operation], reply: Any) -> bool:
    if reply == b"begun":
        operations[0].verb = FINISH_DELETE
        return True
    return sharing.one(operations, reply)


def _asking(
    name: bytes, pack: Callable[[Sequence[Operation]], list[bytes]] = packing.nothing, *, folds: bool = True
) -> Verb:
    return Verb(name, pack, sharing.one, folds=folds, changes=False)


def _living(
    name: bytes,
    line: Line | None = None,
    *,
    pack: Callable[[Sequence[Operation]], list[bytes]] = packing.nothing,
    share: Callable[[Sequence[Operation], Any], bool] = sharing.one,
) -> Verb:
    return Verb(
        name, pack, share, folds=False, line=line, serves=(Line.PRODUCERS, Line.CONSUMERS), serves_all=True
    )


PUT = Verb(
    b"put",
    packing.commands,
    sharing.put,
    Operation.commands_left,
    puts=True,
    line=Line.PRODUCERS,
    serves=(Line.CONSUMERS,),
)
GET = Verb(
    b"get",
    packing.count,
    sharing.got,
    Operation.messages_left,
    takes=True,
    line=Line.CONSUMERS,
    serves=(Line.PRODUCERS,),
)
MOVE = Verb(
    b"move",
    packing.arguments,
    sharing.moved,
    Operation.messages_left,
    takes=True,
    moves=True,
    folds=False,
    line=Line.CONSUMERS,
    serves=(Line.PRODUCERS,),
)
REMOVE = Verb(
    b"remove",
    packing.messages,
    sharing.values,
    Operation.messages_left,
    line=Line.CONSUMERS,
    serves=(Line.PRODUCERS,),
)
PUT_BACK = Verb(
    b"put_back", packing.arguments, sharing.one, restores=True, folds=False, serves=(Line.CONSUMERS,)
)

# Verbs that change nothing.
CONTAINS = Verb(b"contains", packing.messages, sharing.values, Operation.messages_left, changes=False)
LENGTH = _asking(b"length")
EXISTS = _asking(b"exists")
INFO = _asking(b"info")
VERSION = _asking(b"version")
EXAMINE = _asking(b"examine")
RANGE = _asking(b"range", packing.arguments, folds=False)
SCAN = _asking(b"scan", packing.arguments, folds=False)
SAMPLE = _asking(b"sample", packing.arguments, folds=False)
# Peek drops expired messages, which makes room. It may be done twice without harm.
PEEK = Verb(b"peek", packing.nothing, sharing.peeked, changes=False, serves=(Line.PRODUCERS,))

# Verbs that create, empty, repair or delete a queue.
CREATE = _living(b"create", Line.PRODUCERS, pack=packing.arguments)
CLOSE = _living(b"close", Line.PRODUCERS)
DELETE = _living(b"delete", Line.CONSUMERS, share=_share_deleted)
FINISH_DELETE = _living(b"finish_delete", Line.CONSUMERS)
FLUSH = _living(b"flush", Line.CONSUMERS)
REPAIR = _living(b"repair", pack=packing.arguments)
TURN = _living(b"turn")
# Puts back what a server of version 0.1.0 had taken.
TAKE_OVER = _living(b"take_over", pack=packing.arguments)
