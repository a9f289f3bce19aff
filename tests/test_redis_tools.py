"""Redis's own tools on our server, and lines typed into a plain socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.requirements import need

Cli = Callable[..., str]
# What a terminal program sends to move the cursor and to colour text.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*command: str) -> str:
    """What the command prints; it must succeed."""
    ended = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture
def cli(server: Server) -> Cli:
    """Run redis-cli with these arguments."""
    program = need("redis-cli", "redis-tools")
    return lambda *arguments: run(program, "-p", str(server.port), *arguments)


class Terminal:
    """A program on a terminal of 100 columns."""

    def __init__(self, home: Path, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        # HOME: its settings and its history are not those of who runs the tests.
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
        """All that was printed so far, without escapes."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self._printed += os.read(self._master, 65536)
            except OSError:  # end of file: nobody has the other side open
                break
        return ESCAPES.sub("", self._printed.decode(errors="replace"))

    def expect(self, pattern: str) -> str:
        """Wait for it, behind what was expected before; the text up to its end."""
        regex = re.compile(pattern)
        found = wait_for(lambda: regex.search(self.screen(), self._expected), pattern)
        start, self._expected = self._expected, found.end()
        return self.screen()[start : self._expected]

    def end(self) -> int:
        """The exit status, once the program has ended by itself."""
        wait_for(lambda: self.screen() and self._process.poll() is not None, "the program to end")
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT)
        os.close(self._master)


@contextlib.contextmanager
def terminal(home: Path, *command: str) -> Iterator[Terminal]:
    opened = Terminal(home, *command)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.clients
def test_redis_cli_takes_commands_as_arguments(cli: Cli) -> None:
    assert cli("sadd", "q", "a", "b", "a") == "2\n"
    assert cli("scard", "q") == "2\n"
    assert cli("sismember", "q", "b") == "1\n"
    assert cli("--no-raw", "smembers", "q") == '1) "a"\n2) "b"\n'
    assert [cli("--no-raw", "spop", "q") for _ in range(3)] == ['"a"\n', '"b"\n', "(nil)\n"]


@pytest.mark.clients
def test_redis_cli_in_resp3(cli: Cli) -> None:
    cli("sadd", "q", "a", "b")
    assert "proto 3\n" in cli("-3", "hello")
    assert cli("-3", "--no-raw", "smembers", "q") == '1~ "a"\n2~ "b"\n'
    assert cli("-3", "--no-raw", "spop", "nothing") == "(nil)\n"


@pytest.mark.clients
def test_an_interactive_session_of_redis_cli(server: Server, tmp_path: Path) -> None:
    program = need("redis-cli", "redis-tools")
    with terminal(tmp_path, program, "-p", str(server.port)) as session:
        session.expect(r"127\.0\.0\.1:\d+> ")
        session.type("sadd ")
        session.expect(re.escape("key member [member ...]"))  # a hint, by COMMAND DOCS
        session.type("q one two one\r")
        session.expect(r"\(integer\) 2\r\n")
        session.type("smemb\t")
        session.expect("SMEMBERS")
        session.type(" q\r")
        session.expect(r'1\) "one"\r\n2\) "two"\r\n')
        session.type("pressure.create ")
        session.expect(re.escape("key [BOUND bound] [OVERFLOW BLOCK|ERROR]"))
        session.type("\x15help spop\r")
        assert "Takes the oldest message" in session.expect("group: set")
        session.type("info\r")
        session.expect(r"# Server\s")
        session.expect("queue_q:length=2,")
        session.type("hello 3\r")
        session.expect(r'"proto" => \(integer\) 3\r\n')
        session.type("smembers q\r")
        session.expect(r'1~ "one"\r\n2~ "two"\r\n')
        session.type("select 1\r")
        session.expect(r"OK\r\n127\.0\.0\.1:\d+\[1\]> ")
        session.type("quit\r")
        assert session.end() == 0
        assert "(error)" not in session.screen().lower(), session.screen()


@pytest.mark.clients
def test_redis_cli_stat(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.sadd("q", "a")
    program = need("redis-cli", "redis-tools")
    with terminal(tmp_path, program, "-p", str(server.port), "--stat", "-i", "0.1") as session:
        session.expect(r"keys +mem +clients +blocked +requests +connections")
        for _ in range(2):  # keys, memory, clients, blocked, requests since the last line, connections
            session.expect(r"\n1 +[\d.]+[MG] +\d+ +0 +\d+ \(\+\d+\) +\d+ *\r")


@pytest.mark.clients
def test_redis_cli_scan(cli: Cli, client: redis.Redis) -> None:
    for number in range(30):
        client.sadd(f"q{number}", "a")
    assert sorted(cli("--scan").split()) == sorted(f"q{number}" for number in range(30))
    assert sorted(cli("--scan", "--pattern", "q1?").split()) == [f"q1{number}" for number in range(10)]


@pytest.mark.clients
def test_redis_cli_finds_the_longest_queue(cli: Cli, client: redis.Redis) -> None:
    client.sadd("short", "a")
    client.sadd("long", "a", "b", "c")
    shown = cli("--bigkeys")
    assert "Biggest    set found '\"long\"' has 3 members" in shown
    assert "2 sets with 4 members (100.00% of keys" in shown


@pytest.mark.clients
def test_redis_cli_memkeys_comes_to_its_end(cli: Cli, client: redis.Redis) -> None:
    client.sadd("q", "a")
    assert "1 sets with " in cli("--memkeys")


@pytest.mark.clients
def test_redis_cli_latency(cli: Cli) -> None:
    least, most, average, samples = cli("--latency", "-i", "0.2").split()[:4]
    assert int(least) <= float(average) <= int(most)
    assert int(samples) > 0


@pytest.mark.clients
@pytest.mark.parametrize(
    "options",
    [(), ("-P", "16"), ("-3",), ("-r", "1000"), ("-d", "10000")],
    ids=lambda options: " ".join(options) or "plain",
)
def test_redis_benchmark_runs_to_its_end(options: tuple[str, ...], server: Server) -> None:
    program = need("redis-benchmark", "redis-tools")
    shown = run(program, "-p", str(server.port), "-t", "sadd,spop", "-n", "2000", "-q", *options)
    for test in ("SADD", "SPOP"):
        assert re.search(rf"{test}: [\d.]+ requests per second, p50=", shown), shown
    assert "rror" not in shown


def converse(server: Server, typed: bytes) -> bytes:
    """All that a raw socket gets for what is typed; the last line must be QUIT."""
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        connection.sendall(typed)
        replies = b""
        while piece := connection.recv(65536):
            replies += piece
        return replies


def test_lines_as_telnet_sends_them(server: Server) -> None:
    typed = b"PING\r\nSADD q a \"b c\" 'd' a\r\nSCARD q\r\nSPOP q\r\n\r\nspop q\r\nSPOP nothing\r\nQUIT\r\n"
    assert converse(server, typed) == b"+PONG\r\n:3\r\n:3\r\n$1\r\na\r\n$3\r\nb c\r\n$-1\r\n+OK\r\n"


def test_lines_as_netcat_sends_them(server: Server) -> None:
    assert converse(server, b"ping\nsadd q a\nspop q\nnonsense\nquit\n").startswith(
        b"+PONG\r\n:1\r\n$1\r\na\r\n-ERR unknown command 'nonsense'"
    )


@pytest.mark.clients
def test_the_show_with_an_embedded_backend(start_server: Callable[..., Server], tmp_path: Path) -> None:
    program = need("redis-cli", "redis-tools")
    data = ("--data-dir", str(tmp_path / "data"))

    def show(server: Server, command: str) -> str:
        return run(program, "-p", str(server.port), "--no-raw", *command.split())

    first = start_server(*data)
    assert show(first, "SADD q a b a") == "(integer) 2\n"
    assert show(first, "SCARD q") == "(integer) 2\n"
    assert show(first, "SISMEMBER q b") == "(integer) 1\n"
    assert [show(first, "SPOP q") for _ in range(3)] == ['"a"\n', '"b"\n', "(nil)\n"]
    assert show(first, "SADD q x y z") == "(integer) 3\n"
    assert first.stop() == 0, first.log
    second = start_server(*data)
    assert show(second, "SMEMBERS q") == '1) "x"\n2) "y"\n3) "z"\n'
    assert [show(second, "SPOP q") for _ in range(4)] == ['"x"\n', '"y"\n', '"z"\n', "(nil)\n"]
    assert second.stop() == 0, second.log
