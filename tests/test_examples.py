"""The programs in README.md and docs/reference/commands.md run as written, and print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.requirements import need_success
from tests.support.waiters import Waiter, wait_for_waiting

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parent.parent
# How long redis-py and redis-rb wait for a reply, in seconds; phpredis does so as long as PHP is told to.
LIBRARIES_WAIT = 5
RUNNERS = {
    "php": ["php", "-d", f"default_socket_timeout={LIBRARIES_WAIT}"],
    "ruby": ["ruby"],
    "python": [sys.executable],
}
PORT = "4000"


def need_library(language: str) -> None:
    if language == "php":
        need_success("php-redis", "php", "-r", "exit(class_exists('Redis') ? 0 : 1);")
    elif language == "ruby":
        need_success("ruby-redis", "ruby", "-e", "require 'redis'")


def block(language: str, document: str = "docs/reference/commands.md") -> str:
    """The document's one block of code in this language."""
    text = (ROOT / document).read_text("utf-8")
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    assert len(found) == 1
    return found[0]


def begin(language: str, program: str, server: Server) -> subprocess.Popen[str]:
    """Let it run on our server's port."""
    assert program.count(PORT) == 1
    started = subprocess.Popen(
        RUNNERS[language], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert started.stdin is not None
    with started.stdin as written:
        written.write(program.replace(PORT, str(server.port)))
    started.stdin = None  # communicate() would flush it
    return started


def waiting_clients(client: Client) -> set[str]:
    """The numbers of the connections that wait for something."""
    return {entry["id"] for entry in client.client_list() if "b" in entry["flags"]}


@pytest.mark.parametrize("language", RUNNERS)
def test_the_programs_print_what_they_should(language: str, server: Server, client: Client) -> None:
    need_library(language)
    ended = begin(language, block(language, "README.md"), server)
    assert ended.communicate(timeout=TIMEOUT)[0] == "to: ada\n"
    # The queue of the first is still there.
    ended = begin(language, block(language), server)
    assert ended.communicate(timeout=TIMEOUT)[0] == block("text")
    assert client.keys() == [b"mails"]


def test_the_worker_of_the_readme_gets_one_message_after_the_other(server: Server, client: Client) -> None:
    worker = begin("python", block("python worker", "README.md"), server)
    try:
        client.rpush("mails", "one", "two")
        assert worker.stdout is not None
        assert [worker.stdout.readline() for _ in range(2)] == ["sending one\n", "sending two\n"]
    finally:
        worker.kill()
        worker.communicate(timeout=TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("language", RUNNERS)
def test_the_program_waits_longer_than_its_library_would_by_itself(
    language: str, server: Server, client: Client, waiter: Waiter
) -> None:
    need_library(language)
    lines = [line for line in block(language).splitlines(keepends=True) if "PRESSURE.CLOSE" not in line]
    waiting = begin(language, "".join(lines), server)
    wait_for(lambda: client.exists("letters"), "the program to create its queue")
    wait_for_waiting(client, "letters", consumers=1)
    before = waiting_clients(client)
    assert waiter("BLPOP", "nothing", LIBRARIES_WAIT + 0.5) is None
    # On the same connection: one that gives up and asks again would have lost its place in line.
    assert waiting_clients(client) == before
    assert waiter("PRESSURE.CLOSE", "letters") == b"OK"
    assert waiting.communicate(timeout=TIMEOUT)[0] == block("text")
