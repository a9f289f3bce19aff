"""Calls of the batch script as the courier makes them, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pressure_server.lua.scripts import batch_script
from tests.support.programs import Client

# A name and its arguments.
Run = tuple[str | bytes, ...]
RECORDS = "__pressure__!calls:me"


class Block(NamedTuple):
    """Runs on a queue, or on some together."""

    bases: Sequence[str]
    runs: Sequence[Run]
    mode: str = ""


def call(direct: Client, *blocks: Block, number: int = 0, epoch: int = 1, again: bool = False) -> list[Any]:
    """The replies of the blocks. With a number, the call has a record. The epoch is the last one by then."""
    if number and not direct.exists(RECORDS):
        direct.hset(RECORDS, "epoch", epoch)
    words: list[Any] = ["me", 0, "error", "0 0", epoch, number or "", "again" if again else "", ""]
    keys: list[str] = []
    for block in blocks:
        run_words = [word for name, *arguments in block.runs for word in (name, len(arguments), *arguments)]
        if block.mode in ("recover", "cut"):
            run_words = list(block.runs[0])
        words += [len(block.bases), len(run_words), block.mode, *run_words]
        keys += block.bases
    keys.append(RECORDS)
    replies: list[Any] = direct.eval(batch_script(), len(keys), *keys, *words)[1:]
    return [_without_due(reply) for reply in replies]


def _without_due(reply: Any) -> Any:
    """Return a block's reply without the time of the next job, which says nothing of its runs."""
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], list):
        return reply
    (left, *more), *results = reply
    kept = [
        part
        for run, result in zip(more[::2], more[1::2], strict=True)
        if not (run == 0 and result.startswith(b"due "))
        for part in (run, result)
    ]
    return [[left, *kept] if kept else left, *results]
