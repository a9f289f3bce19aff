"""The keys of the protocol, read from the backend as a queue of the reference."""

from collections.abc import Iterator
from typing import Any

from tests.support.reference.queue import ERROR, Counters, Tokens

STATISTICS = [f":stats:{verb}_{unit}" for verb in ("produced", "consumed") for unit in ("messages", "bytes")]
_TOKENS = (":producer_free", ":consumer_free", ":not_full", ":closed")


EXTENSION = (":ext:members", ":ext:copies", ":ext:index", ":ext:settings")
PROTOCOL = ("", ":bound", ":producer", ":consumer", *_TOKENS, *STATISTICS)


def ask_for_queue(pipeline: Any, base: str) -> None:
    """Add the commands that read a queue to a pipeline."""
    pipeline.lrange(base, 0, -1)
    pipeline.mget([base + suffix for suffix in (":bound", ":producer", ":consumer", *STATISTICS)])
    for suffix in _TOKENS:
        pipeline.llen(base + suffix)
    pipeline.hmget(f"{base}:ext:settings", "overflow", "dropped", "max_bytes")
    pipeline.exists(*[base + suffix for suffix in PROTOCOL])


def fields_of_queue(replies: Iterator[Any]) -> dict[str, Any]:
    """Return the fields of a queue from the replies to these commands."""
    newest_first = next(replies)
    bound, producer, consumer, *statistics = next(replies)
    tokens = Tokens(*(next(replies) for _ in _TOKENS))
    exists, settings = bound is not None, next(replies)
    # The settings outlive the queue for a moment.
    overflow, dropped, max_bytes = settings if exists else (None, None, None)
    return {
        "bound": int(bound or 0),
        "max_bytes": int(max_bytes or 0),
        "messages": newest_first[::-1],
        "exists": exists,
        "overflow": (overflow or ERROR.encode()).decode(),
        "producer": producer or b"",
        "consumer": consumer or b"",
        "tokens": tokens,
        "counters": Counters(*[int(number or 0) for number in (*statistics, dropped)]),
        "has_keys": next(replies) > 0,
    }
