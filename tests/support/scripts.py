"""Calls of the library as the courier makes them, without a server."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from pressure_server.backend.requests import LibraryCall
from pressure_server.lua import scripts
from pressure_server.lua.layout import AGAIN
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
    replies: list[Any] = call_library(direct, keys, words)[1:]
    return [_without_due(reply) for reply in replies]


def call_library(direct: Client, keys: Sequence[str], words: Sequence[Any]) -> Any:
    """Call the library, which is loaded if the backend does not have it."""
    library = scripts.library()
    call = "FCALL", library.name, len(keys), *keys, *words
    try:
        return direct.execute_command(*call)
    except redis.OutOfMemoryError as error:
        return direct.execute_command("FCALL", library.name + b"_full", *call[2:], str(error))
    except redis.ResponseError as error:
        if str(error) != "Function not found":
            raise
    direct.execute_command("FUNCTION", "LOAD", library.text)
    return direct.execute_command(*call)


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


def header_of(call: LibraryCall) -> list[bytes]:
    """Return the header of a call of the server, for the epoch 0 if it has not been sent."""
    may_be_done = AGAIN if call.may_be_done else b""
    return [*call.caller.words, b"%d" % call.epoch, call.record, may_be_done, call.dropped]
