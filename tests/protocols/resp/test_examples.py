"""The programs in README.md and docs/reference/commands.md run as written."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.requirements import need_success
from tests.support.waiters import Waiter, wait_for_waiting

pytestmark = pytest.mark.clients

# Seconds for which redis-py and redis-rb wait for a reply. phpredis waits as long as PHP is told to.
LIBRARY_TIMEOUT = 5
RUNNERS = {
    "php": ["php", "-d", f"default_socket_timeout={LIBRARY_TIMEOUT}"],
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
    """Return the document's only block of code in this language."""
    text = (ROOT / document).read_text("utf-8")
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    assert len(found) == 1
    return found[0]


def begin(language: str, program: str, server: Server) -> subprocess.Popen[str]:
    """Start the program on the server's port."""
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
    """Return the ids of the clients that wait."""
    return {entry["id"] for entry in client.client_list() if "b" in entry["flags"]}


@pytest.mark.parametrize("language", RUNNERS)
def test_the_documented_programs_print_their_output(language: str, server: Server, client: Client) -> None:
    need_library(language)
    ended = begin(language, block(language, "README.md"), server)
    assert ended.communicate(timeout=TIMEOUT)[0] == "to: ada\n"
    # The queue of the first program still exists.
    ended = begin(language, block(language), server)
    assert ended.communicate(timeout=TIMEOUT)[0] == block("text")
    assert client.keys() == [b"mails"]


@pytest.mark.slow
@pytest.mark.parametrize("language", RUNNERS)
def test_the_program_waits_longer_than_its_library_s_timeout(
    language: str, server: Server, client: Client, waiter: Waiter
) -> None:
    need_library(language)
    lines = [line for line in block(language).splitlines(keepends=True) if "PRESSURE.CLOSE" not in line]
    waiting = begin(language, "".join(lines), server)
    wait_for(lambda: client.exists("letters"), "the program to create its queue")
    wait_for_waiting(client, "letters", consumers=1)
    before = waiting_clients(client)
    assert waiter("BLPOP", "nothing", LIBRARY_TIMEOUT + 0.5) is None
    # On the same connection: a client that reconnects loses its place in line.
    assert waiting_clients(client) == before
    assert waiter("PRESSURE.CLOSE", "letters") == b"OK"
    assert waiting.communicate(timeout=TIMEOUT)[0] == block("text")
