"""What commands that read have in common."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from handlers.resp.caller import Caller
from handlers.resp.commands.words import integer_of
from handlers.resp.errors import syntax_error
from pressure_server.broker.operation import Kind
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.glob import glob_regex


async def read(client: Caller, kind: Kind, queue: bytes, arguments: list[bytes], *, missing: Any) -> Any:
    """The one result of a reading operation; `missing` where there is no such queue."""
    try:
        return (await client.database.run(kind, queue, arguments))[0]
    except QueueDoesNotExistError:
        return missing


async def admitted_queues(client: Caller) -> AsyncIterator[bytes]:
    """The queues of the selected database that the client's user may know of."""
    connection = client.connection
    async for queue in connection.database.queues():
        if connection.user.admits(queue):
            yield queue


@dataclass(frozen=True)
class ScanOptions:
    """What SCAN and SSCAN take beside the cursor."""

    count: int = 10
    pattern: re.Pattern[bytes] | None = None
    type: bytes = b"set"

    def matches(self, value: bytes) -> bool:
        """Whether the value is asked for."""
        return self.pattern is None or self.pattern.fullmatch(value) is not None


def scan_options(words: list[bytes], *, with_type: bool = False) -> ScanOptions:
    """MATCH pattern, COUNT count, and TYPE type where it makes sense. Raises CommandError."""
    if len(words) % 2:
        raise syntax_error()
    options: dict[str, Any] = {}
    pattern: bytes | None = None
    for name, value in zip(words[::2], words[1::2], strict=True):
        match name.upper():
            case b"MATCH":
                pattern = value
            case b"COUNT":
                options["count"] = min(integer_of(value), 2**53)
                if options["count"] < 1:
                    raise syntax_error()
            case b"TYPE" if with_type:
                options["type"] = value.lower()
            case _:
                raise syntax_error()
    if pattern is not None:
        options["pattern"] = glob_regex(pattern)
    return ScanOptions(**options)
