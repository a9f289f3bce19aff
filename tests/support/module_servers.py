"""Servers that all tests of a module use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.programs import Server, Valkey


def module_server(*options: str) -> Any:
    """Return a fixture: a server on the shared backend with these options, besides its RESP listener.

    If a module calls it `shared_server`, the `server` of each test is this one, without data.
    """

    @pytest.fixture(scope="module")
    def start(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        server = Server(tmp_path_factory.mktemp("server") / "log", "--backend", shared_backend.url, *options)
        yield server
        server.end_well()

    return start
