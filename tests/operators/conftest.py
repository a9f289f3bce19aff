"""The browser in which tests look at the console and at the site, and a server with users."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.guards import users_toml
from tests.support.preload import preload
from tests.support.programs import Server, StartServer, Valkey
from tests.support.requirements import need

HTTP = ("--http", "http://127.0.0.1:0")
# Users of `guarded` by name: the password, the queues and the rights of each.
USERS = {
    "root": ("secret", ["*"], ["put", "get", "read", "administer"]),
    "reader": ("secret", ["mine*"], ["read"]),
    "worker": ("secret", ["mine*"], ["read", "get"]),
    "writer": ("secret", ["*"], ["put"]),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    path = need("chromium", "chromium")
    with sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, "LD_PRELOAD": str(preload("steady"))}
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], env=environment)
        yield started
        started.close()


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """The file with the users of `guarded`."""
    file = tmp_path / "users.toml"
    file.write_text(users_toml(USERS))
    return file


@pytest.fixture
def guarded(start_server: StartServer, backend: Valkey, users_file: Path) -> Server:
    """A server with users and a console. It has two queues with a message each: mine and other."""
    server = start_server("--backend", backend.url, *HTTP, "--users", str(users_file))
    with server.client(username="root", password="secret") as client:
        client.rpush("mine", "x")
        client.rpush("other", "x")
    return server
