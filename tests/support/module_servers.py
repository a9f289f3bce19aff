"""Servers that all tests of a module use."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.guards import users_toml
from tests.support.programs import Server, Valkey


def module_server(
    *options: str,
    users: Mapping[str, tuple[str, list[str], list[str]]] | None = None,
    secret: str = "",
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Return a fixture: a server on the shared backend with these options, besides its RESP listener.

    If a module calls it `shared_server`, the `server` of each test is this one, without data. `users` are
    those of its users file; see users_toml. The log must not have the `secret`.
    """

    @pytest.fixture(scope="module")
    def start(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        folder = tmp_path_factory.mktemp("server")
        arguments = ["--backend", shared_backend.url, *options]
        if users is not None:
            (folder / "users.toml").write_text(users_toml(users))
            arguments += ["--users", str(folder / "users.toml")]
        server = Server(folder / "log", *arguments, environment=environment)
        yield server
        assert not secret or secret not in server.log
        server.end_well()

    return start
