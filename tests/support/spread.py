"""A cluster in place of the shared backend: `pytest --on-cluster`.

Tests that look into the backend, or break it, are skipped. on_cluster.py has those that cannot pass.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
import redis

from tests.support.nodes import LOCAL
from tests.support.programs import Client, Valkey, wait_for
from tests.support.sharded import started_cluster, url_of


class SpreadValkey(Valkey):
    """Three masters of Redis, with 16 shards."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._cluster = self._stack.enter_context(started_cluster(folder))
        self.url = url_of(self._cluster)

    def __getattr__(self, _name: str) -> NoReturn:
        # `process`, `socket` and `folder` of a Valkey.
        pytest.skip("needs a backend of one node")

    def client(self, **_options: object) -> Client:
        """Skip the test."""
        pytest.skip("looks into a backend of one node")

    def flush(self) -> None:
        """See Valkey."""
        for node in self._cluster.nodes:
            with redis.Redis(LOCAL, node.port) as client:
                wait_for(lambda: client.info("clients")["blocked_clients"] == 0, "blocked clients to go")
                client.flushall()

    def stop(self, _number: int = 0) -> int:
        """End all nodes."""
        self._stack.close()
        return 0
