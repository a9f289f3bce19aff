"""The kinds of operations: a table of what the batch script can do on a queue, and how it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pressure_server.broker import packing, sharing
from pressure_server.broker.operation import Kind, Line, Operation


def _share_deleted(operations: Sequence[Operation], reply: Any) -> bool:
    if reply == b"begun":
        operations[0].kind = FINISH_DELETE
        return True
    return sharing.one(operations, reply)


def _putting(name: bytes, share: Callable[[Sequence[Operation], Any], bool], waiting: Kind | None) -> Kind:
    return Kind(
        name,
        packing.commands,
        share,
        Operation.commands_left,
        puts=True,
        counts=name.startswith(b"add"),
        line=Line.PRODUCERS,
        serves=(Line.CONSUMERS,),
        satisfied=lambda operation: not operation.commands_left(),
        waiting=waiting,
    )


def _taking(
    name: bytes,
    pack: Callable[[Sequence[Operation]], list[bytes]],
    *,
    folds: bool,
    waiting: Kind | None,
    share: Callable[[Sequence[Operation], Any], bool] = sharing.taken,
) -> Kind:
    return Kind(
        name,
        pack,
        share,
        Operation.messages_left,
        takes=True,
        moves=name.startswith(b"move"),
        marked=b"_marked" in name,
        opens=name.startswith(b"take_opened"),
        folds=folds,
        line=Line.CONSUMERS,
        serves=(Line.PRODUCERS,),
        satisfied=lambda operation: bool(operation.results),
        waiting=waiting,
    )


def _getting(name: bytes, share: Callable[[Sequence[Operation], Any], bool]) -> Kind:
    """One that takes what there is, and never lacks a message."""
    taking = _taking(name, packing.count, folds=True, waiting=None, share=share)
    return replace(taking, satisfied=lambda _: True)


def _asking(
    name: bytes, pack: Callable[[Sequence[Operation]], list[bytes]] = packing.nothing, *, folds: bool = True
) -> Kind:
    return Kind(name, pack, sharing.one, folds=folds, changes=False)


def _living(
    name: bytes,
    pack: Callable[[Sequence[Operation]], list[bytes]] = packing.nothing,
    share: Callable[[Sequence[Operation], Any], bool] = sharing.one,
    line: Line | None = None,
) -> Kind:
    return Kind(
        name,
        pack,
        share,
        folds=False,
        line=line,
        serves=(Line.PRODUCERS, Line.CONSUMERS),
        satisfied=lambda operation: bool(operation.results),
    )


# `…_EXISTING` refuses a queue that does not exist, where the other creates it, or waits for it.
PUT_EXISTING = _putting(b"put existing", sharing.lengths, None)
ADD_EXISTING = _putting(b"add existing", sharing.counts, None)
PUT_OVERFILL = _putting(b"put overfill", sharing.lengths, None)
ADD_OVERFILL = _putting(b"add overfill", sharing.counts, None)
# `…_PATIENT` waits for room whatever the queue's own setting is.
PUT_PATIENT = _putting(b"put wait", sharing.lengths, None)
ADD_PATIENT = _putting(b"add wait", sharing.counts, None)
PUT = _putting(b"put", sharing.lengths, PUT_EXISTING)
ADD = _putting(b"add", sharing.counts, ADD_EXISTING)
# `…_NOW` never waits for room, whatever the queue's own setting is; `…_MARKED` are messages with their flags
# and expiry before them (marks.lua).
PUT_NOW = _putting(b"put now", sharing.lengths, None)
ADD_NOW = _putting(b"add now", sharing.counts, None)
PUT_MARKED = _putting(b"put_marked now", sharing.lengths, None)
ADD_MARKED = _putting(b"add_marked now", sharing.counts, None)
NEVER_WAIT_FOR_ROOM = (PUT_OVERFILL, ADD_OVERFILL, PUT_NOW, ADD_NOW, PUT_MARKED, ADD_MARKED)
GET = _getting(b"get", sharing.values)
# Messages come with their flags (marked.py). What is `…_OPENED` is `flags number message`: by the number it
# is closed, or given back (opened.py).
GET_MARKED = _getting(b"get_marked", sharing.marked_values)
TAKE_EXISTING = _taking(b"take existing", packing.count, folds=True, waiting=None)
TAKE = _taking(b"take", packing.count, folds=True, waiting=TAKE_EXISTING)
TAKE_MARKED_EXISTING = _taking(
    b"take_marked existing", packing.count, folds=True, waiting=None, share=sharing.marked_taken
)
TAKE_MARKED = _taking(
    b"take_marked", packing.count, folds=True, waiting=TAKE_MARKED_EXISTING, share=sharing.marked_taken
)
TAKE_OPENED_EXISTING = _taking(b"take_opened existing", packing.count, folds=True, waiting=None)
TAKE_OPENED = _taking(b"take_opened", packing.count, folds=True, waiting=TAKE_OPENED_EXISTING)
# `…_ELSE` takes nothing where the run before it has taken something.
TAKE_ELSE = _taking(b"take else", packing.count, folds=False, waiting=None)
SOME_ELSE = _taking(b"some else", packing.count, folds=False, waiting=None)
SOME_EXISTING = _taking(b"some existing", packing.count, folds=False, waiting=None)
SOME = _taking(b"some", packing.count, folds=False, waiting=SOME_EXISTING)
MOVE_EXISTING = _taking(b"move existing", packing.arguments, folds=False, waiting=None, share=sharing.moved)
MOVE = _taking(b"move", packing.arguments, folds=False, waiting=MOVE_EXISTING, share=sharing.moved)
RESTORE = Kind(
    b"put_back", packing.arguments, sharing.one, restores=True, folds=False, serves=(Line.CONSUMERS,)
)
REMOVE = Kind(
    b"remove",
    packing.messages,
    sharing.values,
    Operation.messages_left,
    line=Line.CONSUMERS,
    serves=(Line.PRODUCERS,),
)
CONTAINS = Kind(b"contains", packing.messages, sharing.values, Operation.messages_left, changes=False)
LENGTH = _asking(b"length")
EXISTS = _asking(b"exists")
INFO = _asking(b"info")
VERSION = _asking(b"version")
# What has expired it drops, which makes room, and does no harm when it is done twice.
PEEK = Kind(b"peek", packing.nothing, sharing.peeked, changes=False, serves=(Line.PRODUCERS,))
RANGE = _asking(b"range", packing.arguments, folds=False)
SCAN = _asking(b"scan", packing.arguments, folds=False)
SAMPLE = _asking(b"sample", packing.arguments, folds=False)
CREATE = _living(b"create", packing.arguments, line=Line.PRODUCERS)
CLOSE = _living(b"close", line=Line.PRODUCERS)
DELETE = _living(b"delete", share=_share_deleted, line=Line.CONSUMERS)
FINISH_DELETE = _living(b"finish_delete", line=Line.CONSUMERS)
FLUSH = _living(b"flush", line=Line.CONSUMERS)
EXAMINE = _asking(b"examine")
REPAIR = _living(b"repair", packing.arguments)
TURN = _living(b"turn")
