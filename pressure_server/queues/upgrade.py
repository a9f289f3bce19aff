"""Upgrade: puts back the messages of dead servers of version 0.1.0.

Such servers sign in a registry of their own, and keep messages that they have taken in a key of each queue
(upgrade.lua). Servers of both versions may run side by side: neither takes a live server of the other version
for dead. The messages of a newer server are put back only by newer servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from pressure_server.errors import BackendReplyError, PressureError
from pressure_server.queues.database import Database
from pressure_server.queues.names import is_queue_name, keys_pattern
from pressure_server.queues.operations import verbs
from pressure_server.queues.peers import Peers

logger = logging.getLogger(__name__)

_CALLS = b":ext:calls"


class OldPeers(Peers):
    """The peers of version 0.1.0 on one database."""

    _registry = b"!servers"

    def start(self, database: Database) -> None:
        """Watch them, until `stop`. This server does not sign in their registry."""
        self._tasks = [asyncio.create_task(self._search_dead(database))]

    def _report_peer_count(self, database: Database) -> None:
        pass

    def _log_refusal(self, what: str, refusal: BackendReplyError | None) -> None:
        """Log a refusal at level DEBUG only: this server's user may lack rights for the old registry."""
        if refusal is not None:
            logger.debug("%s of version 0.1.0: %s", what, refusal)

    async def _recover(self, database: Database, name: bytes) -> tuple[int, bytes, Counter[bytes]]:
        """Put back what a dead server had taken; see Peers."""
        counts: Counter[bytes] = Counter()
        failed, why, cursor = 0, b"", b""
        while cursor != b"0":
            cursor, keys = await database.command(
                b"SCAN", cursor or b"0", b"MATCH", keys_pattern(self._prefix, _CALLS), b"COUNT", b"1000"
            )
            names = [key[len(self._prefix) + 1 : -len(_CALLS)] for key in keys]
            names = [queue for queue in names if is_queue_name(queue)]
            for queue, back in zip(
                names, await database.run_each(verbs.TAKE_OVER, names, [name]), strict=True
            ):
                if isinstance(back, PressureError):
                    failed, why = failed + 1, str(back).encode()
                else:
                    counts[queue] += back
        return failed, why, counts
