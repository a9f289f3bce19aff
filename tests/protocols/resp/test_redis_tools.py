"""redis-cli and redis-benchmark on the server, and lines that telnet and netcat send."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.protocols import RESP, Wire
from tests.support.requirements import need

Cli = Callable[..., str]
# Sequences that move the cursor and colour text.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*command: str) -> str:
    """Return the command's output. Raises AssertionError if it fails."""
    ended = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="session")
def redis_cli() -> str:
    return need("redis-cli", "redis-tools")


@pytest.fixture
def cli(redis_cli: str, server: Server) -> Cli:
    """Run redis-cli with these arguments."""
    return lambda *arguments: run(redis_cli, "-p", str(server.port), *arguments)


class Terminal:
    """A program on a terminal of 100 columns."""

    def __init__(self, home: Path, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        # HOME: the program must not read the user's settings and history.
        environment = {**os.environ, "TERM": "xterm", "HOME": str(home)}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._printed = b""
        self._expected = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def screen(self) -> str:
        """Return the output so far, without escape sequences."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self._printed += os.read(self._master, 65536)
            except OSError:  # end of file: the program has closed the terminal
                break
        return ESCAPES.sub("", self._printed.decode(errors="replace"))

    def expect(self, pattern: str) -> str:
        """Wait for a match after the previous one, and return the text between their ends."""
        regex = re.compile(pattern)
        found = wait_for(lambda: regex.search(self.screen(), self._expected), pattern)
        start, self._expected = self._expected, found.end()
        return self.screen()[start : self._expected]

    def end(self) -> int:
        """Wait until the program ends, and return its exit status."""
        wait_for(lambda: self.screen() and self._process.poll() is not None, "the program to end")
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT)
        os.close(self._master)


@pytest.mark.clients
def test_redis_cli_works_in_resp3(cli: Cli) -> None:
    assert cli("sadd", "q", "a", "b") == "2\n"
    assert "proto 3\n" in cli("-3", "hello")
    assert cli("-3", "--no-raw", "smembers", "q") == '1~ "a"\n2~ "b"\n'
    assert cli("-3", "--no-raw", "spop", "nothing") == "(nil)\n"


@pytest.mark.clients
def test_redis_cli_works_interactively(redis_cli: str, server: Server, tmp_path: Path) -> None:
    # What is typed before a prompt is lost: redis-cli then discards all input.
    prompt = r"127\.0\.0\.1:\d+(\[\d+\])?> "
    with contextlib.closing(Terminal(tmp_path, redis_cli, "-p", str(server.port))) as session:
        session.expect(prompt)
        session.type("sadd ")
        session.expect(re.escape("key member [member ...]"))  # a hint from COMMAND DOCS
        session.type("q one two one\r")
        session.expect(r"\(integer\) 2\r\n" + prompt)
        session.type("smemb\t")
        session.expect("SMEMBERS")
        session.type(" q\r")
        session.expect(r'1\) "one"\r\n2\) "two"\r\n' + prompt)
        session.type("pressure.create ")
        session.expect(re.escape("key [IF NOT EXISTS] [BOUND bound]"))
        session.type("\x15help spop\r")
        assert "Takes the oldest message" in session.expect(r"group: set\s+" + prompt)
        session.type("info\r")
        session.expect(r"# Server\s")
        session.expect("queue_q:length=2,")
        session.expect(prompt)
        session.type("hello 3\r")
        session.expect(r'"proto" => \(integer\) 3\r\n')
        session.expect(prompt)
        session.type("smembers q\r")
        session.expect(r'1~ "one"\r\n2~ "two"\r\n' + prompt)
        session.type("select 1\r")
        assert session.expect(r"OK\r\n" + prompt).endswith("[1]> ")
        session.type("quit\r")
        assert session.end() == 0
        assert "(error)" not in session.screen().lower(), session.screen()


@pytest.mark.clients
def test_redis_cli_shows_statistics(
    redis_cli: str, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.sadd("q", "a")
    terminal = Terminal(tmp_path, redis_cli, "-p", str(server.port), "--stat", "-i", "0.1")
    with contextlib.closing(terminal) as session:
        session.expect(r"keys +mem +clients +blocked +requests +connections")
        for _ in range(2):
            session.expect(r"\n1 +[\d.]+[MG] +\d+ +0 +\d+ \(\+\d+\) +\d+ *\r")


@pytest.mark.clients
def test_redis_cli_looks_at_queues_and_measures_latency(cli: Cli, client: redis.Redis) -> None:
    for number in range(30):
        client.sadd(f"q{number}", "a")
    client.sadd("long", "a", "b", "c")
    assert sorted(cli("--scan").split()) == sorted(["long", *[f"q{number}" for number in range(30)]])
    assert sorted(cli("--scan", "--pattern", "q1?").split()) == [f"q1{number}" for number in range(10)]
    shown = cli("--bigkeys")
    assert "Biggest    set found '\"long\"' has 3 members" in shown
    assert "31 sets with 33 members (100.00% of keys" in shown
    assert "31 sets with " in cli("--memkeys")
    least, most, average, samples = cli("--latency", "-i", "0.2").split()[:4]
    assert int(least) <= float(average) <= int(most)
    assert int(samples) > 0


@pytest.mark.clients
@pytest.mark.parametrize("options", ["", "-P 16", "-3", "-r 1000", "-d 10000"])
def test_redis_benchmark_finishes_without_errors(options: str, server: Server) -> None:
    program = need("redis-benchmark", "redis-tools")
    shown = run(program, "-p", str(server.port), "-t", "sadd,spop", "-n", "2000", "-q", *options.split())
    for test in ("SADD", "SPOP"):
        assert re.search(rf"{test}: [\d.]+ requests per second, p50=", shown), shown
    assert "rror" not in shown


@pytest.mark.parametrize("end", [b"\r\n", b"\n"], ids=["telnet", "netcat"])
def test_typed_lines_are_commands(server: Server, end: bytes) -> None:
    typed = [
        b"PING", b"SADD q a \"b c\" 'd' a", b"scard q", b"SPOP q", b"", b"spop q", b"SPOP nothing", b"no",
        b"QUIT",
    ]  # fmt: skip
    with Wire(RESP, server) as wire:
        wire.send(end.join([*typed, b""]))
        assert wire.rest() == (
            b"+PONG\r\n:3\r\n:3\r\n$1\r\na\r\n$3\r\nb c\r\n$-1\r\n"
            b"-ERR unknown command 'no', with args beginning with: \r\n+OK\r\n"
        )
